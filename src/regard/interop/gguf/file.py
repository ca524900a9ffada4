"""Read and write GGUF files: metadata and tensors.

A file has four parts: a header (magic, version, counts), the metadata (keys with values), the table
of tensors (name, dimensions, type, offset), and the data. All numbers are little-endian. Every
count, length and offset is compared with the size of the file before it is used, so a damaged file
cannot make the reader waste time or memory.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import InputError
from regard.files import open_regular
from regard.interop.gguf.types import BLOCKS, NAMES, dequantise

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT = 32  # of tensors, unless general.alignment is set
LARGEST_HEADER = 64 * 2**20  # bytes; a vocabulary of a million tokens takes about 40 MiB
MOST_KEYS, MOST_TENSORS, MOST_STRINGS = 10_000, 100_000, 2_000_000
LONGEST_NAME, LONGEST_STRING = 1_024, 4 * 2**20  # bytes
MOST_DIMENSIONS = 4

# The types of values in the metadata: numbers by their format, strings and arrays.
NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10

# A value is a number, a string, a list of strings or an array of numbers.
Value = Any


@dataclass(frozen=True)
class Entry:
    """A tensor in the table of a file: its shape as in PyTorch, its type and its place."""

    shape: tuple[int, ...]
    type: int
    start: int  # the offset of its data from the start of the file, in bytes
    size: int  # bytes


@dataclass(frozen=True)
class GgufFile:
    """The metadata and the table of tensors of a file."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, Entry]

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Read tensors as float32.

        Args:
            names: the names of the tensors; they must be in the table.

        Returns:
            The tensors by name.

        Raises:
            InputError: the file cannot be read, or has become shorter.
        """
        tensors = {}
        with open_regular(self.path) as file:
            for name in sorted(names, key=lambda name: self.tensors[name].start):
                entry = self.tensors[name]
                file.seek(entry.start)
                data = np.empty(entry.size, np.uint8)
                if file.readinto(data.data) != entry.size:
                    raise InputError(f"{self.path}: the file ends within {name}")
                tensors[name] = dequantise(torch.from_numpy(data), entry.type).view(entry.shape)
        return tensors


def read_file(path: Path) -> GgufFile:
    """Read the metadata and the table of tensors of a GGUF file.

    Args:
        path: the file.

    Returns:
        The file; `GgufFile.read` reads its tensors.

    Raises:
        InputError: the file is not GGUF, is truncated or damaged, or has a tensor of a type that
            regard does not read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        header = file.read(min(size, LARGEST_HEADER))
    return _Parser(path, header, size).file()


