"""Decompression of .gz, .xz and .zst files with bounded memory."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import InputError

COMPRESSED = (".gz", ".xz", ".zst")  # the suffixes of compressed files
MEMORY = 2**28  # bytes for decompression; `xz -9` needs 65 MiB
READ = 2**16  # bytes
READ_ZSTD = 2**10  # bytes: four bytes of input may become a block of 128 KiB
BLOCK = 2**18  # bytes


class Damaged(Exception):
    """The content of a compressed file is not valid."""


DAMAGES = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, Damaged)


def decompressed(path: Path, raw: BinaryIO) -> io.BufferedReader:
    """The content of a file; its name determines the compression.

    Args:
        path: the name of the file.
        raw: the opened file.

    Returns:
        A reader of the content. It raises one of DAMAGES if the compressed data is not valid.

    Raises:
        InputError: the file is a .zst file and no package that reads it is installed.
    """
    opened: Any = raw
    if path.suffix == ".gz":
        opened = gzip.GzipFile(fileobj=raw)
    elif path.suffix == ".xz":
        opened = _Xz(path, raw)
    elif path.suffix == ".zst":
        opened = _Zstd(path, raw)
    # Their readline is a Python call for each line; BufferedReader splits lines in C.
    return io.BufferedReader(opened, BLOCK)


class _Xz(io.RawIOBase):
    """The content of an .xz file, decompressed in at most MEMORY bytes. Without a limit, the
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
                self._decoder, self._begun = lzma.LZMADecompressor(memlimit=MEMORY), True
            try:
                output = self._decoder.decompress(data, len(buffer))
            except lzma.LZMAError as error:
                if "emory" not in str(error):
                    raise
                raise InputError(
                    f"{self._path}: needs more than {MEMORY // 2**20} MiB of memory to be "
                    "decompressed: compress it with a smaller dictionary (xz -9)"
                ) from None
            if self._decoder.eof:
                self._rest, self._decoder = self._decoder.unused_data, None
            if output:
                buffer[: len(output)] = output
                return len(output)


class _Zstd(io.RawIOBase):
    """The content of a .zst file. Small reads bound how much one call can decompress."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        self._path, self._raw = path, raw
        try:
            import zstandard
        except ImportError:
            raise InputError(f"{path}: needs another package: pip install zstandard") from None
        self._package = zstandard
        self._decoder: Any = None  # for the current frame
        self._rest, self._output, self._begun = b"", memoryview(b""), False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            data = self._rest or self._raw.read(READ_ZSTD)
            self._rest = b""
            if not data:
                if self._decoder is None and self._begun:
                    return 0
                raise EOFError("the compressed data is incomplete")
            if self._decoder is None:
                decompressor = self._package.ZstdDecompressor(max_window_size=MEMORY)
                self._decoder, self._begun = decompressor.decompressobj(), True
            try:
                self._output = memoryview(self._decoder.decompress(data))
            except self._package.ZstdError as error:
                if "memory" not in str(error):
                    raise Damaged(str(error)) from None
                raise InputError(
                    f"{self._path}: needs more than {MEMORY // 2**20} MiB of memory to be "
                    "decompressed: compress it with a smaller window (zstd --long=27)"
                ) from None
            if self._decoder.eof:
                self._rest, self._decoder = self._decoder.unused_data, None
        size = min(len(buffer), len(self._output))
        buffer[:size] = self._output[:size]
        self._output = self._output[size:]
        return size
