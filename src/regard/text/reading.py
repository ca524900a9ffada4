"""Lines of text files: plain, .gz and .xz, with bounded memory.

Only a newline ends a line. The other characters at which `str.splitlines` splits occur inside real
sentences, and splitting there would misalign a parallel corpus.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import InputError
from regard.files import reason

LONGEST_LINE = 10_000_000  # bytes; without a limit, a file without newlines would fill the memory
XZ_MEMORY = 2**28  # bytes for decompression; `xz -9` needs 65 MiB
READ = 2**16  # bytes
BLOCK = 2**18  # bytes
BOM = b"\xef\xbb\xbf"
Position = Callable[[int], None]  # called from time to time with the number of bytes read


def open_text(path: Path | str, position: Position | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a plain, .gz or .xz file.

    `position` is called from time to time with the number of bytes read, for a progress bar that
    does not need the number of lines. The file may be a pipe, which can be read only once; call
    `check_file` first if that is not enough.
    """
    path = Path(path)
    check_file(path, again=False)
    number = 0
    try:
        with path.open("rb") as raw, _decompressed(path, raw) as stream:
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
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        reached = f"after line {number}" if number else "at its beginning"
        how = "is truncated" if isinstance(error, EOFError) else "is damaged"
        raise InputError(f"{path}: the compressed file {how} {reached} ({error})") from None
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


def _decompressed(path: Path, raw: BinaryIO) -> io.BufferedReader:
    opened: Any = raw
    if path.suffix == ".gz":
        opened = gzip.GzipFile(fileobj=raw)
    elif path.suffix == ".xz":
        opened = _Xz(path, raw)
    # Their readline is a Python call for each line; BufferedReader splits lines in C.
    return io.BufferedReader(opened, BLOCK)


class _Xz(io.RawIOBase):
    """The content of an .xz file, decompressed in at most XZ_MEMORY bytes. Without a limit, the
    file determines how much memory is allocated, up to 4 GB."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        self._path, self._raw = path, raw
        self._decoder: lzma.LZMADecompressor | None = None  # for the current stream
        self._begun, self._rest = False, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data = self._rest
            if not data and (self._decoder is None or self._decoder.needs_input):
                data = self._raw.read(READ)
                if not data and self._begun and self._decoder is None:
                    return 0
                if not data:
                    raise EOFError("the compressed data is incomplete")
            self._rest = b""
            if self._decoder is None:
                data = data.lstrip(b"\0") if self._begun else data  # padding between two streams
                if not data:
                    continue
                self._decoder, self._begun = lzma.LZMADecompressor(memlimit=XZ_MEMORY), True
            try:
                output = self._decoder.decompress(data, len(buffer))
            except lzma.LZMAError as error:
                if "emory" not in str(error):
                    raise
                raise InputError(
                    f"{self._path}: needs more than {XZ_MEMORY // 2**20} MiB of memory to be "
                    "decompressed: compress it with a smaller dictionary (xz -9)"
                ) from None
            if self._decoder.eof:
                self._rest, self._decoder = self._decoder.unused_data, None
            if output:
                buffer[: len(output)] = output
                return len(output)


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
                    if line > LONGEST_LINE + 2 and path.suffix not in (".gz", ".xz"):
                        raise InputError(f"{path}: has a line longer than {LONGEST_LINE:,} bytes")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({reason(error)})") from None
        whole.update(digest.digest())
    return whole.hexdigest()
