"""Read the files of a Hugging Face model folder: none outside it, and none of unbounded size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import read_bounded, read_json, real_path
from regard.interop.tensors import Weights
from regard.text.tokenizer import LARGEST_FILE, MOST_TOKENS

LARGEST_CONFIG, LARGEST_INDEX = 4 * 2**20, 32 * 2**20  # bytes
MOST_SHARDS = 1_000
# In order of preference: safetensors before pickles, single files before indexes.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
           "pytorch_model.bin.index.json")  # fmt: skip
Options = dict[str, Any]


class Folder:
    """A model folder.

    Args:
        path: the folder.

    Attributes:
        files: the files that were read, in order.

    Raises:
        InputError: it is not a folder.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, list[Path]()
        if not path.is_dir():
            raise InputError(f"{path}: not a folder")
        self._root = real_path(path)
        self._roots = [self._root]
        # The cache of huggingface_hub has links from snapshots/REVISION to blobs.
        blobs = self._root.parent.parent / "blobs"
        if self._root.parent.name == "snapshots" and blobs.is_dir():
            self._roots.append(real_path(blobs))

    def find(self, name: str) -> Path | None:
        """The path of a file of the folder, or None if there is none with this name.

        Args:
            name: the name, possibly with subfolders; it can come from a file.

        Raises:
            InputError: the name or a link leads to a file outside the folder.
        """
        if "\0" in name or len(name) > 1_000:
            raise InputError(f"{self.path}: {name!r:.60} is not a file name")
        path = self.path / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(f"{self.path}: {name:.100} is not a file of this folder")
        try:
            if not path.exists() and not path.is_symlink():
                return None
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        if not any(real_path(path).is_relative_to(root) for root in self._roots):
            raise InputError(f"{path}: leads to a file outside the folder: copy the file into it")
        if not path.exists():
            raise InputError(f"{path}: this link points to a file that does not exist")
        return path

    def subfolder(self, name: str) -> Folder:
        """A folder inside this one; files that are read there are recorded here too."""
        path = self.find(name)
        if path is None or not path.is_dir():
            raise InputError(f"{self.path / name}: missing folder")
        inner = Folder(path)
        inner.files, inner._roots = self.files, self._roots
        return inner

    def has(self, name: str) -> bool:
        """Whether the folder contains a file with this name."""
        return self.find(name) is not None

    def file(self, name: str) -> Path:
        """The path of a required file, which is recorded as read."""
        path = self.find(name)
        if path is None:
            raise InputError(f"{self.path / name}: missing file")
        if path not in self.files:
            self.files.append(path)
        return path

    def text(self, name: str, limit: int = LARGEST_FILE) -> str:
        """The content of a file in UTF-8."""
        path = self.file(name)
        try:
            return read_bounded(path, limit, "a text").decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {error.start} is not UTF-8") from None

    def options(self, name: str, required: bool = False) -> Options:
        """The JSON object of a configuration file; empty if an optional file is missing."""
        if not required and not self.has(name):
            return {}
        value = read_json(self.file(name), LARGEST_CONFIG, "a configuration")
        if not isinstance(value, dict):
            raise InputError(f"{self.path / name}: not a JSON object")
        return value

    def large(self, name: str) -> Any:
        """The JSON value of a vocabulary."""
        most = 3 * MOST_TOKENS + 10_000
        return read_json(self.file(name), LARGEST_FILE, "a tokenizer", most)

    def weights(self) -> Weights:
        """The tensors of the folder.

        Raises:
            InputError: there are none, or an index names files outside the folder.
        """
        name = next((name for name in WEIGHTS if self.has(name)), None)
        if name is None:
            raise InputError(f"{self.path} contains no weights ({' or '.join(WEIGHTS)})")
        if not name.endswith(".json"):
            return Weights([self.file(name)])
        index = read_json(self.file(name), LARGEST_INDEX, "an index", 1_000_000)
        names = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(names, dict) or not names:
            raise InputError(f"{self.path / name}: no weight_map")
        suffix = ".bin" if ".bin" in name else ".safetensors"
        shards = {shard: 0 for shard in names.values() if isinstance(shard, str)}
        if len(shards) > MOST_SHARDS:
            raise InputError(
                f"{self.path / name}: weight_map names {len(shards):,} files, but at most "
                f"{MOST_SHARDS:,} are allowed"
            )
        if not all(isinstance(shard, str) and shard.endswith(suffix) for shard in names.values()):
            raise InputError(
                f"{self.path / name}: weight_map has entries that are not {suffix} files"
            )
        return Weights([self.file(shard) for shard in shards])
