"""Restore a model, bit for bit, from a folder that `write` wrote.

config.json contains the configuration of the regard model (section `regard`), so the import does
not have to guess options that the target lacks. `convert` mostly moves numbers, so its inverse
needs no code for each architecture: a model whose tensors contain the indices of their own elements
is converted, and each tensor of the file is then copied to the indices found there. Tensors that
`convert` also scales are in a file of their own, regard.safetensors, which `transformers` does not
read. Finally, the result is converted again and must equal the file; otherwise, for example if the
weights or the options of config.json were changed later, the folder is not restored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.files import read_json
from regard.interop.hf.folder import Folder
from regard.interop.hf.sentences import read_sentences
from regard.interop.hf.tokenizer import read_chat_template
from regard.interop.hf.write_config import config_json
from regard.interop.hf.write_options import ARCHITECTURES, Architecture
from regard.interop.hf.write_tensors import calibrated, convert, inexact, scale_of
from regard.interop.hf.write_tokenizer import special_ids
from regard.interop.model import ImportedModel
from regard.interop.tensors import Weights
from regard.model.transformer import Transformer
from regard.text.imported import ImportedTokenizer, imported_from_json
from regard.text.tokenizer import LARGEST_FILE, MOST_TOKENS, SPECIALS, Tokenizer
from regard.text.tokenizer import VERSION as TOKENIZER
from regard.training.checkpoint import not_finite

KEY, VERSION = "regard", 1  # of config.json
EXACT = "regard.safetensors"  # the tensors that model.safetensors contains only rounded
SOURCE, TARGET = "source_tokenizer", "target_tokenizer"  # folders of two tokenizers
PROCESSOR = "post_processor"  # of tokenizer.json
MOST_POSITIONS = 10_000_000
MOST_COMPUTED = 2**24  # elements of a computed table, which a file need not contain
# Tensors that have no effect on the output, copies, and buffers.
UNUSED = re.compile(r"contact_head\.|^pooler\.|inv_freq$|^model\.shared\.weight$")
TABLES = ("word_embeddings.weight", "wte.weight", "embed_tokens.weight")
FIELDS = {
    "task": str, "model": dict, "max_length": int, "decoding": dict, "labels": list,
    "temperature": float, "positions": int, "tokenizers": dict,
}  # fmt: skip
# Keys of config.json that repeat another one or the dtype of the file; `transformers` omits them.
REPEATED = ("dtype", "num_labels", "rope_theta")


def restore(path: Path) -> ImportedModel | None:
    """Read a folder that regard exported.

    Args:
        path: the folder.

    Returns:
        The model with its original configuration, weights and tokenizers; None if regard did not
        export the folder, or if its options or weights were changed later.

    Raises:
        InputError: a file is damaged.
    """
    folder = Folder(path)
    values = folder.options("config.json")
    own = values.get(KEY)
    if not isinstance(own, dict) or own.get("version") != VERSION:
        return None
    where = path / "config.json"
    config = _model_config(own, where)
    labels, temperature, positions = own["labels"], own["temperature"], own["positions"]
    name = values.get("model_type")
    fitting = [a for a in ARCHITECTURES if a.name == name and not a.misfits(config)]
    if not fitting or config.custom_parts or not 0 < positions <= MOST_POSITIONS:
        return None
    tokenizers: Any = _tokenizers(folder, own, where)
    ids = special_ids(tokenizers[1], config.style)
    classes = labels if config.head == "classifier" else ()
    if not _unchanged(values, config_json(config, fitting[0], positions, ids, classes)):
        return None
    sentences = read_sentences(folder) if config.head == "pooling" else None
    if sentences is not None and (
        sentences.pooling, sentences.max_length, sentences.lower_case, sentences.folder
    ) != (config.pooling, own["max_length"], False, ""):  # fmt: skip
        return None
    tensors = _state(folder, config, fitting[0], positions, temperature)
    if tensors is None:
        return None
    return ImportedModel(
        "Hugging Face", fitting[0].name, own["task"], config, tensors, tokenizers,
        own["max_length"], labels=labels, temperature=temperature,
        chat_template=read_chat_template(folder), decoding=own["decoding"],
        options={KEY: "exported by regard, restored exactly"}, files=tuple(folder.files),
    )  # fmt: skip


def _model_config(own: Mapping[str, Any], where: Path) -> ModelConfig:
    """The configuration in the section; all other values are checked as well."""
    wrong = [name for name, kind in FIELDS.items() if type(own.get(name)) is not kind]
    if wrong:
        raise InputError(f"{where}: damaged section {KEY!r} ({', '.join(wrong)})")
    if not all(isinstance(label, str) for label in own["labels"]):
        raise InputError(f"{where}: damaged section {KEY!r} (labels)")
    if not 0.01 <= own["temperature"] <= 100:
        raise InputError(f"{where}: damaged section {KEY!r} (temperature)")
    try:
        config = ModelConfig.from_dict(own["model"])
    except (TypeError, InputError) as error:
        raise InputError(f"{where}: damaged section {KEY!r} ({error!s:.100})") from None
    if config.classes not in (None, len(own["labels"])):
        raise InputError(f"{where}: damaged section {KEY!r} (labels)")
    return config


def _unchanged(values: Mapping[str, Any], written: Mapping[str, Any]) -> bool:
    """Whether config.json still has the values that the export wrote."""
    if values.get("rope_scaling"):  # replaces rope_parameters
        return False
    return all(
        values[name] == value if name in values else value is None or name in REPEATED
        for name, value in written.items()
    )


def _state(
    folder: Folder, config: ModelConfig, architecture: Architecture, positions: int,
    temperature: float,
) -> dict[str, Tensor] | None:  # fmt: skip
    """The regard tensors; None if the files do not match the configuration."""
    weights = folder.weights()
    with torch.device("meta"):
        shapes = {name: x.shape for name, x in Transformer(config).state_dict().items()}
    total = sum(shape.numel() for shape in shapes.values())
    # The file contains each number at least once, so a wrong configuration allocates no memory.
    stored = sum(math.prod(shape) for shape in weights.shapes.values())
    table = 0 if config.positions in ("learned", "rotary") else positions * config.d_model
    if total > stored or table > max(stored, MOST_COMPUTED):
        return None
    names = inexact(shapes, config, architecture, temperature)
    if names and not folder.has(EXACT):
        return None
    exact = Weights([folder.file(EXACT)] if names else [])
    if exact.shapes != {name: tuple(shapes[name]) for name in names}:
        return None
    places = torch.arange(1, total + 1, dtype=torch.int32 if total < 2**31 else torch.int64)
    numbered, start = {}, 0
    for name, shape in shapes.items():
        numbered[name] = places[start : start + shape.numel()].view(shape)
        start += shape.numel()
    # Sinusoids are computed, so their table has no indices.
    simple = replace(config, positions="none") if config.positions == "sinusoidal" else config
    targets = {
        name: x
        for name, x in convert(numbered, simple, architecture, positions).items()
        if not x.is_floating_point()
    }
    del places, numbered
    for name, target in targets.items():
        if not _unused(name, architecture) and weights.shapes.get(name) != tuple(target.shape):
            return None
    flat = torch.full((total,), math.nan)
    scale = scale_of(config, architecture)
    # Scaled tables come first, so that an output matrix with the original values replaces them.
    for name in sorted(targets, key=lambda name: not name.endswith(TABLES)):
        if name not in weights.shapes:
            continue
        x = weights.read(name)
        if name.endswith(TABLES):
            x = x / scale
        used = targets[name] > 0
        if x.shape == used.shape:
            flat[targets[name][used].long() - 1] = x[used]
    state, start = {}, 0
    for name, shape in shapes.items():
        state[name] = flat[start : start + shape.numel()].view(shape).clone()
        start += shape.numel()
    state.update({name: exact.read(name) for name in names})
    written = convert(calibrated(state, temperature), config, architecture, positions)
    for name, x in written.items():
        if _unused(name, architecture):
            continue
        if name not in weights.shapes or not torch.equal(weights.read(name), x.float()):
            return None
    return None if not_finite(state) else state


def _unused(name: str, architecture: Architecture) -> bool:
    """Whether the restored model does not depend on a tensor of the file. A target with permuted
    sinusoids computes them itself."""
    computed = architecture.permuted and "embed_positions" in name
    return computed or UNUSED.search(name) is not None


def _tokenizers(folder: Folder, own: Mapping[str, Any], where: Path) -> tuple[Tokenizer, Tokenizer]:
    kinds = own["tokenizers"]
    if set(kinds) not in ({""}, {SOURCE, TARGET}):
        raise InputError(f"{where}: damaged section {KEY!r} (tokenizers)")
    read = {name: _tokenizer(folder, name, kind) for name, kind in kinds.items()}
    if "" in read:
        return read[""], read[""]
    return read[SOURCE], read[TARGET]


def _tokenizer(folder: Folder, name: str, kind: Any) -> Tokenizer:
    """A tokenizer from its tokenizer.json."""
    path = folder.file(f"{name}/tokenizer.json" if name else "tokenizer.json")
    content = read_json(path, LARGEST_FILE, "a tokenizer", 3 * MOST_TOKENS + 10_000)
    if isinstance(kind, dict):
        # The export replaces a post-processor that does not add the model's special tokens.
        content = {**content, PROCESSOR: kind.get(PROCESSOR)} if isinstance(content, dict) else {}
        return imported_from_json({"version": TOKENIZER, **kind, "library": content}, path)
    try:
        model = content["model"]
        if kind == "bpe":
            entries = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        else:
            ids = {id: token for token, id in model["vocab"].items()}
            entries = [ids[id] for id in range(len(SPECIALS), len(ids))]
        return Tokenizer(str(kind), [] if kind == "byte" else entries)
    except (KeyError, TypeError, AttributeError, InputError) as error:
        raise InputError(f"{path}: damaged tokenizer ({error!s:.100})") from None


def description(
    config: ModelConfig, task: str, length: int, decoding: Mapping[str, Any],
    labels: list[str], temperature: float, positions: int, tokenizers: Mapping[str, Tokenizer],
) -> dict[str, Any]:  # fmt: skip
    """The section of config.json from which `restore` reads a model.

    Args:
        config: the architecture.
        task: the name of the task.
        length: the largest number of tokens in an input.
        decoding: the options of the section `decoding`.
        labels: the labels of a model that classifies.
        temperature: the divisor of the logits of a model that classifies; 1 for other models.
        positions: the number of positions in the export.
        tokenizers: the tokenizers, keyed by the folder that contains each.

    Returns:
        Values for JSON.
    """
    kinds: dict[str, Any] = {name: tokenizer.kind for name, tokenizer in tokenizers.items()}
    for name, tokenizer in tokenizers.items():
        if isinstance(tokenizer, ImportedTokenizer):
            library = json.loads(tokenizer.fast.to_str())
            kinds[name] = {
                "specials": asdict(tokenizer.specials), "size": tokenizer.size,
                PROCESSOR: library[PROCESSOR],
            }  # fmt: skip
    return {
        "version": VERSION, "task": task, "model": config.to_dict(), "max_length": length,
        "decoding": dict(decoding), "labels": labels, "temperature": float(temperature),
        "positions": positions, "tokenizers": kinds,
    }  # fmt: skip
