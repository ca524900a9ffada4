"""The files of a Marian model: the weights, the vocabularies and the options of a runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from regard.config.settings import parse_yaml
from regard.errors import InputError
from regard.files import read_bounded
from regard.interop.formats import MARIAN, first_bytes

LARGEST_OPTIONS = 2**20  # bytes of a configuration file of the runtime


@dataclass(frozen=True)
class Files:
    """The files of a model, and the options of a runtime."""

    folder: Path
    model: Path
    source: Path  # vocabularies; the same file twice if they are shared
    target: Path
    options: dict[str, Any]
    all: tuple[Path, ...]


def find_files(path: Path) -> Files:
    """The files that belong to a model; see `read`."""
    folder = path if path.is_dir() else path.parent
    models = sorted(folder.glob("*.bin")) if path.is_dir() else [path]
    options, used = {}, []
    for name in sorted(folder.glob("*.yml")):
        values = parse_yaml(read_bounded(name, LARGEST_OPTIONS, "a configuration"), name)
        chosen = values.get("models") if isinstance(values, dict) else None
        if not isinstance(chosen, list) or len(chosen) != 1:
            continue
        model = inside(folder, chosen[0], name)
        if path.is_dir() or model.name == path.name:
            models, options, used = [model], values, [name]
            break
    if path.is_dir() and not options:
        models = [model for model in models if model.is_file() and first_bytes(model) == MARIAN]
    if len(models) != 1:
        names = ", ".join(model.name for model in models[:5]) or "none"
        raise InputError(f"{folder} must contain one Marian model (.bin); it contains: {names}")
    source, target = find_vocabularies(folder, options, used)
    every = (models[0], *dict.fromkeys((source, target)), *used)
    return Files(folder, models[0], source, target, options, every)


def find_vocabularies(folder: Path, options: dict[str, Any], used: list[Path]) -> tuple[Path, Path]:
    """The vocabularies of source and target."""
    names = options.get("vocabs")
    if isinstance(names, list) and len(names) == 2:
        source, target = (inside(folder, name, used[0]) for name in names)
    else:
        files = sorted(folder.glob("*.spm"))
        if len(files) == 1:
            source = target = files[0]
        else:
            sides = [[f for f in files if f.name.startswith(side)] for side in ("src", "trg")]
            if [len(side) for side in sides] != [1, 1]:
                raise InputError(
                    f"{folder} must contain one vocabulary (.spm), or srcvocab.*.spm and "
                    f"trgvocab.*.spm; it contains {len(files)} .spm files"
                )
            source, target = sides[0][0], sides[1][0]
    for name in (source, target):
        if name.suffix != ".spm":
            raise InputError(f"{name}: only SentencePiece vocabularies (.spm) are supported")
    return source, target


def inside(folder: Path, name: Any, path: Path) -> Path:
    """A file of the folder that a configuration names; path: the configuration."""
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if len(parts) != 1 or parts[0] in ("..", "/"):
        raise InputError(f"{path}: {name!r:.60} is not the name of a file in the same folder")
    return folder / parts[0]
