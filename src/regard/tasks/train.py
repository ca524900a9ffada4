"""A training run of any task, and the end of an interrupted one.

`regard.train` (regard/predictor/training.py) is the interface for users; it makes a configuration
and calls `train_config`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.config.sections import Config
from regard.tasks.registry import find_task
from regard.training import run
from regard.training.callbacks import Callbacks


def train_config(
    config: Config | None,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    force: bool = False,
    start_from: str | os.PathLike[str] | None = None,
    device: str = "auto",
    quiet: bool = False,
    command: Sequence[str] = (),
    callbacks: Callbacks | None = None,
    data_folder: Path | None = None,
) -> dict[str, Any]:
    """Train the model of a configuration and write its folder.

    Args:
        config: the configuration; may be None if `resume` continues a run, and otherwise must equal
            that of the run, except for training.steps.
        out: the run folder.
        resume: continue the run at `out`, or start it if there is none.
        force: continue without damaged checkpoints or best weights.
        start_from: the model folder (or `box:NAME`) whose weights and vocabulary to start from.
        device: auto, cpu or cuda.
        quiet: print nothing.
        command: the arguments of `regard`, for the model card; empty if called from Python.
        callbacks: functions to call while the model is trained.
        data_folder: a folder of data files, which is moved into a new run folder.

    Returns:
        The final scores; empty in all processes but the first.

    Raises:
        InputError: the configuration, a data file or the run folder cannot be used.
        TrainingFailed: training failed for another reason; the last valid state is saved.
    """
    return run.train(
        config, Path(out), find_task=find_task, resume=resume,
        force=force, start_from=None if start_from is None else Path(start_from), device=device,
        quiet=quiet, command=command, callbacks=callbacks, data_folder=data_folder,
    )  # fmt: skip


def finish_run(
    folder: str | os.PathLike[str],
    *,
    force: bool = False,
    device: str = "auto",
    quiet: bool = False,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Choose and write the final weights of an interrupted run without further training.

    The candidates are those of the end of any run: the weights of the newest checkpoint, the best
    weights, and the mean of the last checkpoints. The run can still be resumed afterwards.

    Args:
        folder: the run folder.
        force: continue without damaged checkpoints or best weights.
        device: auto, cpu or cuda.
        quiet: print nothing.
        command: the arguments of `regard`, for a missing model card; empty if called from Python.

    Returns:
        The final scores; empty without validation data.

    Raises:
        InputError: the folder is not a run, has no weights yet, or is in use by another process; or
            the validation data cannot be read.
        TrainingFailed: all weights contain NaN or infinity.
    """
    return run.finish_run(
        Path(folder), find_task=find_task, force=force, device=device, quiet=quiet, command=command
    )
