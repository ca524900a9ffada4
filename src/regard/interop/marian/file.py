"""Read the binary files of Marian and Bergamot: named tensors, one of which is the configuration.

    u64 version = 1, u64 n
    n x (u64 length of the name, u64 type, u64 number of dimensions, u64 bytes of data)
    n names, each terminated by a zero byte
    n shapes, int32
    u64 bytes of padding, the padding
    n x data

A quantised matrix (type 0x4101) of the shape [I, O] contains O x I integers of 8 bits, then the
float32 by which the weights were multiplied. The embeddings are stored without this transposition.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.settings import parse_yaml
from regard.errors import InputError
from regard.files import open_regular

CONFIGURATION = "special:model.yml"
FLOAT32, FLOAT16, INT8, QUANTISED = 0x404, 0x402, 0x101, 0x4101
WIDTHS = {FLOAT32: 4, FLOAT16: 2, INT8: 1, QUANTISED: 1}
MOST_TENSORS, MOST_DIMENSIONS, LONGEST_NAME = 20_000, 4, 1_000
LARGEST_CONFIGURATION = 2**20  # bytes
HEADER = struct.Struct("<4Q")
ACTIVATION_SCALE = "_QuantMultA"  # the factor of the quantised input of a matrix

Array = NDArray[np.float32]


def read_marian(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read a file.

    Args:
        path: the .bin file.

    Returns:
        The tensors by name, in float32, and the configuration. In a quantised model, the names of
        activation scales end with `_QuantMultA`.

    Raises:
        InputError: the file is damaged, or a tensor has an unsupported type.
    """
    with open_regular(path):  # refuses a pipe, a device or a folder
        pass
    try:
        content = np.memmap(path, np.uint8, "r")
        entries = _entries(content)
        configuration = entries.pop(CONFIGURATION, None)
        if configuration is None:
            raise ValueError(f"it has no {CONFIGURATION}")
        kind, _, data = configuration
        if kind != INT8 or len(data) > LARGEST_CONFIGURATION:
            raise ValueError(f"{CONFIGURATION} is not a text")
        tensors = {name: _array(name, *entry) for name, entry in entries.items()}
    except (ValueError, struct.error) as error:
        raise InputError(f"{path}: not a Marian model that regard can read ({error})") from None
    values = parse_yaml(bytes(data).rstrip(b"\0"), path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: {CONFIGURATION} is not a mapping of options")
    return tensors, values


Entry = tuple[int, tuple[int, ...], NDArray[np.uint8]]  # type, shape, data


def _entries(whole: NDArray[np.uint8]) -> dict[str, Entry]:
    """The tensors of a file by name. All sizes are checked against the size of the file."""
    size, content = len(whole), whole.data
    version, count = struct.unpack_from("<2Q", content, 0)
    if version != 1:
        raise ValueError(f"version {version} is not 1")
    place = 16
    if count > MOST_TENSORS or count * HEADER.size > size - place:
        raise ValueError(
            f"the header declares {count:,} tensors, more than the file can contain or regard "
            "allows"
        )
    headers = [HEADER.unpack_from(content, place + i * HEADER.size) for i in range(count)]
    place += count * HEADER.size
    names = []
    for length, *_ in headers:
        if not 2 <= length <= LONGEST_NAME or length > size - place:
            raise ValueError(f"the header declares a name of {length:,} bytes")
        text = bytes(content[place : place + length]).decode("ascii", "replace")
        if text[-1] != "\0" or not text[:-1].isascii() or not text[:-1].isprintable():
            raise ValueError("a name is not text")
        names.append(text[:-1])
        place += length
    if len(set(names)) != len(names):
        raise ValueError("a name is duplicated")
    shapes = []
    for name, (_, _, dimensions, _) in zip(names, headers, strict=True):
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise ValueError(
                f"{name:.60} has {dimensions:,} dimensions, but 1 to {MOST_DIMENSIONS} are "
                "supported"
            )
        if 4 * dimensions > size - place:
            raise ValueError(f"the shape of {name:.60} extends beyond the end of the file")
        shapes.append(struct.unpack_from(f"<{dimensions}i", content, place))
        place += 4 * dimensions
    (padding,) = struct.unpack_from("<Q", content, place)
    place += 8
    if padding > size - place:
        raise ValueError("the padding extends beyond the end of the file")
    place += padding
    entries: dict[str, Entry] = {}
    for name, (_, kind, _, length), shape in zip(names, headers, shapes, strict=True):
        if length > size - place:
            raise ValueError(f"{name:.60} extends beyond the end of the file")
        entries[name] = kind, shape, whole[place : place + length]
        place += length
    return entries


def _array(name: str, kind: int, shape: tuple[int, ...], data: NDArray[np.uint8]) -> Array:
    """A tensor in float32 with one or two dimensions."""
    if kind not in WIDTHS or kind == INT8:
        raise ValueError(
            f"{name:.60} has the type {kind:#x}: only float32, float16 and intgemm8 are supported"
        )
    if min(shape) < 1 or math.prod(shape) * WIDTHS[kind] > len(data):
        raise ValueError(f"{name:.60} has the shape {list(shape)} but {len(data):,} bytes")
    count = math.prod(shape)
    if kind != QUANTISED:
        numbers = np.frombuffer(data, "<f4" if kind == FLOAT32 else "<f2", count)
        return _finite(name, numbers.astype(np.float32).reshape(shape))
    if len(shape) != 2 or len(data) < count + 4:
        raise ValueError(f"{name:.60} is quantised but not a matrix with its factor")
    factor = np.frombuffer(data, "<f4", 1, count)[0]
    if name.endswith(ACTIVATION_SCALE):
        return np.full(shape, factor, np.float32)
    if not (np.isfinite(factor) and factor > 0):
        raise ValueError(f"{name:.60} has the invalid factor {factor}")
    integers = np.frombuffer(data, np.int8, count).astype(np.float32)
    if name.endswith("Wemb"):
        return integers.reshape(shape) / factor
    return np.ascontiguousarray((integers.reshape(shape[1], shape[0]) / factor).T)


def _finite(name: str, array: Array) -> Array:
    if not bool(np.isfinite(array).all()):
        raise ValueError(f"{name:.60} contains NaN or infinity")
    return array
