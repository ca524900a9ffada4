"""Read the weights of other toolkits: one or several safetensors files, or pytorch_model.bin.

The files are untrusted input. All shapes are known before the first tensor is read: a conversion
first runs with tensors that have a shape but no memory (device "meta"), so that one error names all
missing and wrong tensors, and then with the tensors of the files. A pickle is read only by the
restricted reader of PyTorch, which executes no code.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import InputError
from regard.files import open_regular
from regard.training.checkpoint import read_header

# Safetensors types that float32 can represent; float64 is accepted if its values fit in float32.
TYPES = {"F32", "F16", "BF16", "F64"}
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
LARGEST_PICKLE = 64 * 2**20  # bytes of the pickle without the tensors; 100,000 tensors take 10 MiB
# The first bytes of files from before PyTorch 1.6: the pickle of a magic number.
OLD_FORMAT = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
MOST_SHARED = 4  # names of the same numbers in a file of `torch.save`: tied matrices
MOST_NAMES = 8  # of tensors in an error message
ENOUGH = 500  # missing tensors after which no further ones are searched for
# Old files name the parameters of a norm as TensorFlow does.
OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))


class Weights:
    """The tensors of one or more files, read one at a time.

    Args:
        files: safetensors files, or files that `torch.save` wrote with the suffix .bin.

    Attributes:
        shapes: the shape of each tensor, by name.
        files: the files.

    Raises:
        InputError: a file is damaged or unsafe, or two files contain the same tensor.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = list(files)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._readers: dict[str, Callable[[], Tensor]] = {}
        self._types: dict[str, str] = {}
        for file in files:
            self._add_pickle(file) if file.suffix == ".bin" else self._add_safetensors(file)

    def _add(self, file: Path, name: str, shape: tuple[int, ...], kind: str) -> str:
        """Record a tensor; returns its name in the current convention."""
        for old, new in OLD_NAMES:
            name = name.removesuffix(old) + new if name.endswith(old) else name
        if name in self.shapes:
            raise InputError(f"{file}: the tensor {name:.100} is duplicated")
        self.shapes[name], self._types[name] = shape, kind
        return name

    def _add_safetensors(self, file: Path) -> None:
        header = read_header(file)
        try:
            source = safe_open(file, framework="pt")
        except (OSError, SafetensorError, ValueError) as error:
            raise InputError(f"{file} is not a valid safetensors file: {error}") from None
        for original, shape in header.shapes.items():
            name = self._add(file, original, shape, header.dtypes[original])
            self._readers[name] = lambda original=original: source.get_tensor(original)  # type: ignore[misc]

    def _add_pickle(self, file: Path) -> None:
        for original, tensor in read_pickle(file).items():
            kind = str(tensor.dtype).removeprefix("torch.")
            kind = "F32" if tensor.dtype in FLOATS else kind
            name = self._add(file, original, tuple(tensor.shape), kind)
            self._readers[name] = lambda tensor=tensor: tensor  # type: ignore[misc]

    def read(self, name: str) -> Tensor:
        """A tensor in float32, exactly.

        Raises:
            InputError: its type is not a floating-point type, or float32 cannot represent it.
        """
        if self._types[name] not in TYPES:
            raise InputError(
                f"{self.files[0].parent}: the tensor {name:.100} has the type "
                f"{self._types[name]:.20}: quantised weights cannot be imported; use the model in "
                "float32, float16 or bfloat16"
            )
        try:
            stored = self._readers[name]()
        except (OSError, SafetensorError, ValueError, RuntimeError) as error:
            raise InputError(f"{self.files[0].parent}: {name:.100}: {error!s:.100}") from None
        if tuple(stored.shape) != self.shapes[name]:
            raise InputError(
                f"{self.files[0].parent}: {name:.100} does not have its declared shape"
            )
        tensor = stored.to(torch.float32)
        if stored.dtype == torch.float64 and not torch.equal(tensor.double(), stored):
            raise InputError(
                f"{self.files[0].parent}: {name:.100} is in float64 and float32 cannot represent "
                "it exactly: save the model in float32"
            )
        return tensor


class TooManyProblems(Exception):
    """Raised when there are enough errors for one message."""


