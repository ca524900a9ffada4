"""The parser of GGUF files: the types of tensors, and damaged files."""

import resource
import struct
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from interop.gguf_files import entry, header, random_tensors, string, write
from regard.errors import InputError
from regard.interop.gguf import read as gguf_read
from regard.interop.gguf.file import read_file, write_file
from regard.interop.gguf.types import BLOCKS, NAMES, dequantise


@pytest.mark.parametrize("type", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1])
def test_every_type_is_dequantised_as_by_the_package(type, tmp_path):
    x = np.random.default_rng(1).normal(size=(40, 96)).astype(np.float32)
    path = write(tmp_path / "model.gguf", tensors={"x": x}, types={"x": type})
    own = read_file(path).read(["x"])["x"]
    [tensor] = gguf.GGUFReader(path).tensors
    assert tensor.tensor_type == type
    assert np.array_equal(own.numpy(), gguf.quants.dequantize(tensor.data, type))
    assert abs(own.numpy() - x).max() < 0.4  # the right order of elements


@pytest.mark.parametrize("type", [Type.Q4_K, Type.Q6_K])
def test_types_with_large_blocks_are_dequantised_as_by_the_package(type):
    generator = np.random.default_rng(2)
    data = generator.integers(0, 256, (3, 7 * BLOCKS[type][1]), np.uint8)
    # The float16 scales: random bytes could be NaN.
    blocks = data.reshape(-1, BLOCKS[type][1])
    places = (0, 2) if type == Type.Q4_K else (208,)
    for place in places:
        scales = generator.normal(size=(len(blocks), 1)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8)
    own = dequantise(torch.from_numpy(data.copy()).flatten(), int(type))
    assert np.array_equal(own.numpy(), gguf.quants.dequantize(data, type).flatten())


def test_the_names_and_block_sizes_are_those_of_the_package():
    assert {number: Type(number).name for number in NAMES} == NAMES
    for number, sizes in BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[Type(number)] == sizes


def test_the_package_reads_what_we_write(tmp_path):
    tensors = {"a": torch.randn(3, 5), "b.weight": torch.randn(7)}
    metadata = {
        "general.architecture": "llama", "n": 5, "x": 0.5, "flag": True, "names": ["ä", "", "b"],
        "ints": [-1, 2], "reals": [0.25], "none": [],
    }  # fmt: skip
    write_file(tmp_path / "a.gguf", metadata, tensors)
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    assert {t.name: t.data.tolist() for t in reader.tensors} == {
        name: x.tolist() for name, x in tensors.items()
    }
    contents = {key: reader.fields[key].contents() for key in metadata if key != "none"}
    assert contents == {key: value for key, value in metadata.items() if key != "none"}
    own = read_file(tmp_path / "a.gguf")
    assert own.metadata["none"] == []
    assert all(torch.equal(x, tensors[name]) for name, x in own.read(tensors).items())
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


