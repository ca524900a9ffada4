"""The models that come with the package, in the folders of `box/`: `box:translate`.

The name `box:NAME` can be used wherever a model is needed: `-m box:fill`, `--from box:fill`,
`regard.load("box:fill")`. Each verb uses its own model in the box if there is no `-m`. Nothing is
downloaded. The README.md of each model says how it was trained, and `regard pack` makes such a
folder from any trained model.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from regard.errors import InputError, unknown
from regard.training.names import CONFIG, WEIGHTS

FOLDER = Path(__file__).parent.parent / "box"
PREFIX = "box:"


def boxed(task: str) -> str:
    """The name of the model in the box for a task."""
    return f"{PREFIX}{task}"


def is_boxed(model: str | os.PathLike[str]) -> bool:
    """Whether this is the name of a model in the box, not a path."""
    return os.fspath(model).startswith(PREFIX)


def contents() -> list[str]:
    """The tasks that have a model in the box, in alphabetical order."""
    folders = [path.parent for path in FOLDER.glob(f"*/{WEIGHTS}")]
    return sorted(folder.name for folder in folders if (folder / CONFIG).is_file())


def folder_of(model: str | os.PathLike[str]) -> Path:
    """The folder of a model, which is given as a path or as the name of a model in the box."""
    if not is_boxed(model):
        name = os.fspath(model).lower().removeprefix(PREFIX)
        if not Path(model).exists() and name in contents():
            raise InputError(
                f'{os.fspath(model)} is not a model: there is no such folder; "{boxed(name)}" is '
                "the model in the box"
            )
        return Path(model)
    task = os.fspath(model).removeprefix(PREFIX)
    known = contents()
    if task not in known:
        if not task.isidentifier() or get_close_matches(task, known, cutoff=0.75):
            raise unknown("model in the box", task, known)
        names = ", ".join(map(boxed, known)) or "no models"
        raise InputError(
            f"there is no model {model}; the box has {names}: use one of them, or the folder of a "
            "model that you trained"
        )
    return FOLDER / task


def model_name(folder: Path) -> str:
    """The name of a model for a message: `box:NAME` instead of the folder of the package."""
    return boxed(folder.name) if folder.parent == FOLDER else str(folder)


def no_model(folder: Path) -> InputError:
    """The error for a folder that does not exist or is not a model."""
    if not folder.exists():
        return InputError(f"{folder}: no such folder (expected a model folder or box:NAME)")
    message = f"{folder} is not a model: it has no {CONFIG}"
    if folder.suffix == ".gguf" or (folder / "config.json").is_file():
        message += f"; to use a model of another toolkit: regard import {folder} --out MODEL"
    return InputError(message)
