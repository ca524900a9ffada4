"""Folders of data files in the cache: built atomically, verified when they are opened.

Each folder has a manifest: one JSON object with its content, the SHA-256 of every file, and its own
checksum. A flipped bit in any file of the folder, including the manifest, is detected when the
folder is opened. Verification reads every byte once, at about 1.4 GB/s on a CPU with SHA
instructions. A process verifies a file only once, unless the file changes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError
from regard.files import PREFIX, checksum, read_bounded, remove_leftovers, sync_file, sync_folder

T = TypeVar("T")
LARGEST = 2**20  # bytes of a manifest
# File timestamps have a resolution of some milliseconds: a file that is younger than this could
# change again with the same timestamp.
SETTLED = 2 * 10**9  # nanoseconds
_verified: dict[tuple[int, int, int, int], str] = {}


@dataclass(frozen=True)
class FolderFormat:
    """A kind of data folder.

    name, version: as the manifest records them
    manifest: the file name of the manifest
    noun: what such a folder is called in messages
    check: whether the manifest and the size of each file in bytes belong together; it may also
        raise a KeyError, TypeError or ValueError
    remedy: what a user can do about a damaged folder, for messages
    """

    name: str
    version: int
    manifest: str
    noun: str
    check: Callable[[dict[str, Any], dict[str, int]], bool]
    remedy: str = ""

    def error(self, folder: Path, reason: object, state: str = "damaged") -> InputError:
        """The error for a folder that cannot be used."""
        return InputError(f"{folder}: {state} {self.noun} ({reason}){self.remedy}")

    def read(self, folder: Path) -> dict[str, Any]:
        """Verify every file of a folder, and return the manifest; an InputError if the folder is
        damaged or a different version of regard built it."""
        try:
            manifest, sizes = _read(folder / self.manifest, self.name, self.version)
            if not self.check(manifest, sizes):
                raise ValueError(f"its files do not match its {self.manifest}")
        except Outdated as error:
            raise self.error(folder, error, "outdated") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.error(folder, error) from None
        return manifest

    def find(self, folder: Path, open: Callable[[Path], T]) -> tuple[T | None, str]:
        """The result of `open` on a folder, or None if the folder does not exist or cannot be used.
        In the latter case the second value is the reason."""
        if not folder.exists():
            return None, ""
        try:
            return open(folder), ""
        except InputError as error:
            return None, str(error).removesuffix(self.remedy)

    def build(
        self,
        folder: Path,
        fill: Callable[[Path], dict[str, Any]],
        open: Callable[[Path], T],
        replace: bool,
    ) -> T:
        """Build a folder under a temporary name, flush it to the disk and rename it.

        Several processes may build the same folder at the same time. Each opens its own files
        before it renames them, because another process may replace the folder afterwards.

        Args:
            fill: writes the files into the folder and returns the content of the manifest
            open: opens the finished folder
            replace: replace an existing folder; otherwise that one is kept, because it has the
                same content
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent)
        temporary = _unique(folder)
        temporary.mkdir()
        try:
            content = {"format": self.name, "version": self.version, **fill(temporary)}
            _write(temporary / self.manifest, content)
            for path in temporary.iterdir():
                sync_file(path)
            sync_folder(temporary)
            opened = open(temporary)
            _publish(temporary, folder, replace)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return opened


class Outdated(ValueError):
    """A manifest that a different version of regard wrote."""


def map_file(path: Path, kind: np.dtype[Any]) -> NDArray[Any]:
    """A file as a memory-mapped array."""
    # A plain array over the mapping: slices of np.memmap itself cost several times as much.
    return np.memmap(path, dtype=kind, mode="r").view(np.ndarray)


@contextmanager
def explain_write_errors(folder: Path, written: Callable[[], str] = str) -> Iterator[None]:
    """Turn an OSError into an InputError that names the folder.

    written: a note on how much was written, for the message about a full disk
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
        advice = "free some space or choose a different folder"
        raise InputError(f"{folder}: the disk is full{written()}: {advice}") from None


def _unique(folder: Path) -> Path:
    return folder.with_name(f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}")


def _publish(temporary: Path, folder: Path, replace: bool) -> None:
    """Rename a finished folder. Renaming is atomic: no process sees a partly written or partly
    removed folder."""
    if replace and folder.is_dir():
        old = _unique(folder)
        with suppress(FileNotFoundError):  # another process may be replacing it, too
            os.rename(folder, old)
        shutil.rmtree(old, ignore_errors=True)
    try:
        os.rename(temporary, folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    sync_folder(folder.parent)


def _write(path: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of all files in the folder of `path`; they must be complete."""
    manifest["files"] = {
        file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)}
        for file in sorted(path.parent.iterdir())
    }
    manifest["checksum"] = _own_checksum(manifest)
    path.write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")


def _read(path: Path, name: str, version: int) -> tuple[dict[str, Any], dict[str, int]]:
    """The manifest and the size of each file in bytes, after every file has been verified."""
    text = read_bounded(path, LARGEST, "a manifest")
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is not valid JSON") from None
    if not isinstance(manifest, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    if (manifest.get("format"), manifest.get("version")) != (name, version):
        raise Outdated("a different version of regard built it")
    if manifest.pop("checksum", None) != _own_checksum(manifest):
        raise ValueError(f"the checksum of {path.name} differs")
    sizes: dict[str, int] = {}
    for name, entry in manifest["files"].items():
        file = path.parent / name
        sizes[name] = file.stat().st_size
        if sizes[name] != entry["bytes"]:
            raise ValueError(f"{name} has {sizes[name]:,} bytes instead of {entry['bytes']:,}")
        if _sha256(file) != entry["sha256"]:
            raise ValueError(f"the checksum of {name} differs")
    return manifest, sizes


def _own_checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    """The checksum of a file, remembered as long as the file does not change."""
    status = path.stat()
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if key in _verified:
        return _verified[key]
    digest = checksum(path)
    if time.time_ns() - status.st_mtime_ns > SETTLED:
        _verified[key] = digest
    return digest
