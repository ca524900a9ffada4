"""Checkpoints: `checkpoints/step-N/` with the weights, the optimiser's state and the run's state.

A checkpoint is written under a temporary name, with the checksums of its files, and renamed, so it
is complete or absent. Reading starts with the newest one, verifies the checksums and reports every
damaged file. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from regard.errors import InputError
from regard.files import (
    PREFIX,
    checksum,
    new_folder,
    open_regular,
    parse_json,
    read_bounded,
    remove_leftovers,
)
from regard.model.quantise import dequantise_all
from regard.training.names import CHECKPOINTS, OPTIMISER, STATE, WEIGHTS

FILES = (WEIGHTS, OPTIMISER)
LARGEST_STATE, LARGEST_HEADER = 8 * 2**20, 16 * 2**20  # bytes of state.json, of a tensor header
MOST_VALUES = 1_000_000  # in a safetensors header; a tensor takes about seven


@dataclass
class State:
    """The values of a checkpoint, beside its tensors; `state.json` has the options as well."""

    step: int = 0
    rows: int = 1  # rows per step, over all processes
    best: float = -math.inf  # the best validation score
    best_step: int = 0  # the step that has it
    waited: int = 0  # validations since that step
    dropped: int = 0  # steps without a finite loss
    pieces: int = 1  # pieces that each row is cut into, after memory ran out
    seconds: float = 0.0  # training time so far
    corpus: str = ""  # fingerprint of the training data

    @classmethod
    def of(cls, values: dict[str, Any], path: Path) -> State:
        """The state that a checkpoint holds; an InputError if a value is missing or impossible."""
        own: dict[str, Any] = {field.name: values.get(field.name) for field in fields(cls)}
        for name, value in own.items():
            kind = type(getattr(cls, name))
            possible = type(value) is kind or (kind is float and type(value) is int)
            if possible and kind is int:
                possible = 0 <= value < 2**63
            elif possible and kind is float:
                possible = not math.isnan(value) and (name == "best" or 0 <= value < 1e12)
            if not possible:
                raise InputError(f"{path / STATE} is damaged: {name} is {value!r:.40}")
        return cls(**own)


class Checkpoints:
    """The checkpoints of a run. `keep` and `every` matter only for saving and averaging."""

    def __init__(self, run: Path, keep: int = 1, every: int = 1) -> None:
        self.folder, self.keep, self.every = run / CHECKPOINTS, keep, every

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, damaged or not, oldest first."""
        names = [p.name for p in self.folder.glob("step-*") if p.name[5:].isdigit()]
        return sorted(int(name[5:]) for name in names)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def save(
        self, step: int, model: dict[str, Tensor], optimiser: dict[str, Tensor],
        state: dict[str, Any],
    ) -> None:  # fmt: skip
        # An existing checkpoint is damaged: otherwise the run would have resumed from it.
        with new_folder(self.path(step), replace=True) as folder:
            for name, tensors in zip(FILES, (model, optimiser), strict=True):
                (folder / name).write_bytes(to_bytes(tensors))
            sums = {name: checksum(folder / name) for name in FILES}
            values = {**state, "step": step, "checksums": sums}
            content = json.dumps({**values, "checksum": digest(values)}, indent=1)
            (folder / STATE).write_text(content + "\n", encoding="utf-8")
        self._prune(step)

    def _prune(self, saved: int) -> None:
        """Keep the newest checkpoint and the last `keep` at regular steps, which averaging needs.
        Later checkpoints are damaged: otherwise the run would have resumed from them."""
        regular = [s for s in self.steps() if s % self.every == 0 and s <= saved]
        for step in set(self.steps()) - set(regular[-self.keep :]) - {saved}:
            # Renamed first: a partly removed folder must not look like a checkpoint.
            dying = self.path(step).rename(self.folder / f"{PREFIX}0-step-{step}")
            shutil.rmtree(dying, ignore_errors=True)

    def newest(self) -> tuple[dict[str, Any] | None, list[str]]:
        """The state of the newest valid checkpoint, and the errors of newer ones."""
        remove_leftovers(self.folder)
        broken: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.check(step), broken
            except InputError as error:
                broken.append(str(error))
        return None, broken

    def check(self, step: int, files: tuple[str, ...] = FILES) -> dict[str, Any]:
        """The state of a checkpoint; an InputError if a file does not match its checksum."""
        path = self.path(step)
        try:
            content = read_bounded(path / STATE, LARGEST_STATE, "a state")
            state: dict[str, Any] = json.loads(content)  # -Infinity: there is no score yet
            own = state.pop("checksum")
            if own != digest(state):
                raise InputError(f"{path / STATE} is damaged: its checksum does not match")
            for name in files:
                if checksum(path / name) != state["checksums"][name]:
                    raise InputError(f"{path / name} is damaged: its checksum does not match")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if "is damaged" in str(error):
                raise
            raise InputError(f"{path} is not a complete checkpoint: {error}") from error
        if state.get("step") != step:
            raise InputError(f"{path} holds step {state.get('step')}, not the step in its name")
        return state

    def weights(self, step: int) -> dict[str, Tensor]:
        return read_tensors(self.path(step) / FILES[0])

    def optimiser(self, step: int) -> dict[str, Tensor]:
        return read_tensors(self.path(step) / FILES[1])

    def averaged(self, number: int, last: int) -> list[int]:
        """The steps whose mean weights are a candidate for the final weights of a run that ends at
        step `last`: the last `number` regular steps."""
        return list(range(self.every, last + 1, self.every)[-number:])

    def damage(self, step: int) -> str:
        """Why the weights of a step's checkpoint cannot be used; empty if they are valid."""
        try:
            self.check(step, FILES[:1])
        except InputError as error:
            return str(error)
        return ""

    def average(self, steps: list[int]) -> dict[str, Tensor]:
        """The mean of the weights of these checkpoints."""
        mean: dict[str, Tensor] = {}
        for step in steps:
            for name, tensor in self.weights(step).items():
                part = tensor.double() / len(steps)
                mean[name] = mean[name] + part if name in mean else part
        return {name: tensor.float() for name, tensor in mean.items()}