HUGE = 10**18
DAMAGED = {
    "empty": (b"", "not a GGUF file"),
    "another format": (b"PK\3\4" + bytes(100), "not a GGUF file"),
    "only a magic number": (b"GGUF", "ends within its version"),
    "version 1": (header(version=1), "GGUF version 1 is not supported; use 2 or 3"),
    "big-endian": (header(version=3 << 24), "big-endian GGUF version"),
    "many tensors": (header(tensors=HUGE), "1,000,000,000,000,000,000 tensors"),
    "many keys": (header(keys=HUGE), "1,000,000,000,000,000,000 metadata keys"),
    "missing tensors": (header(tensors=3), "ends within the name of a tensor"),
    "missing keys": (header(keys=3), "ends within a metadata key"),
    "a long key": (header(keys=1) + struct.pack("<Q", 2**60), "a metadata key has 1,152,921"),
    "a long string": (
        header(keys=1) + string("general.name") + struct.pack("<IQ", 8, 2**60),
        "general.name has 1,152,921",
    ),
    "a string after the end": (
        header(keys=1) + string("general.name") + struct.pack("<IQ", 8, 1000),
        "ends within general.name",
    ),
    "not UTF-8": (header(keys=1) + string(b"\xff\xfe"), "a metadata key is not UTF-8"),
    "a duplicate key": (
        header(keys=2) + 2 * (string("a") + struct.pack("<II", 4, 1)),
        "the metadata key 'a' is duplicated",
    ),
    "an unknown type of value": (
        header(keys=1) + string("a") + struct.pack("<I", 77), "a has the unknown type 77",
    ),
    "nested arrays": (
        header(keys=1) + string("a") + struct.pack("<IIQ", 9, 9, 1) * 1000,
        "a is an array of arrays",
    ),
    "a long array of numbers": (
        header(keys=1) + string("a") + struct.pack("<IIQ", 9, 5, 2**62), "ends within a",
    ),
    "a long array of strings": (
        header(keys=1) + string("a") + struct.pack("<IIQ", 9, 8, 2**62),
        "4,611,686,018,427,387,904 strings in a",
    ),
    "an array of strings after the end": (
        header(keys=1) + string("a") + struct.pack("<IIQ", 9, 8, 1_000_000) + bytes(1000),
        "ends within a",
    ),
    "too many strings in all": (
        header(keys=2) + b"".join(
            string(key) + struct.pack("<IIQ", 9, 8, 1_001_000) + bytes(8_008_000) for key in "ab"
        ),
        "more than 2,000,000 strings",
    ),
    "no dimensions": (header(tensors=1) + entry(shape=()), "unsupported number of dimensions (0)"),
    "many dimensions": (
        header(tensors=1) + string("x") + struct.pack("<I", 2**31), "dimensions (2,147,483,648)",
    ),
    "a dimension of 0": (header(tensors=1) + entry(shape=(32, 0)), "x has the invalid shape 0x32"),
    "absurd dimensions": (
        header(tensors=1) + entry(shape=(2**62, 2**62)) + bytes(64), "the invalid shape 4611686",
    ),
    "a negative dimension": (
        header(tensors=1) + entry(shape=(2**64 - 1,)) + bytes(64), "the invalid shape 18446744073709",
    ),
    "an unknown type": (header(tensors=1) + entry(type=999), "x has the type unknown type 999"),
    "an unsupported type": (header(tensors=1) + entry(type=13), "x has the type Q5_K, but regard"),
    "an incomplete block": (
        header(tensors=1) + entry(shape=(33,), type=2) + bytes(64), "the block size 32 of Q4_0",
    ),
    "an offset after the end": (
        header(tensors=1) + entry(offset=2**40) + bytes(256), "x ends at byte 1,099,511,627,",
    ),
    "an offset that overflows": (
        header(tensors=1) + entry(offset=2**64 - 32) + bytes(256), "x ends at byte 18,446,744",
    ),
    "an unaligned offset": (
        header(tensors=1) + entry(offset=8) + bytes(256), "the offset of x is not a multiple of 32",
    ),
    "overlapping tensors": (
        header(tensors=2) + entry("x") + entry("y", offset=64) + bytes(512),
        "the tensors x and y overlap",
    ),
    "a duplicate tensor": (
        header(tensors=2) + entry() + entry(offset=128) + bytes(512), "the tensor 'x' is duplicated",
    ),
    "a bad alignment": (
        header(keys=1) + string("general.alignment") + struct.pack("<II", 4, 33),
        "general.alignment is 33",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_gives_one_clear_error(name, tmp_path):
    content, message = DAMAGED[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(InputError) as error:
        gguf_read.read(path)
    assert time.perf_counter() - start < 2
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_truncation_of_a_file_is_an_error(tmp_path):
    whole = write(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 400, 7), *range(400, len(whole), 4999), len(whole) - 33]:
        cut.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"cut\.gguf: "):
            gguf_read.read(cut)


def test_changed_bytes_never_crash(tmp_path):
    whole = write(tmp_path / "whole.gguf", tensors=random_tensors("llama")).read_bytes()
    generator = np.random.default_rng(3)
    path = tmp_path / "changed.gguf"
    errors = 0
    for _ in range(60):
        content = bytearray(whole)
        for place in generator.integers(4, 6000, 3):
            content[place] = generator.integers(256)
        path.write_bytes(content)
        try:
            gguf_read.read(path)
        except InputError:
            errors += 1
    assert errors > 10


def test_absurd_counts_need_little_memory(tmp_path):
    """300 MB of address space above what Python with torch needs, for counts of exabytes."""
    files = []
    for number, name in enumerate(("many tensors", "a long string", "a long array of numbers")):
        files.append(tmp_path / f"{number}.gguf")
        files[-1].write_bytes(DAMAGED[name][0] + bytes(2**20))
    code = (
        "import resource, sys; from pathlib import Path; from regard.interop.gguf import read as gguf_read\n"
        "from regard.errors import InputError\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 300 * 2**20,) * 2)\n"
        "for path in sys.argv[1:]:\n"
        "    try: gguf_read.read(Path(path))\n"
        "    except InputError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-300:]
    assert len(done.stdout.splitlines()) == len(files)
    assert resource.RLIMIT_AS  # the limit exists on this system


def test_a_full_disk_is_not_a_mistake_of_the_user():
    with pytest.raises(OSError, match="No space left on device"):
        write_file(Path("/dev/full"), {}, {"x": torch.zeros(100_000)})