class TensorReader:
    """The tensors that a conversion uses: `reader(name, *shape)`.

    Args:
        weights: the tensors of the files.
        dry: return tensors without memory, and collect errors instead of raising them.
    """

    def __init__(self, weights: Weights, dry: bool) -> None:
        self._weights, self._dry = weights, dry
        self.used: set[str] = set()
        self.missing: list[str] = []
        self.wrong: list[str] = []

    def has(self, name: str) -> bool:
        """Whether the files contain a tensor."""
        return name in self._weights.shapes

    def __call__(self, name: str, *shape: int) -> Tensor:
        """The tensor with this name, which must have this shape, in float32."""
        actual = self._weights.shapes.get(name)
        self.used.add(name)
        if not self._dry:
            return self._weights.read(name)
        if actual is None:
            self.missing.append(name)
            if len(self.missing) == ENOUGH:
                raise TooManyProblems
        elif actual != shape:
            self.wrong.append(f"{name:.100} is {list(actual)!s:.60}, not {list(shape)}")
        return torch.empty(shape, device="meta")

    def skip(self, name: str) -> None:
        """Ignore a tensor, if there is one with this name."""
        self.used.add(name)

    def copy_of(self, name: str, other: str, *shape: int) -> None:
        """Check that a tensor, if there is one with this name, is equal to another one."""
        if not self.has(name) or name == other:
            return
        first, second = self(name, *shape), self(other, *shape)
        if not self._dry and not torch.equal(first, second):
            raise InputError(
                f"{self._weights.files[0].parent}: {name} differs from {other}, but config.json "
                "states that they are tied (tie_word_embeddings)"
            )


Conversion = Callable[[TensorReader], dict[str, Tensor]]


def convert(
    weights: Weights, conversion: Conversion, ignored: Iterable[str] = (), where: Path | None = None
) -> dict[str, Tensor]:
    """Run a conversion.

    Args:
        weights: the tensors of the files.
        conversion: computes the tensors of regard.
        ignored: regular expressions for the names of tensors that the model does not need.
        where: the path for error messages; by default the folder of the files.

    Returns:
        The tensors, contiguous and in float32.

    Raises:
        InputError: tensors are missing, unexpected, have wrong shapes, or differ although they are
            tied.
    """
    where = where or weights.files[0].parent
    plan = TensorReader(weights, dry=True)
    with torch.device("meta"), suppress(TooManyProblems):
        conversion(plan)
    patterns = [re.compile(pattern) for pattern in ignored]
    unexpected = [
        name
        for name in sorted(set(weights.shapes) - plan.used)
        if not any(pattern.search(name) for pattern in patterns)
    ]
    errors = [
        f"{kind}: {listed(names)}"
        for kind, names in (
            ("missing tensors", plan.missing), ("unexpected tensors", unexpected),
            ("wrong shapes", plan.wrong),
        )
        if names
    ]  # fmt: skip
    if errors:
        raise InputError(f"{where}: the weights do not match config.json: {'; '.join(errors)}")
    return {
        name: x.contiguous() for name, x in conversion(TensorReader(weights, dry=False)).items()
    }


def listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    rest = len(names) - MOST_NAMES
    return ", ".join(f"{name:.200}" for name in names[:MOST_NAMES]) + (
        f" and {rest:,} more" if rest > 0 else ""
    )


def read_pickle(file: Path) -> Mapping[str, Tensor]:
    """The tensors of a file that `torch.save` wrote. No code in the file is executed.

    An archive is mapped into memory. The format used before PyTorch 1.6 is read; a size in it that
    is larger than the file reserves memory, but the reader never writes more than the file has.

    Raises:
        InputError: the file is damaged, contains other objects than tensors, is compressed, or has
            tensors that are larger than the file.
    """
    archive = is_archive(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content: Any = torch.load(file, map_location="cpu", weights_only=True, mmap=archive)
    except pickle.UnpicklingError as error:
        objects = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"the object {objects[1]:.80}" if objects else "objects"
        raise InputError(
            f"{file}: contains {what}, which is not a tensor; no code was executed. Use a model in "
            "the safetensors format"
        ) from None
    except Exception as error:  # noqa: BLE001  the reader raises many classes for a damaged file
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{file}: not a valid PyTorch file ({message:.100})") from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(x, Tensor) and x.layout == torch.strided
        for name, x in content.items()
    ):
        raise InputError(f"{file}: not a dictionary of tensors")
    # A view can be far larger than the memory that it shows.
    total = sum(x.numel() * x.element_size() for x in content.values())
    if total > MOST_SHARED * os.path.getsize(file):
        raise InputError(
            f"{file}: its tensors are views that are larger than the file: use a model in the "
            "safetensors format"
        )
    return content


def is_archive(file: Path) -> bool:
    """Whether a PyTorch file is an archive, as PyTorch 1.6 and later write it.

    Raises:
        InputError: it has neither format, or the parts of the archive are compressed: such a part
            could be far larger than the file.
    """
    with open_regular(file) as start:
        if start.read(len(OLD_FORMAT)) == OLD_FORMAT:
            return False
    try:
        size = os.path.getsize(file)
        with zipfile.ZipFile(file) as archive:
            parts = archive.infolist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise InputError(f"{file}: not a PyTorch file ({error!s:.100})") from None
    total = sum(part.file_size for part in parts)
    compressed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
    if compressed or total > size or any(part.file_size < 0 for part in parts):
        raise InputError(
            f"{file} has compressed or overlapping parts: save it again with torch.save"
        )
    pickles = [part.file_size for part in parts if part.filename.endswith("data.pkl")]
    if len(pickles) != 1 or pickles[0] > LARGEST_PICKLE:
        raise InputError(f"{file}: not written by torch.save (its pickle is missing or too large)")
    return True
