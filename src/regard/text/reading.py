"""Lines of text files: plain, .gz, .xz and .zst, with bounded memory.

Only a newline ends a line. The other characters at which `str.splitlines` splits occur inside real
sentences, and splitting there would misalign a parallel corpus.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from regard.errors import InputError
from regard.files import reason
from regard.text.compression import COMPRESSED, DAMAGES, decompressed
from regard.text.magic import check_content

LONGEST_LINE = 10_000_000  # bytes; without a limit, a file without newlines would fill the memory
BLOCK = 2**18  # bytes
BOM = b"\xef\xbb\xbf"
WITHOUT_LINES = (*COMPRESSED, ".json", ".parquet")  # a line may be longer than LONGEST_LINE
Position = Callable[[int], None]  # called from time to time with the number of bytes read


def open_text(path: Path | str, position: Position | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a plain, .gz, .xz or .zst file.

    `position` is called from time to time with the number of bytes read, for a progress bar that
    does not need the number of lines. The file may be a pipe, which can be read only once; call
    `check_file` first if that is not enough.
    """
    path = Path(path)
    number = 0
    with _opened(path, lambda: number) as (raw, stream):
        while line := stream.readline(LONGEST_LINE + 2):  # 2: for the line end
            number += 1
            if number == 1:
                line = line.removeprefix(BOM)
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            if len(line) > LONGEST_LINE:
                raise InputError(f"{path}:{number}: line longer than {LONGEST_LINE:,} bytes")
            if position is not None and number % 1024 == 0:
                position(raw.tell())
            yield number, decode_line(line, f"{path}:{number}")


def read_text(path: Path | str, limit: int) -> str:
    """The whole text of a file, which may be compressed.

    Args:
        path: the file.
        limit: the largest number of bytes after decompression.

    Returns:
        The text, without a byte order mark.

    Raises:
        InputError: the file cannot be read, is larger than `limit`, or is not UTF-8.
    """
    path = Path(path)
    with _opened(path, lambda: 0) as (_, stream):
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise InputError(
            f"{path}: larger than {limit:,} bytes, which is too large for one JSON value: write it "
            "as JSON lines (.jsonl), one object per line"
        )
    content = content.removeprefix(BOM)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        begin = content.rfind(b"\n", 0, error.start) + 1
        line = content[begin : error.start + 1]
        return decode_line(line, f"{path}:{number}")  # raises the error for this line


@contextmanager
def _opened(path: Path, line: Callable[[], int]) -> Iterator[tuple[BinaryIO, io.BufferedReader]]:
    """The file and its decompressed content; every error while it is read is an InputError. line:
    returns the number of lines read so far."""
    check_file(path, again=False)
    try:
        with path.open("rb") as raw, decompressed(path, raw) as stream:
            check_content(path, stream.peek(BLOCK))
            yield raw, stream
    except DAMAGES as error:
        reached = f"after line {line()}" if line() else "at its beginning"
        state = "is truncated" if isinstance(error, EOFError) else "is damaged"
        raise InputError(f"{path}: the compressed file {state} {reached} ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None


def check_file(path: Path | str, again: bool = True) -> None:
    """Refuse a path that is not a file before it is opened: opening a named pipe can block forever,
    and a device can be endless.

    again: the file is read more than once, so every pipe is refused. Otherwise a pipe that this
    process inherited (`<(command)`, /dev/stdin) is accepted.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        raise InputError(f"{path}: cannot be read ({reason(error)})") from None
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: is a folder, not a file")
    if not stat.S_ISFIFO(mode):
        kind = "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise InputError(f"{path}: is {kind}, not a file")
    if again or os.path.exists(os.path.realpath(path)):  # an inherited pipe has no name
        raise InputError(
            f"{path}: is a pipe, which cannot be read twice: write its content to a file first"
        )


def decode_line(line: bytes, where: str) -> str:
    """Decode a line; an InputError names `where` if it is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        byte = line[error.start]
        raise InputError(f"{where}: not UTF-8 (byte 0x{byte:02x} at column {column})") from None


def fingerprint_files(paths: Iterable[Path | str]) -> str:
    """SHA-256 of the files in order; moving content from one file to another changes it. A line
    that no reader accepts is refused: a sparse file of terabytes ends after its first megabytes."""
    whole, buffer = hashlib.sha256(), bytearray(BLOCK)
    for path in map(Path, paths):
        check_file(path)  # a pipe would be empty after this
        digest, line = hashlib.sha256(), 0  # line: bytes since the last newline
        try:
            with path.open("rb") as file:
                while size := file.readinto(buffer):
                    digest.update(memoryview(buffer)[:size])
                    end = buffer.rfind(b"\n", 0, size)
                    line = line + size if end < 0 else size - end - 1
                    if line > LONGEST_LINE + 2 and path.suffix not in WITHOUT_LINES:
                        raise InputError(f"{path}: has a line longer than {LONGEST_LINE:,} bytes")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({reason(error)})") from None
        whole.update(digest.digest())
    return whole.hexdigest()
