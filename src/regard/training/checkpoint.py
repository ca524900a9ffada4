"""Checkpoints: `checkpoints/step-N/` with the weights, the optimiser's state and the run's state.

Each is written under a temporary name, with the checksums of its files, and renamed, so it is
complete or absent. Reading starts at the newest, verifies the checksums and names every damaged
file. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from regard.errors import InputError
from regard.files import PREFIX, checksum, new_folder, remove_leftovers
from regard.training.int8 import unpacked

FILES = ("model.safetensors", "optimiser.safetensors")


class Checkpoints:
    """The checkpoints of a run. `keep` and `every` matter only for saving and averaging."""

    def __init__(self, run: Path, keep: int = 1, every: int = 1) -> None:
        self.folder, self.keep, self.every = run / "checkpoints", keep, every

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, damaged or not, oldest first."""
        names = [p.name for p in self.folder.glob("step-*") if p.name[5:].isdigit()]
        return sorted(int(name[5:]) for name in names)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def save(
        self,
        step: int,
        model: dict[str, Tensor],
        optimiser: dict[str, Tensor],
        state: dict[str, Any],
    ) -> None:
        # An existing one is damaged: otherwise the run would have resumed from it.
        with new_folder(self.path(step), replace=True) as folder:
            for name, tensors in zip(FILES, (model, optimiser), strict=True):
                (folder / name).write_bytes(to_bytes(tensors))
            sums = {name: checksum(folder / name) for name in FILES}
            values = {**state, "step": step, "checksums": sums}
            content = json.dumps({**values, "checksum": digest(values)}, indent=1)
            (folder / "state.json").write_text(content + "\n", encoding="utf-8")
        self._prune(step)

    def _prune(self, saved: int) -> None:
        """Keep the newest checkpoint and the last `keep` at regular steps, which averaging needs.
        Later ones are damaged: otherwise the run would have resumed from them."""
        for step in self.steps():
            if step > saved:
                self._remove(step)
        steps = self.steps()
        regular = [step for step in steps if step % self.every == 0]
        for step in set(steps) - set(regular[-self.keep :]) - {steps[-1]}:
            self._remove(step)

    def _remove(self, step: int) -> None:
        # Renamed first: a partly removed folder must not look like a checkpoint.
        dying = self.path(step).rename(self.folder / f"{PREFIX}0-step-{step}")
        shutil.rmtree(dying, ignore_errors=True)

    def newest(self) -> tuple[dict[str, Any] | None, list[str]]:
        """The state of the newest checkpoint that is whole, and what is wrong with newer ones."""
        remove_leftovers(self.folder)
        broken: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.check(step), broken
            except InputError as error:
                broken.append(str(error))
        return None, broken

    def check(self, step: int) -> dict[str, Any]:
        """The state of a checkpoint whose files match their checksums; else an InputError."""
        path = self.path(step)
        try:
            state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
            own = state.pop("checksum")
            if own != digest(state):
                raise InputError(f"{path / 'state.json'} is damaged: its checksum does not match")
            for name in FILES:
                if checksum(path / name) != state["checksums"][name]:
                    raise InputError(f"{path / name} is damaged: its checksum does not match")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is not a whole checkpoint: {error}") from error
        if state.get("step") != step:
            raise InputError(f"{path} holds step {state.get('step')}, which is not its name's")
        return state

    def weights(self, step: int) -> dict[str, Tensor]:
        return read_tensors(self.path(step) / FILES[0])

    def optimiser(self, step: int) -> dict[str, Tensor]:
        return read_tensors(self.path(step) / FILES[1])

    def averaged(self, number: int, last: int) -> list[int]:
        """The steps whose mean is a candidate for the final weights of a run that ends at step
        `last`: the last `number` regular ones."""
        return [*range(self.every, last + 1, self.every)][-number:]

    def damage(self, step: int) -> str:
        """What is wrong with the checkpoint of a step; empty if it is whole."""
        try:
            self.check(step)
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
    """Copies on the CPU that share no memory with the tensors, wherever these are."""
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}


def contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, row by row; those that are so already keep their memory."""
    return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}


def not_finite(tensors: dict[str, Tensor]) -> str:
    """The name of a tensor that contains NaN or infinity; empty if there is none."""
    return next((name for name, t in tensors.items() if not bool(t.isfinite().all())), "")


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """A safetensors file that knows its own checksum."""
    tensors = contiguous(tensors)
    return save(tensors, metadata={"sha256": tensor_digest(tensors)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, once they are those that were written; matrices that are
    in bytes there are numbers again."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            expected = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from error
    if expected is not None and expected != tensor_digest(tensors):
        raise InputError(f"{path} is damaged: its checksum does not match")
    return unpacked(tensors, path)


def tensor_digest(tensors: dict[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
