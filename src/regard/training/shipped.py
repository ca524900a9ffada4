"""The models that come with the package, one folder for each verb: `box:translate`.

That name stands for the folder wherever a model is asked for: `-m box:fill`, `--from box:fill`,
`regard.load("box:fill")`. Each verb uses its own when no `-m` is given. Nothing is downloaded. How
each was made is in its README.md, and `regard pack` makes such a folder of any trained model.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from regard.errors import InputError, unknown

FOLDER = Path(__file__).parent.parent / "box"
PREFIX = "box:"


def boxed(task: str) -> str:
    """What the model in the box for this task is called."""
    return f"{PREFIX}{task}"


def is_boxed(model: str | Path) -> bool:
    return str(model).startswith(PREFIX)


def contents() -> list[str]:
    """The tasks that have a model in the box, in alphabetical order."""
    needed = ("config.yaml", "model.safetensors")
    folders = sorted(path for path in FOLDER.iterdir() if path.is_dir())
    return [path.name for path in folders if all((path / name).is_file() for name in needed)]


def folder_of(model: str | Path) -> Path:
    """The folder of a model: as it is, or the one in the box that is named."""
    if not is_boxed(model):
        return Path(model)
    task = str(model).removeprefix(PREFIX)
    known = contents()
    if task not in known:
        if not task.isidentifier() or get_close_matches(task, known, cutoff=0.75):
            raise unknown("model in the box", task, known)
        raise InputError(
            f"there is no model in the box to {task}: train one with `regard train --task {task}` "
            "and name its folder with -m (docs/tasks.md)"
        )
    return FOLDER / task
