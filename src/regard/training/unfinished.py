"""The weights of a run that has not finished: interrupted, or still training.

A run folder without `model.safetensors` can be used: with the best weights so far, or those of the
newest checkpoint. Both may be replaced or removed by the training process at any time. Every file
is written under a temporary name and renamed, and has a checksum, so a reader sees complete files
only; where a file disappears between two reads, the reader tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from regard.errors import InputError, warn_user
from regard.training.checkpoint import Checkpoints, State, read_header, read_weights
from regard.training.model_folder import check_folder
from regard.training.names import BEST, WEIGHTS

ATTEMPTS, PAUSE = 5, 0.2  # of reading files that another process replaces; seconds between them


@dataclass(frozen=True)
class StoredWeights:
    """Weights of an unfinished run."""

    tensors: dict[str, Tensor]
    state: State  # `state.step` is the step of the weights
    name: str  # "best weights" or "newest checkpoint"

    @property
    def description(self) -> str:
        step = f"step {self.state.step:,}" if self.state.step else "unknown step"
        return f"{self.name} ({step})"


def usable_weights(run: Path) -> StoredWeights:
    """The best weights of an unfinished run, or those of its newest checkpoint.

    Raises:
        InputError: the run has no weights yet, or all of them are damaged.
    """
    return _retry(run, lambda: _best(run) or _newest(run))


def last_weights(run: Path) -> StoredWeights:
    """The weights of the newest checkpoint of a run with its state, or the best weights if there is
    no checkpoint. The run must not be training."""
    return _retry(run, lambda: _newest(run) or _best(run))


def newest_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a model, or of the newest complete checkpoint of an unfinished run."""
    if (folder / WEIGHTS).is_file():
        check_folder(folder)
        return read_weights(folder / WEIGHTS)
    return last_weights(folder).tensors


def model_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a model, whose other files have been checked. If the run has not finished: its
    `usable_weights`, with a warning that names their step."""
    if (folder / WEIGHTS).is_file():
        return read_weights(folder / WEIGHTS)
    stored = usable_weights(folder)
    warn_user(f"{folder} has not finished training: using its {stored.description}")
    return stored.tensors


def _retry(run: Path, read: Callable[[], StoredWeights | None]) -> StoredWeights:
    """Call `read` until it returns weights."""
    for attempt in range(ATTEMPTS):
        if (stored := read()) is not None:
            return stored
        if not (run / BEST).exists() and not Checkpoints(run).steps():
            raise InputError(
                f"{run} has no weights yet: neither model.safetensors nor {BEST} nor a checkpoint"
            )
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE)
    _raise_damage(run)
    raise InputError(f"{run} changes faster than it can be read: try again")


def _best(run: Path) -> StoredWeights | None:
    """The best weights; None if there are none, or if they cannot be read now."""
    try:
        step = read_header(run / BEST).metadata.get("step", "")
        tensors = read_weights(run / BEST)
    except InputError:
        return None
    return StoredWeights(tensors, State(step=int(step) if step.isdigit() else 0), "best weights")


def _newest(run: Path) -> StoredWeights | None:
    """The newest valid checkpoint; None if there is none, or if it cannot be read now."""
    checkpoints = Checkpoints(run)
    for step in reversed(checkpoints.steps()):
        path = checkpoints.path(step)
        try:
            state = State.of(checkpoints.check(step, (WEIGHTS,)), path)
            return StoredWeights(read_weights(path / WEIGHTS), state, "newest checkpoint")
        except InputError:
            continue
    return None


def _raise_damage(run: Path) -> None:
    """Raise the error of the weights that cannot be read, if they still cannot."""
    if (run / BEST).exists():
        read_weights(run / BEST)
    for step in reversed(Checkpoints(run).steps()):
        Checkpoints(run).check(step, (WEIGHTS,))
        read_weights(Checkpoints(run).path(step) / WEIGHTS)
