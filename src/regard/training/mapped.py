"""Tensors in a cache file that processes map into memory, so that all of them share one copy.

A file has a header (names, types, shapes and offsets, in JSON), then the tensors. It is mapped
privately: a process that changes a tensor gets its own copy of those pages. Each file has a
checksum of the header and of the sums of all pages, which is much faster than a checksum of all
bytes and detects lost, truncated and exchanged pages. A damaged file is written again. Therefore a
new file is not flushed to the disk, only renamed when it is complete. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import InputError, warn_user
from regard.files import (
    cache_folder,
    open_regular,
    parse_json,
    reason,
    remove_leftovers,
    temporary_name,
)
from regard.ops.cpu.build import alone

MAGIC = b"regard-mapped-1\n"
START = len(MAGIC) + 32 + 8  # bytes before the header: the magic, the checksum, the header's size
PAGE = 4096  # bytes that have one sum; the tensors begin at a whole page
ALIGNMENT = 64  # bytes, the size of a vector register
LARGEST_HEADER = 16 * 2**20  # bytes
MOST_VALUES = 1_000_000  # in a header
SUFFIX = ".tensors"
MOST_BYTES = 16 * 2**30  # of all files in the cache; the files that were used last are kept
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int8)
}


def mapped_tensors(key: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors in a file of the cache, mapped into memory.

    One process at a time makes tensors and writes them to the cache. If the cache cannot be
    written, they are in the memory of this process, and a warning is printed.

    Args:
        key: identifies the tensors; a file name. Tensors with the same key are equal.
        make: computes the tensors if the cache does not have them.

    Returns:
        The tensors by name. They are contiguous and aligned to 64 bytes.
    """
    try:
        folder = cache_folder() / "weights"
        folder.mkdir(exist_ok=True)
    except (OSError, InputError) as error:
        return unshared(make(), error)
    path = folder / (key + SUFFIX)
    with suppress(ValueError):
        return read_mapped(path)
    with alone(folder):
        with suppress(ValueError):  # another process has written it in the meantime
            return read_mapped(path)
        tensors = make()
        try:
            write_mapped(path, tensors)
            remove_old(folder, path)
            return read_mapped(path)
        except (OSError, ValueError) as error:
            return unshared(tensors, error)


def unshared(tensors: Mapping[str, Tensor], error: Exception) -> dict[str, Tensor]:
    """The tensors in the memory of this process, with a warning."""
    warn_user(
        f"this process does not share its weights with others: the cache cannot be written "
        f"({reason(error)}); set REGARD_CACHE to a writable folder"
    )
    return dict(tensors)


def write_mapped(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a file; if this fails, the path stays unchanged."""
    entries: dict[str, tuple[str, list[int], int]] = {}
    size = 0
    for name, tensor in tensors.items():
        entries[name] = str(tensor.dtype).removeprefix("torch."), list(tensor.shape), size
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    header = json.dumps(entries).encode()
    begin = first_page(len(header))
    temporary = temporary_name(path)
    try:
        with temporary.open("w+b") as file:
            for (_, _, offset), tensor in zip(entries.values(), tensors.values(), strict=True):
                file.seek(begin + offset)
                file.write(as_bytes(tensor.detach().contiguous()).numpy().data)
            file.truncate(begin + -(-size // PAGE) * PAGE)
            file.flush()
            digest = checksum(header, map_file(file.fileno())[begin:])
            file.seek(0)
            file.write(MAGIC + digest + len(header).to_bytes(8, "little") + header)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_mapped(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that `write_mapped` has written, mapped into memory.

    Raises:
        ValueError: there is no such file, or it is damaged. (An InputError is a ValueError.)
    """
    with open_regular(path) as file:
        start, size = file.read(START), os.fstat(file.fileno()).st_size
        length = int.from_bytes(start[-8:], "little")
        begin = first_page(length)
        if len(start) < START or start[: len(MAGIC)] != MAGIC or length > LARGEST_HEADER:
            raise ValueError(f"{path} has no valid header")
        if size <= begin or size % PAGE:
            raise ValueError(f"{path} is truncated")
        header = file.read(length)
        content = map_file(file.fileno())[begin:]
    if checksum(header, content) != start[len(MAGIC) : -8]:
        raise ValueError(f"{path} is damaged: its checksum does not match")
    with suppress(OSError):
        os.utime(path)  # records that it was used; see `remove_old`
    tensors = {}
    for name, (dtype, shape, offset) in parse_json(header, MOST_VALUES).items():
        nbytes = math.prod(shape) * DTYPES[dtype].itemsize
        tensors[name] = content[offset : offset + nbytes].view(DTYPES[dtype]).view(shape)
    return tensors


def first_page(header: int) -> int:
    """The offset of the first tensor in a file with a header of this many bytes."""
    return -(-(START + header) // PAGE) * PAGE


def map_file(descriptor: int) -> Tensor:
    """All bytes of an open file. The mapping is private, and is removed with the last tensor."""
    return torch.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def checksum(header: bytes, content: Tensor) -> bytes:
    """The checksum of a header and of the sums of all pages of the content."""
    sums = content.view(torch.int64).view(-1, PAGE // 8).sum(1)
    return hashlib.sha256(header + sums.numpy().tobytes()).digest()


def remove_old(folder: Path, newest: Path) -> None:
    """Remove temporary files, and the files that were not used for the longest time if all files
    together are larger than MOST_BYTES. Processes that have mapped a file keep its content."""
    remove_leftovers(folder)
    files = [(path.stat(), path) for path in folder.glob(f"*{SUFFIX}")]
    total = 0
    for status, path in sorted(files, key=lambda each: (each[1] != newest, -each[0].st_mtime)):
        total += status.st_size
        if total > MOST_BYTES and path != newest:
            path.unlink(missing_ok=True)
