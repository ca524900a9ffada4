"""Read the sentence-transformers files, which define how a sentence vector is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from regard.errors import InputError
from regard.files import read_json
from regard.interop.hf.folder import LARGEST_CONFIG, Folder

POOLING = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}  # fmt: skip
# Names of a file with options of the Transformer, in the order of sentence-transformers.
OPTIONS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
MODES = {"mean": "mean", "cls": "cls", "lasttoken": "last"}


@dataclass
class Sentences:
    """How a sentence encoder computes its vector.

    Attributes:
        folder: the folder of the Transformer, "" if it is the model folder.
        pooling: mean, cls or last.
        max_length: the largest number of tokens; None: as many as the model can read.
        lower_case: whether texts are lowercased before they are tokenised.
        options: notes for the model card.
    """

    pooling: str
    folder: str = ""
    max_length: int | None = None
    lower_case: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def read_sentences(folder: Folder) -> Sentences | None:
    """The sentence-transformers files of a folder; None if there are none.

    Raises:
        InputError: regard does not support a module or an option; the message names it.
    """
    if not folder.has("modules.json"):
        return None
    path = folder.file("modules.json")
    modules = read_json(path, LARGEST_CONFIG, "a list of modules", 1_000)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict) and isinstance(module.get("type"), str)
        and isinstance(module.get("path", ""), str) for module in modules
    ):  # fmt: skip
        raise InputError(f"{path}: not a list of modules")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    for kind in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise InputError(f"{path}: the module {kind:.40} cannot be imported")
    if (
        kinds[:2] != ["Transformer", "Pooling"]
        or len(kinds) > 3
        or kinds[2:] not in ([], ["Normalize"])
    ):
        raise InputError(
            f"{path}: the modules must be Transformer, Pooling and optionally Normalize, in this "
            "order"
        )
    own = modules[0].get("path", "")
    result = Sentences(_pooling(folder, modules[1].get("path", "")), own)
    prefix = f"{own}/" if own else ""
    names = [prefix + name for name in OPTIONS if folder.has(prefix + name)]
    options = folder.options(names[0]) if names else {}
    length = options.get("max_seq_length")
    if length is not None:
        if type(length) is not int or length < 1:
            raise InputError(
                f"{folder.path / names[0]}: max_seq_length={length!r:.40} must be an integer of at "
                "least 1"
            )
        result.max_length = length
    result.lower_case = bool(options.get("do_lower_case", False))
    path = folder.path / "config_sentence_transformers.json"
    options = folder.options(path.name)
    similarity = options.get("similarity_fn_name") or "cosine"
    if len(kinds) == 2:
        if similarity != "cosine":
            raise InputError(
                f"{path}: similarity_fn_name={similarity!r:.40} without the module "
                "Normalize cannot be imported: regard normalises vectors and compares them by "
                "their cosine"
            )
        result.options["Normalize"] = "absent; regard always normalises vectors"
    elif similarity not in ("cosine", "dot", "dot_product"):  # equal for normalised vectors
        result.options["similarity_fn_name"] = f"{similarity!r:.40}: regard computes the cosine"
    prompts = options.get("prompts")
    if options.get("default_prompt_name") is not None:
        raise InputError(
            f"{path}: default_prompt_name={options['default_prompt_name']!r:.40} cannot be "
            "imported: regard adds no prompt to a text"
        )
    if isinstance(prompts, dict) and any(prompts.values()):
        result.options["prompts"] = f"{', '.join(map(str, prompts)):.100}: add them to the texts"
    return result


def _pooling(folder: Folder, own: str) -> str:
    name = f"{own}/config.json" if own else "config.json"
    options = folder.options(name, required=True)
    mode = options.get("pooling_mode")
    if mode is not None:
        if not isinstance(mode, str) or mode not in MODES:
            raise InputError(f"{folder.path / name}: pooling_mode={mode!r:.60} cannot be imported")
        return MODES[mode]
    modes = [key for key, value in options.items() if key.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in POOLING:
        listed = " and ".join(modes) or "no pooling mode"
        raise InputError(
            f"{folder.path / name}: {listed:.120} cannot be imported: regard supports "
            f"{', '.join(POOLING)}"
        )
    return POOLING[modes[0]]
