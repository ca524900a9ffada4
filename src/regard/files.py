"""Atomic writing and bounded reading of files.

A file is written under a temporary name, flushed to the disk and renamed, so it is complete or
absent. Files to read are not trusted: only regular files are opened, the number of bytes is
limited, and JSON is checked before it is parsed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from regard.errors import InputError

PREFIX = ".tmp-"  # of temporary names, which are never read
MOST_DIGITS = 100  # digits of an integer in a file
LARGEST_METRICS = 32 * 2**20  # bytes of metrics.jsonl, which has a line for 50 steps
LARGEST_CARD = 2**20  # bytes of README.md
OLD = "old-"  # in a temporary name: a folder that is being replaced


class FolderExists(InputError):
    """A new folder cannot be renamed: another process has created one with its name."""


# Operating system errors that depend on the path, so that a different path would help ...
CHOSEN = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES,
    errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.EBUSY,
    errno.ENODEV, errno.ENXIO, errno.ETXTBSY, errno.EOPNOTSUPP,
}  # fmt: skip
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # ... and those of a full disk


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name `path` in an OSError that has no file name or that of a temporary file."""
    try:
        yield
    except OSError as error:
        if error.filename is None or PREFIX in os.fsdecode(error.filename):
            error.filename, error.filename2 = str(path), None
        raise


def unwritable(path: Path, error: OSError) -> Exception:
    """The exception to raise if `path` cannot be written: an InputError if a different path would
    help, otherwise (a full disk) the error itself with `path` as its file name."""
    if error.errno in CHOSEN:
        return InputError(f"{path} cannot be written: {error.strerror}")
    error.filename, error.filename2 = str(path), None
    return error


def write_file(path: Path, content: bytes | str) -> None:
    """Write `content` to `path`; if this fails, `path` stays unchanged."""
    temporary = temporary_name(path)
    with named(path):
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


def temporary_name(path: Path) -> Path:
    """The name under which this process writes `path` until it is complete."""
    return path.with_name(f"{PREFIX}{os.getpid()}-{path.name}")


def write_result(path: Path, content: bytes | str) -> None:
    """`write_file` for a path that the user chose: creates its folder; errors are one line."""
    check_destination(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as error:
        raise unwritable(path, error) from None


def check_destination(path: Path) -> None:
    """Refuse a path that cannot be written. Call it before the work; it leaves no files behind."""
    try:
        if not path.name or path.is_dir():
            raise InputError(f"{path} cannot be written: it is a folder, not a file")
        if path.exists() and not path.is_file():
            raise InputError(f"{path} cannot be written: it is not a regular file")
        check_parent(path, path.absolute())
    except OSError as error:
        raise unwritable(path, error) from None


def check_parent(path: Path, place: Path) -> None:
    """Refuse a path whose parent folder cannot be created or cannot be written to.

    path: the path as the user wrote it, for the message.
    """
    parent = next(folder for folder in place.parents if folder.exists())
    if not parent.is_dir():
        raise InputError(f"{path} cannot be written: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: no permission to write to {parent}")
    for name in (*place.relative_to(parent).parts, temporary_name(place).name):
        with suppress(FileNotFoundError):
            os.lstat(parent / name)  # raises an OSError if the name is too long
    with TemporaryFile(dir=parent):  # a file system can refuse this even with permission
        pass


def real_path(path: Path) -> Path:
    """The path with its links followed; unlike `Path.resolve`, never an error for a link loop."""
    return Path(os.path.realpath(path))


def place_of(path: Path) -> Path:
    """The resolved path for a new folder; refuses a path at which none can be created. Call it
    before the work; it leaves no files behind."""
    place = real_path(path)
    try:
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise InputError(f"{path} cannot be written: it is not a folder")
        if place.exists() and (place.is_mount() or place.samefile(os.curdir)):
            # A new folder is renamed to its final name, which is not possible here.
            raise InputError(
                f"{path} cannot be written: it is the current folder or a mount point; choose "
                "a folder inside it"
            )
        check_parent(path, place)
    except OSError as error:
        raise unwritable(path, error) from None
    return place


@contextmanager
def new_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to fill, then flush it to the disk and rename it to `path`. An
    existing folder that is not empty is an error, unless `replace` is set."""
    path = place_of(path)
    temporary = temporary_name(path)
    old = path.with_name(f"{PREFIX}{os.getpid()}-{OLD}{path.name}")
    with named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            yield temporary
            for file in temporary.rglob("*"):
                sync_file(file) if file.is_file() else sync_folder(file)
            sync_folder(temporary)
            if replace and path.exists():  # renamed, not removed: a kill here loses neither folder
                shutil.rmtree(old, ignore_errors=True)
                os.replace(path, old)
            try:
                os.replace(temporary, path)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                raise FolderExists(
                    f"{path} was created by another process in the meantime: choose a different "
                    "folder"
                ) from None
        except BaseException:
            if old.exists() and not path.exists():
                os.replace(old, path)
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)
    remove_leftovers(path.parent, path.name)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders of killed processes from a folder.

    name: only remove those of the file or folder with this name. A process of another machine
        counts as killed.
    """
    for path in folder.glob(f"{PREFIX}*"):
        process, _, target = path.name.removeprefix(PREFIX).partition("-")
        if name is not None and not (process.isdigit() and target in (name, OLD + name)):
            continue  # a folder of the user may contain other files with such names
        if process.isdigit() and alive(int(process)):
            continue  # another process is still writing it
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return process > 0


def cache_folder() -> Path:
    """The folder of tokenised corpora, search indexes, mapped weights and compiled code, created if
    missing."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(os.environ.get("REGARD_CACHE") or Path(home) / "regard")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        raise InputError(
            f"the cache folder cannot be created ({reason(error)}): set REGARD_CACHE to a writable "
            "folder"
        ) from None
    return folder


def checksum(path: Path) -> str:
    """The sha256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading; refuse a pipe or a device instead of waiting for it. An
    error while reading is an InputError that names the file."""
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
    with os.fdopen(descriptor, "rb") as file:  # closes it
        try:
            yield file
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({reason(error)})") from None


def reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def read_bounded(path: Path, limit: int, what: str) -> bytes:
    """The content of a regular file of at most `limit` bytes; an InputError if it cannot be read,
    is not a regular file or is larger.

    what: the expected kind of file, for the message: "a configuration".
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(limit + 1) if size <= limit else b""
        if size > limit or len(content) > limit:
            raise InputError(f"{path}: too large for {what} (over {limit:,} bytes)")
    return content


def read_json(path: Path, limit: int, what: str, max_values: int = 100_000) -> Any:
    """The value of a JSON file; see `read_bounded` and `parse_json`."""
    content = read_bounded(path, limit, what)
    try:
        return parse_json(content, max_values)
    except ValueError as error:
        raise InputError(f"{path}: not {what} ({error})") from None


def parse_json(content: bytes, max_values: int = 100_000) -> Any:
    """The value of a JSON text in UTF-8; a ValueError if it is not strict JSON (duplicate keys, NaN
    or infinity, lone surrogates, integers with more than 100 digits, values that are nested too
    deeply) or has more values than `max_values`.

    max_values: the largest number of commas and opening brackets. It bounds the memory, because a
        small value takes 30 times as many bytes as its text.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > max_values:
        raise ValueError(f"more than {max_values:,} values")
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


SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # an escaped surrogate, in a pair or alone


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is duplicated")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"an integer with {len(text):,} digits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is out of range for a float")
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