def snapshot(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU that never share memory with the tensors."""
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}


def not_finite(tensors: Mapping[str, Tensor]) -> str:
    """The name of a tensor that contains NaN or infinity; empty if there is none."""
    for name, tensor in tensors.items():
        # One pass without extra memory; aminmax returns NaN for a tensor that contains NaN.
        extremes = tensor.aminmax() if tensor.is_floating_point() and tensor.numel() else ()
        if not all(map(math.isfinite, map(float, extremes))):
            return name
    return ""


def to_bytes(
    tensors: dict[str, Tensor], files: Mapping[str, str] | None = None, step: int | None = None
) -> bytes:
    """A safetensors file with the checksum of its tensors in its metadata.

    files: the checksums of the files that belong to these weights (model_folder.py).
    step: the step of a run that has these weights.
    """
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    metadata = {"sha256": tensor_digest(tensors)}
    if step is not None:
        metadata["step"] = str(step)
    if files is None:
        return save(tensors, metadata=metadata)
    metadata["files"] = json.dumps(dict(files), sort_keys=True)
    content = save(tensors, metadata=metadata)
    # The library writes the metadata in a different order each time: use a fixed one.
    end = 8 + int.from_bytes(content[:8], "little")
    header = {**json.loads(content[8:end]), "__metadata__": metadata}
    text = json.dumps(header, separators=(",", ":")).encode().ljust(end - 8)
    return b"".join([len(text).to_bytes(8, "little"), text, memoryview(content)[end:]])


class Header(NamedTuple):
    """The header of a safetensors file."""

    dtypes: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """The names, types and shapes of the tensors of a safetensors file, without reading them."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        content = file.read(length) if 2 <= length <= min(LARGEST_HEADER, size - 8) else b""
    try:
        if not content:
            raise ValueError(f"its header has {length:,} bytes, but the file has {size:,}")
        entries = parse_json(content, MOST_VALUES)
        metadata = entries.pop("__metadata__", {})
        header = Header(
            {name: str(entry["dtype"]) for name, entry in entries.items()},
            {name: tuple(map(_size, entry["shape"])) for name, entry in entries.items()},
            {str(key): str(value) for key, value in metadata.items()},
        )
        end = max((_size(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        end += 8 + length
        if end != size:
            raise ValueError(f"its tensors end at byte {end:,}, but the file has {size:,}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path} is not a valid safetensors file: {error}") from None
    return header


def _size(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.40} is not a size")
    return value


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; verifies their checksum and dequantises int8 matrices."""
    return dequantise_all(read_raw(path), path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """`read_tensors` for the weights of a model, in float32 and without NaN or infinity."""
    tensors = {name: tensor.float() for name, tensor in read_tensors(path).items()}
    if name := not_finite(tensors):
        raise InputError(
            f"{path}: {name} contains NaN or infinity: restore the file, or train the model again"
        )
    return tensors


def read_raw(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file as they are stored; verifies their checksum."""
    expected = read_header(path).metadata.get("sha256")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path} is not a valid safetensors file: {error}") from error
    if expected is not None and expected != tensor_digest(tensors):
        raise InputError(f"{path} is damaged: its checksum does not match")
    return tensors


def tensor_digest(tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
