"""Restore a model, bit for bit, from a folder that `export_hf.write` wrote.

config.json contains the configuration of the regard model (section `regard`), so the import does
not have to guess options that the target lacks. `convert` only moves numbers, so its inverse needs
no code for each architecture: a model whose tensors contain the indices of their own elements is
converted, and each tensor of the file is then copied to the indices found there. Finally, the
result is converted again and must equal the file; otherwise, for example if the weights were
changed in a way that regard cannot express, the folder is not restored.
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
from regard.interop.hf.tokenizer import read_chat_template
from regard.interop.hf.write_options import ARCHITECTURES, Architecture
from regard.interop.hf.write_tensors import convert
from regard.interop.model import ImportedModel
from regard.interop.tensors import Weights
from regard.model.transformer import Transformer
from regard.text.imported import ImportedTokenizer, imported_from_json
from regard.text.tokenizer import LARGEST_FILE, MOST_TOKENS, SPECIALS, Tokenizer
from regard.text.tokenizer import VERSION as TOKENIZER

KEY, VERSION = "regard", 1  # of config.json
SOURCE, TARGET = "source_tokenizer", "target_tokenizer"  # folders of two tokenizers
PROCESSOR = "post_processor"  # of tokenizer.json
MOST_POSITIONS = 10_000_000
MOST_COMPUTED = 2**24  # elements of a computed table, which a file need not contain
# Tensors that have no effect on the output, or that the class computes.
UNUSED = re.compile(r"contact_head\.|^pooler\.|inv_freq$|^model\.shared\.weight$|embed_positions")
TABLES = ("word_embeddings.weight", "wte.weight", "embed_tokens.weight")


def restore(path: Path) -> ImportedModel | None:
    """Read a folder that regard exported.

    Args:
        path: the folder.

    Returns:
        The model with its original configuration, weights and tokenizers; None if regard did not
        export the folder, or if the weights no longer match this configuration.

    Raises:
        InputError: a file is damaged.
    """
    folder = Folder(path)
    values = folder.options("config.json", required=True)
    own = values.get(KEY)
    if not isinstance(own, dict) or own.get("version") != VERSION:
        return None
    where = path / "config.json"
    try:
        config = ModelConfig.from_dict(own["model"])
        task, length, decoding = str(own["task"]), int(own["max_length"]), dict(own["decoding"])
        labels = [str(label) for label in own["labels"]]
        positions = int(own["positions"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: damaged section {KEY!r} ({error!s:.100})") from None
    name = values.get("model_type")
    fitting = [a for a in ARCHITECTURES if a.name == name and not a.misfits(config)]
    if not fitting or config.custom_parts or not 0 < positions <= MOST_POSITIONS:
        return None
    tensors = _state(folder.weights(), config, fitting[0], positions)
    if tensors is None:
        return None
    tokenizers: Any = _tokenizers(folder, own, where)
    return ImportedModel(
        "Hugging Face", fitting[0].name, task, config, tensors, tokenizers, length, labels=labels,
        chat_template=read_chat_template(folder), decoding=decoding,
        options={KEY: "exported by regard, restored exactly"}, files=tuple(folder.files),
    )  # fmt: skip


def _state(
    weights: Weights, config: ModelConfig, architecture: Architecture, positions: int
) -> dict[str, Tensor] | None:
    """The regard tensors; None if the file does not match the configuration."""
    with torch.device("meta"):
        shapes = {name: x.shape for name, x in Transformer(config).state_dict().items()}
    total = sum(shape.numel() for shape in shapes.values())
    # The file contains each number at least once, so a wrong configuration allocates no memory.
    stored = sum(math.prod(shape) for shape in weights.shapes.values())
    table = 0 if config.positions in ("learned", "rotary") else positions * config.d_model
    if total > stored or table > max(stored, MOST_COMPUTED):
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
        if not UNUSED.search(name) and weights.shapes.get(name) != tuple(target.shape):
            return None
    flat = torch.zeros(total)
    scaled = config.scale_embeddings and not architecture.scaled
    # Scaled tables come first, so that an output matrix with the original values replaces them.
    for name in sorted(targets, key=lambda name: not name.endswith(TABLES)):
        if name not in weights.shapes:
            continue
        x = weights.read(name)
        if scaled and name.endswith(TABLES):
            x = unscaled(x, math.sqrt(config.d_model))
        used = targets[name] > 0
        if x.shape == used.shape:
            flat[targets[name][used].long() - 1] = x[used]
    state, start = {}, 0
    for name, shape in shapes.items():
        state[name] = flat[start : start + shape.numel()].view(shape).clone()
        start += shape.numel()
    for name, x in convert(state, config, architecture, positions).items():
        if UNUSED.search(name):
            continue
        if name not in weights.shapes or not torch.equal(weights.read(name), x.float()):
            return None
    return state


def unscaled(x: Tensor, factor: float) -> Tensor:
    """A tensor y with y * factor = x in float32."""
    y = x / factor
    for other in (math.inf, -math.inf):
        near = torch.nextafter(y, torch.full_like(y, other))
        y = torch.where((y * factor != x) & (near * factor == x), near, y)
    return y


def _tokenizers(folder: Folder, own: Mapping[str, Any], where: Path) -> tuple[Tokenizer, Tokenizer]:
    kinds = own.get("tokenizers")
    if not isinstance(kinds, dict) or set(kinds) not in ({""}, {SOURCE, TARGET}):
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
    labels: list[str], positions: int, tokenizers: Mapping[str, Tokenizer],
) -> dict[str, Any]:  # fmt: skip
    """The section of config.json from which `restore` reads a model.

    Args:
        config: the architecture.
        task: the name of the task.
        length: the largest number of tokens in an input.
        decoding: the options of the section `decoding`.
        labels: the names of the classes of a classifier.
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
        "decoding": dict(decoding), "labels": labels, "positions": positions, "tokenizers": kinds,
    }  # fmt: skip
