"""The weights of a model folder, and the files that belong to them.

`model.safetensors` contains the checksum of its tensors and the checksums of the files that affect
the results of the model. A folder whose vocabulary or options differ from those that the weights
were saved with is refused, because it would give wrong results. `README.md`, `metrics.jsonl`, and
in `config.yaml` the section `training`, the names of the data files, comments and formatting do not
affect the results and can be edited freely.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.config.model import ModelConfig
from regard.config.parameters import closed_form
from regard.config.sections import Config
from regard.config.settings import read_yaml
from regard.errors import InputError
from regard.files import open_regular, parse_json, read_bounded
from regard.model.quantise import SUFFIX
from regard.model.transformer import Transformer
from regard.text.loading import load_tokenizer
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import Header, read_header
from regard.training.names import (
    CHAT_TEMPLATE,
    CONFIG,
    LABELS,
    SOURCE_TOKENIZER,
    TOKENIZER,
    WEIGHTS,
)
from regard.training.shipped import no_model

# Files that belong to the weights.
NAMES = (CONFIG, TOKENIZER, SOURCE_TOKENIZER, LABELS, CHAT_TEMPLATE)
LARGEST = 32 * 2**20  # bytes of one of these files
DTYPES = ("F32", "F16", "BF16", "F64", "I8")  # of weights, as safetensors names them
LONGEST_LINE = 100_000  # bytes of the last line of the metrics
KEY = "files"  # in the metadata of model.safetensors


def file_checksums(folder: Path) -> dict[str, str]:
    """The sha256 of each file of a model folder that belongs to its weights."""
    return {name: _checksum(folder / name) for name in NAMES if (folder / name).exists()}


def _checksum(path: Path) -> str:
    if path.suffix == ".yaml":
        values = read_yaml(path)
        values.pop("training", None)
        for name in ("train", "valid"):
            values.get("data", {}).pop(name, None)
        content = json.dumps(values, sort_keys=True).encode()
    else:
        content = read_bounded(path, LARGEST, "a file of a model")
    return hashlib.sha256(content).hexdigest()


def check_files(folder: Path, metadata: Mapping[str, str]) -> None:
    """Refuse a folder with a file that differs from the one its weights were saved with.

    metadata: that of model.safetensors. If it has no checksums, because an earlier version saved
    the model, nothing is compared.
    """
    if KEY not in metadata:
        return
    try:
        saved = parse_json(metadata[KEY].encode())
    except ValueError as error:
        saved = error
    if not isinstance(saved, dict):
        raise InputError(f"{folder / WEIGHTS} is damaged: its checksums are not JSON")
    present = file_checksums(folder)
    for name in NAMES:
        if saved.get(name) != present.get(name):
            state = "is not the one that model.safetensors was saved with"
            if name not in present:
                state = "is missing: model.safetensors was saved with it"
            raise InputError(
                f"{folder / name} {state}; restore it, or, if the change is intended, run: "
                f"regard info {folder} --accept-changes"
            )


def check_folder(folder: Path, changed: bool = False) -> Config:
    """Check that the files of a finished model are those that the weights were saved with (unless
    `changed` is set) and that the sizes match the weights. Returns the configuration. No memory for
    weights is allocated before the checks have passed."""
    header = read_header(folder / WEIGHTS)
    if not changed:
        check_files(folder, header.metadata)
    config = Config.load(folder / CONFIG)
    shapes = {name: shape for name, shape in header.shapes.items() if not is_scale(name, header)}
    for name in shapes:
        if header.dtypes[name] not in DTYPES:
            dtype = header.dtypes[name]
            raise InputError(f"{folder}: {name} has the unsupported dtype {dtype:.20}")
    layers = config.model.encoder_layers + config.model.decoder_layers
    expected = sum(part.parameters for part in closed_form(config.model).values())
    stored = sum(map(math.prod, shapes.values()))
    if config.model.custom_parts:  # their size is not known: `load_weights` compares the shapes
        expected = min(expected, stored)
    if expected != stored:
        if layers <= len(shapes) and expected <= 2 * stored:  # small enough to find the tensor
            check_shapes(Transformer(config.model), shapes, folder)
        raise InputError(
            f"{folder}: config.yaml describes a model with {expected:,} parameters, but "
            f"model.safetensors has {stored:,}"
        )
    return config


def is_scale(name: str, header: Header) -> bool:
    """Whether a tensor is the scale of an int8 matrix (model/quantise.py)."""
    return name.endswith(SUFFIX) and header.dtypes.get(name.removesuffix(SUFFIX)) == "I8"


def read_config(folder: Path, changed: bool = False) -> Config:
    """The configuration of a model, checked against its final weights if it has any (see
    `check_folder`)."""
    if not (folder / CONFIG).is_file():
        raise no_model(folder)
    if (folder / WEIGHTS).is_file():
        return check_folder(folder, changed)
    return Config.load(folder / CONFIG)


def load_tokenizers(
    folder: Path, model: ModelConfig | None = None,
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
) -> tuple[Tokenizer, Tokenizer]:  # fmt: skip
    """The vocabularies of source and target.

    model: refuse vocabularies of a different size. tokenizers: those of a model whose tokenizers
    are Python objects, which are not saved (text/external.py).
    """
    sizes = (model.source_vocabulary_size, model.vocabulary_size) if model else (None, None)
    own = folder / SOURCE_TOKENIZER
    passed = (None, None) if tokenizers is None else tokenizers
    target = load_tokenizer(folder / TOKENIZER, sizes[1], passed[1])
    if own.exists():
        return load_tokenizer(own, sizes[0], passed[0]), target
    if sizes[0] != sizes[1]:
        raise InputError(f"{own} is missing: the model has a separate source vocabulary")
    return target, target


def load_weights(model: Transformer, tensors: dict[str, Tensor], where: Path) -> None:
    """Load weights into a model; weights of a different shape are an InputError."""
    check_shapes(model, {name: tuple(t.shape) for name, t in tensors.items()}, where)
    model.load_state_dict(tensors)


def check_shapes(model: Transformer, shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    """Refuse tensors whose names or shapes differ from the model's; name the first difference."""
    ours = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(ours.keys() | shapes.keys()):
        has = [str(list(t[name])) if name in t else "nothing" for t in (shapes, ours)]
        if has[0] != has[1]:
            raise InputError(f"{where}: {name:.80} is {has[0]:.80} but the model needs {has[1]}")


def final_scores(run: Path) -> dict[str, Any]:
    """The final record of a run, which is the last line of its metrics; empty if the run has not
    finished or the line is not valid."""
    try:
        with open_regular(run / "metrics.jsonl") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_LINE))
            last = parse_json(file.read(LONGEST_LINE).splitlines()[-1])
    except (ValueError, IndexError):  # no such file, no line, or an incomplete line
        return {}
    known = isinstance(last, dict) and "final" in last
    known = known and all(type(value) in (str, int, float) for value in last.values())
    return last if known and "".join(map(str, [*last, *last.values()])).isprintable() else {}
