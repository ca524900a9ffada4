"""Checkpoints that are whole or not there: `checkpoints/step-N/` with weights, optimiser, state.

Each is written under a temporary name, with the checksums of its files, and renamed. Reading
takes the newest one whose checksums hold and names the ones that do not. No pickle is read.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from regard.errors import InputError
from regard.files import PREFIX, checksum, new_folder, remove_leftovers

FILES = ("model.safetensors", "optimiser.safetensors")


class Checkpoints:
    def __init__(self, run: Path, keep: int, every: int) -> None:
        self.folder, self.keep, self.every = run / "checkpoints", keep, every

    def steps(self) -> list[int]:
        """The steps there are checkpoints of, oldest first; whether they are whole is not said."""
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
        with new_folder(self.path(step)) as folder:
            for name, tensors in zip(FILES, (model, optimiser), strict=True):
                (folder / name).write_bytes(save(contiguous(tensors)))
            sums = {name: checksum(folder / name) for name in FILES}
            content = json.dumps({"step": step, "checksums": sums, **state}, indent=1)
            (folder / "state.json").write_text(content + "\n", encoding="utf-8")
        self._prune()

    def _prune(self) -> None:
        """Keep the last `keep` of those at regular steps, which averaging needs, and the newest."""
        steps = self.steps()
        regular = [step for step in steps if step % self.every == 0]
        for step in set(steps) - set(regular[-self.keep :]) - {steps[-1]}:
            # Renamed first: a folder that is half removed must not look like a checkpoint.
            dying = self.path(step).rename(self.folder / f"{PREFIX}0-step-{step}")
            shutil.rmtree(dying, ignore_errors=True)

    def newest(self) -> tuple[dict[str, Any] | None, list[str]]:
        """The state of the newest whole checkpoint, and what is wrong with the newer ones."""
        remove_leftovers(self.folder)
        broken: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.check(step), broken
            except InputError as error:
                broken.append(str(error))
        return None, broken

    def check(self, step: int) -> dict[str, Any]:
        """The state of a checkpoint, once its files have the checksums they were written with."""
        path = self.path(step)
        try:
            state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
            for name, expected in state["checksums"].items():
                if name not in FILES or checksum(path / name) != expected:
                    raise InputError(f"{path / name} is damaged: its checksum does not match")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} is not a whole checkpoint: {error}") from error
        if state.get("step") != step:
            raise InputError(f"{path} holds step {state.get('step')}, not the one of its name")
        return state

    def weights(self, step: int) -> dict[str, Tensor]:
        return read_tensors(self.path(step) / FILES[0])

    def optimiser(self, step: int) -> dict[str, Tensor]:
        return read_tensors(self.path(step) / FILES[1])

    def average(self, number: int) -> tuple[dict[str, Tensor], list[int]]:
        """The mean of the weights of the last checkpoints at regular steps, and which they are."""
        steps = [step for step in self.steps() if step % self.every == 0][-number:]
        mean: dict[str, Tensor] = {}
        for step in steps:
            self.check(step)
            for name, tensor in self.weights(step).items():
                part = tensor.double() / len(steps)
                mean[name] = mean[name] + part if name in mean else part
        return {name: tensor.float() for name, tensor in mean.items()}, steps


def contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError, struct.error, ValueError) as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from error