class _Parser:
    """Reads the parts of a file before its data."""

    def __init__(self, path: Path, content: bytes, size: int) -> None:
        self.path, self.content, self.size = path, content, size
        self.place = 0
        self.strings = 0  # number of strings so far

    def error(self, message: str) -> InputError:
        return InputError(f"{self.path}: {message}")

    def skip(self, size: int, what: str) -> int:
        """Advance by `size` bytes, and return the position before them."""
        place = self.place
        if size > len(self.content) - place:
            if len(self.content) < self.size:
                raise self.error(f"more than {LARGEST_HEADER:,} bytes before the tensors")
            raise self.error(f"truncated or damaged GGUF file: it ends within {what}")
        self.place += size
        return place

    def integer(self, format: str, what: str) -> int:
        place = self.skip(struct.calcsize(format), what)
        return int(struct.unpack_from(format, self.content, place)[0])

    def count(self, what: str, most: int) -> int:
        number = self.integer("<Q", what)
        if number > most:
            raise self.error(f"{number:,} {what}, but at most {most:,} are allowed")
        return number

    def string(self, what: str, longest: int = LONGEST_STRING) -> str:
        length = self.integer("<Q", what)
        if length > longest:
            raise self.error(f"{what} has {length:,} bytes, but at most {longest:,} are allowed")
        place = self.skip(length, what)
        try:
            return self.content[place : place + length].decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8") from None

    def file(self) -> GgufFile:
        if self.content[:4] != MAGIC:
            raise self.error("not a GGUF file")
        self.skip(4, "its magic number")
        version = self.integer("<I", "its version")
        if version not in VERSIONS:
            kind = "big-endian " if version & 0xFFFF == 0 else ""
            raise self.error(f"{kind}GGUF version {version} is not supported; use 2 or 3")
        tensors = self.count("tensors", MOST_TENSORS)
        keys = self.count("metadata keys", MOST_KEYS)
        metadata: dict[str, Value] = {}
        for _ in range(keys):
            key = self.string("a metadata key", LONGEST_NAME)
            if key in metadata:
                raise self.error(f"the metadata key {key!r:.60} is duplicated")
            metadata[key] = self.value(self.integer("<I", "its metadata"), key)
        return GgufFile(self.path, metadata, self.table(tensors, metadata))

    def value(self, type: int, key: str) -> Value:
        if type in NUMBERS:
            return self.numbers(type, 1, key)[0].item()
        if type == STRING:
            return self.string(f"{key:.60}")
        if type != ARRAY:
            raise self.error(f"{key:.60} has the unknown type {type}")
        kind = self.integer("<I", f"{key:.60}")
        if kind == STRING:
            length = self.count(f"strings in {key:.60}", MOST_STRINGS)
            self.strings += length
            if self.strings > MOST_STRINGS:
                raise self.error(f"more than {MOST_STRINGS:,} strings in the metadata")
            return self.list_of_strings(length, f"{key:.60}")
        if kind not in NUMBERS:
            inner = "arrays" if kind == ARRAY else f"the unknown type {kind}"
            raise self.error(f"{key:.60} is an array of {inner}, which regard does not read")
        return self.numbers(kind, self.integer("<Q", f"{key:.60}"), key)

    def list_of_strings(self, length: int, what: str) -> list[str]:
        """A faster `string` for many strings."""
        content, end, place = self.content, len(self.content), self.place
        unpack, result = struct.Struct("<Q").unpack_from, []
        try:
            for _ in range(length):
                start = place + 8
                place = start + unpack(content, place)[0]
                if place > end:
                    break
                result.append(content[start:place].decode())
        except struct.error:  # the length itself is beyond the end
            place = end + 1
        except UnicodeDecodeError:
            raise self.error(f"{what} is not UTF-8") from None
        self.skip(place - self.place, what)
        return result

    def numbers(self, type: int, length: int, key: str) -> NDArray[Any]:
        dtype = np.dtype(NUMBERS[type])
        place = self.skip(length * dtype.itemsize, f"{key:.60}")
        return np.frombuffer(self.content, dtype, length, place).copy()

    def table(self, count: int, metadata: Mapping[str, Value]) -> dict[str, Entry]:
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or alignment not in (2**i for i in range(3, 21)):
            raise self.error(f"general.alignment is {alignment!r:.20}, not a power of 2 from 8")
        rows = []
        for _ in range(count):
            name = self.string("the name of a tensor", LONGEST_NAME)
            rows.append((name, *self.shape_and_type(name), self.integer("<Q", "a tensor")))
        start = -(-self.place // alignment) * alignment
        tensors: dict[str, Entry] = {}
        for name, shape, type_, offset in rows:
            if name in tensors:
                raise self.error(f"the tensor {name!r:.60} is duplicated")
            if offset % alignment:
                raise self.error(f"the offset of {name:.60} is not a multiple of {alignment}")
            elements, bytes_ = BLOCKS[type_]
            size = math.prod(shape) // elements * bytes_
            if start + offset + size > self.size:
                raise self.error(
                    f"truncated or damaged GGUF file: {name:.60} ends at byte "
                    f"{start + offset + size:,} of {self.size:,}"
                )
            tensors[name] = Entry(shape, type_, start + offset, size)
        self.check_overlaps(tensors)
        return tensors

    def shape_and_type(self, name: str) -> tuple[tuple[int, ...], int]:
        dimensions = self.integer("<I", "a tensor")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise self.error(f"{name:.60} has an unsupported number of dimensions ({dimensions:,})")
        # The first dimension is the one whose elements are adjacent: the last one in PyTorch.
        shape = tuple(self.integer("<Q", "a tensor") for _ in range(dimensions))[::-1]
        if 0 in shape or math.prod(shape) > 2**48:
            raise self.error(f"{name:.60} has the invalid shape {'x'.join(map(str, shape))}")
        type = self.integer("<I", "a tensor")
        if type not in BLOCKS:
            known = ", ".join(NAMES[number] for number in BLOCKS)
            kind = NAMES.get(type, f"unknown type {type}")
            raise self.error(f"{name:.60} has the type {kind}, but regard reads {known}")
        if shape[-1] % BLOCKS[type][0]:
            raise self.error(
                f"{name:.60} has rows of {shape[-1]:,} elements, not a multiple of the block size "
                f"{BLOCKS[type][0]} of {NAMES[type]}"
            )
        return shape, type

    def check_overlaps(self, tensors: Mapping[str, Entry]) -> None:
        end, before = 0, ""
        for name, entry in sorted(tensors.items(), key=lambda item: item[1].start):
            if entry.start < end:
                raise self.error(f"the tensors {before:.60} and {name:.60} overlap")
            end, before = entry.start + entry.size, name


def write_file(path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> None:
    """Write a GGUF file with tensors of type F32.

    Args:
        path: the file, in a folder that is renamed when it is complete (`files.new_folder`).
        metadata: numbers, strings, and lists of one of these; an integer becomes a UINT32 (in a
            list an INT32), a float becomes a FLOAT32.
        tensors: the tensors by name.
    """
    parts = [MAGIC, struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts.append(_string(key) + _value(value))
    offset = 0
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        parts.append(_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        parts.append(struct.pack("<IQ", 0, offset))
        offset += -(-4 * tensor.numel() // ALIGNMENT) * ALIGNMENT
    header = b"".join(parts)
    with path.open("wb") as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        for tensor in tensors.values():
            data = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
            file.write(data.data)
            file.write(bytes(-data.nbytes % ALIGNMENT))


def _string(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _value(value: Value) -> bytes:
    """The type of a value and the value."""
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    assert isinstance(value, list)
    kind = {str: STRING, int: INT32, float: FLOAT32}[type(value[0])] if value else STRING
    head = struct.pack("<IIQ", ARRAY, kind, len(value))
    if kind == STRING:
        return head + b"".join(map(_string, value))
    return head + np.array(value, NUMBERS[kind]).tobytes()
