"""Files: writing that is whole or not at all, and reading that is bounded.

A file is written under a temporary name, flushed to the disk, then renamed. What is read may have
been made by anybody: only regular files are opened, only so many bytes are read, and JSON is
checked before it is parsed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from regard.errors import InputError

PREFIX = ".tmp-"  # nothing with this name is ever read
MOST_DIGITS = 100  # of an integer in a file
OLD = "old-"  # in such a name: what is being replaced


def write_file(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content`, or leave it as it was."""
    temporary = path.with_name(f"{PREFIX}{os.getpid()}-{path.name}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_result(path: Path, content: bytes | str) -> None:
    """The same for a place that the user named: its folder is made, and what is in the way is said
    in one line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except (FileExistsError, NotADirectoryError):
        raise InputError(f"{path} cannot be written: {path.parent} is not a folder") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None


def place_of(path: Path) -> Path:
    """Where a folder with this name would lie, links followed; what is in the way is said in one
    line. Nothing is written: this can be asked before the work."""
    place = Path(os.path.realpath(path))
    try:
        parent = next(folder for folder in place.parents if folder.exists())
        if not parent.is_dir():
            raise InputError(f"{path} cannot be written: {parent} is not a folder")
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise InputError(f"{path} cannot be written: it is not a folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InputError(f"{path} cannot be written: {parent} is not yours to write to")
        if place.exists() and (place.is_mount() or place.samefile(os.curdir)):
            # A new folder takes its name by being renamed, which such a place does not allow.
            raise InputError(
                f"{path} cannot be written: it is the folder you are in, or a mounted disk; name "
                "a folder in it"
            )
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None
    return place


@contextmanager
def new_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """A folder to fill; it gets its name when everything in it is on the disk. Where one lies
    already, it stays and this fails, unless it is empty or to be replaced."""
    path = place_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{PREFIX}{os.getpid()}-{path.name}")
    old = path.with_name(f"{PREFIX}{os.getpid()}-{OLD}{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            sync_file(file) if file.is_file() else sync_folder(file)
        sync_folder(temporary)
        if replace and path.exists():  # aside, and not away: a kill here loses neither
            shutil.rmtree(old, ignore_errors=True)
            os.replace(path, old)
        os.replace(temporary, path)
    except BaseException:
        if old.exists() and not path.exists():
            os.replace(old, path)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)
    remove_leftovers(path.parent, path.name)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """What a process that was killed left under a temporary name, or only what was to have (or
    had) this name. A process of another machine looks dead from here."""
    for path in folder.glob(f"{PREFIX}*"):
        process, _, meant = path.name.removeprefix(PREFIX).partition("-")
        if name is not None and not (process.isdigit() and meant in (name, OLD + name)):
            continue  # in a folder of the user's: it may not be ours
        if process.isdigit() and alive(int(process)):
            continue  # somebody is still writing it
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        return True
    return process > 0


def cache_folder() -> Path:
    """Where tokenised corpora and search indexes lie between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("REGARD_CACHE") or Path(home) / "regard")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def checksum(path: Path) -> str:
    """The sha256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; never wait for a pipe or a device, but refuse them."""
    try:
        # A pipe without a writer would block here; O_NONBLOCK has no effect on a regular file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise InputError(f"{path}: cannot be read (it is {kind}, not a regular file)")
    return os.fdopen(descriptor, "rb")  # closes it


def reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def read_bounded(path: Path, limit: int, what: str) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Args:
        what: what the file should be, for the message: "a configuration".

    Raises:
        InputError: the file cannot be read, is not a regular file, or is larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(limit + 1) if size <= limit else b""
        if size > limit or len(content) > limit:
            raise InputError(f"{path}: too large for {what} (over {limit:,} bytes)")
    return content


def read_json(path: Path, limit: int, what: str, most: int = 100_000) -> Any:
    """The value of a JSON file; see `read_bounded` and `parse_json`."""
    content = read_bounded(path, limit, what)
    try:
        return parse_json(content, most)
    except ValueError as error:
        raise InputError(f"{path}: not {what} ({error})") from None


def parse_json(content: bytes, most: int = 100_000) -> Any:
    """The value of a JSON text in UTF-8.

    Args:
        most: the largest number of commas and opening brackets. It bounds the memory: a small
            value takes 30 times the bytes of its text.

    Raises:
        ValueError: anything that is not strict JSON: duplicate keys, NaN or infinity, lone
            surrogates, integers of over 100 digits, values that are nested too deeply; or more
            values than `most`.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > most:
        raise ValueError(f"over {most:,} values")
    try:
        value = json.loads(
            content.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constant,
            parse_int=_integer, parse_float=_finite,
        )  # fmt: skip
        if SURROGATE.search(content):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError("it has a lone surrogate") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at line {error.lineno}") from None
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    return value


SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # in an escape: half of a pair, or one alone


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is duplicated")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"an integer of {len(text):,} digits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
