"""Import models from Hugging Face folders: config.json, weights and tokenizer files.

Each family of architectures has a file in this package with a function that turns the options of
config.json into a `Recipe`. Code in the folder is never executed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regard.errors import InputError
from regard.interop.hf.bart import bart, marian, mbart
from regard.interop.hf.bert import bert, distilbert, roberta
from regard.interop.hf.common import Recipe, Source
from regard.interop.hf.folder import Folder
from regard.interop.hf.gpt2 import gpt2
from regard.interop.hf.llama import llama, mistral, qwen2
from regard.interop.hf.restore import KEY, restore
from regard.interop.hf.sentences import Sentences, read_sentences
from regard.interop.hf.tokenizer import read_chat_template, read_tokenizers
from regard.interop.model import ImportedModel, Oracle
from regard.interop.tensors import convert

FORMAT = "Hugging Face"
FAMILIES: dict[str, Callable[[Source], Recipe]] = {
    "bert": bert, "distilbert": distilbert, "roberta": roberta, "xlm-roberta": roberta,
    "gpt2": gpt2, "llama": llama, "qwen2": qwen2, "mistral": mistral, "marian": marian,
    "bart": bart, "mbart": mbart,
}  # fmt: skip


def read(path: Path) -> ImportedModel:
    """Read a Hugging Face model folder.

    Args:
        path: the folder with config.json, the weights and the files of the tokenizer.

    Returns:
        The model.

    Raises:
        InputError: the folder is not complete or not valid, or it has an architecture or an option
            that regard cannot express.
    """
    if (restored := restore(path)) is not None:
        return restored
    folder = Folder(path)
    sentences = read_sentences(folder)
    if sentences is not None and sentences.folder:
        folder = folder.subfolder(sentences.folder)
    source = read_source(folder, sentences)
    recipe = FAMILIES[source.values["model_type"]](source)
    lower_case = sentences is not None and sentences.lower_case
    tokenizers = read_tokenizers(folder, source, recipe, lower_case)
    tensors = convert(folder.weights(), recipe.conversion, recipe.ignored, path)
    options = {**recipe.options, **(sentences.options if sentences else {})}
    ends = source.generation.get("eos_token_id")
    if isinstance(ends, list) and len(ends) > 1:
        options["eos_token_id"] = f"{ends!s:.60}: only {tokenizers[1].eos} ends an output"
    length = recipe.max_length
    if sentences is not None and sentences.max_length is not None:
        length = min(length, sentences.max_length)
    return ImportedModel(
        FORMAT, source.values["model_type"], recipe.task, recipe.config, tensors, tokenizers,
        length,
        labels=recipe.labels, chat_template=read_chat_template(folder), decoding=recipe.decoding,
        options=options, files=tuple(folder.files),
    )  # fmt: skip


def read_source(folder: Folder, sentences: Sentences | None = None) -> Source:
    """The options of a model folder.

    Raises:
        InputError: the architecture is not supported, or the weights are quantised.
    """
    values = folder.options("config.json", required=True)
    kind = values.get("model_type")
    path = folder.path / "config.json"
    if not isinstance(kind, str) or kind not in FAMILIES:
        if KEY in values:
            raise InputError(
                f"{path}: model_type={kind!r:.40} can be imported only from an unchanged export of "
                "regard, but this folder was changed after regard exported it"
            )
        raise InputError(
            f"{path}: model_type={kind!r:.40} cannot be imported: regard imports "
            f"{', '.join(FAMILIES)}"
        )
    quantised = values.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise InputError(
            f"{path}: quantised weights ({method!r:.40}) cannot be imported: use the model in "
            "float32, float16 or bfloat16"
        )
    pooling = None if sentences is None else sentences.pooling
    source = Source(path, values, folder.options("generation_config.json"), pooling)
    if pooling is not None and kind not in ("bert", "distilbert", "roberta", "xlm-roberta"):
        raise source.error(f"a sentence encoder of the type {kind} cannot be imported")
    if pooling == "last":
        raise source.error("pooling_mode_lasttoken of an encoder cannot be imported")
    return source


def oracle(path: Path, model: ImportedModel) -> Oracle | None:
    """Load the model in `transformers` for the comparison; None if this is not installed.

    Args:
        path: the folder that `read` read.
        model: what it returned.
    """
    try:
        import transformers  # noqa: F401
    except ImportError:
        return None
    from regard.interop.hf.oracle import TransformersOracle, decode_greedily

    folder = Folder(path)
    if KEY not in model.options:
        sentences = read_sentences(folder)
        if sentences is not None and sentences.folder:
            folder = folder.subfolder(sentences.folder)
    engine = TransformersOracle(folder.path, model.config, model.tokenizers[1], model.temperature)
    if KEY not in model.options:
        decode_greedily(engine, model)
    return engine
