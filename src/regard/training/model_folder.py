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
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from regard.config.parameters import closed_form
from regard.config.sections import Config
from regard.config.settings import read_yaml
from regard.errors import InputError
from regard.files import parse_json, read_bounded
from regard.model.quantise import SUFFIX
from regard.model.transformer import Transformer
from regard.training.checkpoint import Checkpoints, Header, read_header, read_weights

NAMES = ("config.yaml", "tokenizer.json", "source-tokenizer.json", "labels.json")
LARGEST = 32 * 2**20  # bytes of one of these files
DTYPES = ("F32", "F16", "BF16", "F64", "I8")  # of weights, as safetensors names them
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

    Args:
        metadata: the metadata of model.safetensors. If it has no checksums, because an earlier
            version saved the model, nothing is compared.
    """
    if KEY not in metadata:
        return
    try:
        saved = parse_json(metadata[KEY].encode())
    except ValueError as error:
        saved = error
    if not isinstance(saved, dict):
        raise InputError(f"{folder / 'model.safetensors'} is damaged: its checksums are not JSON")
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
    header = read_header(folder / "model.safetensors")
    if not changed:
        check_files(folder, header.metadata)
    config = Config.load(folder / "config.yaml")
    shapes = {name: shape for name, shape in header.shapes.items() if not is_scale(name, header)}
    for name in shapes:
        if header.dtypes[name] not in DTYPES:
            raise InputError(
                f"{folder}: {name} has the unsupported dtype {header.dtypes[name]:.20}"
            )
    layers = config.model.encoder_layers + config.model.decoder_layers
    expected = sum(part.parameters for part in closed_form(config.model).values())
    stored = sum(map(math.prod, shapes.values()))
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


def newest_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a model, or of the newest complete checkpoint of an unfinished run."""
    if (folder / "model.safetensors").is_file():
        check_folder(folder)
        return read_weights(folder / "model.safetensors")
    checkpoints = Checkpoints(folder)
    state, _ = checkpoints.newest()
    if state is None:
        raise InputError(f"{folder} has neither model.safetensors nor a complete checkpoint")
    return read_weights(checkpoints.path(state["step"]) / "model.safetensors")


def read_config(folder: Path) -> Config:
    """The configuration of a model, checked against its weights if it has any."""
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is not a model: it has no config.yaml")
    if (folder / "model.safetensors").is_file():
        return check_folder(folder)
    return Config.load(folder / "config.yaml")


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
