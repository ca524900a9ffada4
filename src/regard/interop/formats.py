"""The formats of other toolkits: how they are recognised, and the modules that read and write them.

A module is imported when its format is used, because some need a package of the extra [interop].
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InputError
from regard.files import open_regular
from regard.training.names import CONFIG, WEIGHTS

if TYPE_CHECKING:
    from regard.interop.model import ImportedModel, Oracle

READERS = {
    "hf": "regard.interop.hf.read",
    "gguf": "regard.interop.gguf.read",
    "marian": "regard.interop.marian.read",
}
WRITERS = {
    "hf": "regard.interop.hf.write",
    "ctranslate2": "regard.interop.ctranslate2",
    "onnx": "regard.interop.onnx.write",
    "gguf": "regard.interop.gguf.write",
}
NAMES = {
    "hf": "Hugging Face", "gguf": "GGUF", "marian": "Marian", "ctranslate2": "CTranslate2",
    "onnx": "ONNX", "vocabulary": "a vocabulary",
}  # fmt: skip
VOCABULARIES = (".model", ".spm")
GGUF, MARIAN = b"GGUF", struct.pack("<Q", 1)  # the first bytes of a file


@dataclass(frozen=True)
class Reader:
    """The functions of a format that read a model.

    `oracle` returns None if the package of the other runtime is not installed. It raises
    `NotCompared` if the runtime does not run models of this kind.
    """

    read: Callable[[Path], ImportedModel]
    oracle: Callable[[Path, ImportedModel], Oracle | None]


@dataclass(frozen=True)
class Writer:
    """The functions of a format that write a model; `oracle` as in `Reader`."""

    write: Callable[[Any, Path], None]
    oracle: Callable[[Path, Any], Oracle | None]


def find_reader(name: str) -> Reader:
    """The reader of a format, which must be in READERS."""
    module = load_module(READERS[name])
    return Reader(module.read, module.oracle)


def find_writer(name: str) -> Writer:
    """The writer of a format, which must be in WRITERS."""
    module = load_module(WRITERS[name])
    return Writer(module.write, module.oracle)


def load_module(name: str) -> Any:
    """Import a module.

    Raises:
        InputError: it needs a package that is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("regard"):
            raise
        raise missing_package(str(error.name)) from None


def missing_package(name: str) -> InputError:
    """The error for a package that is not installed."""
    return InputError(f"the package {name} is not installed: run: pip install 'regard[interop]'")


def recognise(source: Path) -> tuple[str, Path]:
    """The format of a file or folder.

    Args:
        source: the file or folder.

    Returns:
        A name of READERS, or "vocabulary"; and the path to read, which is the GGUF file if the
        source is a folder that contains one.

    Raises:
        InputError: the format is unknown, or the folder contains several GGUF files.
    """
    if not source.exists():
        raise InputError(f"{source} does not exist")
    if not source.is_dir():
        return recognise_file(source), source
    if any((source / name).is_file() for name in ("config.json", "modules.json")):
        return "hf", source
    if all((source / name).is_file() for name in (CONFIG, WEIGHTS)):
        raise InputError(f"{source} is already a regard model; pass it with -m")
    starts = {path: first_bytes(path) for path in sorted(source.iterdir()) if path.is_file()}
    files = [path for path, start in starts.items() if start[:4] == GGUF]
    if len(files) > 1:
        raise InputError(
            f"{source} contains {len(files)} GGUF models: choose one of "
            f"{', '.join(path.name for path in files[:5])}"
        )
    if files:
        return "gguf", files[0]
    if MARIAN in starts.values():
        return "marian", source
    raise InputError(
        f"{source}: not a model of a known format: there is no config.json (Hugging Face), no GGUF "
        "file and no Marian file in this folder"
    )


def recognise_file(source: Path) -> str:
    """`recognise` for a file."""
    start = first_bytes(source)
    if start[:4] == GGUF:
        return "gguf"
    if start == MARIAN:
        return "marian"
    if source.suffix in VOCABULARIES or source.name in ("vocab.txt", "merges.txt"):
        return "vocabulary"
    if source.suffix == ".gguf":
        raise InputError(f"{source}: not a GGUF file: it does not begin with GGUF")
    if (source.parent / "config.json").is_file():
        raise InputError(f"{source}: pass the model folder instead: {source.parent}")
    raise InputError(
        f"{source}: unknown format; known: a Hugging Face folder, GGUF, Marian (.bin), and "
        "vocabularies (.spm, .model, vocab.txt, merges.txt)"
    )


def first_bytes(path: Path) -> bytes:
    """The first eight bytes of a regular file; a pipe or a device is an InputError."""
    with open_regular(path) as file:
        return file.read(8)
