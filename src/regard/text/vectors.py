"""A numpy file (.npy) written row by row: its size is known at the end, and it appears whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError
from regard.files import PREFIX, sync_folder

KIND = np.dtype("<f4")
HEADER = 128  # bytes; numpy pads its own to a multiple of 64


class VectorFile:
    """[n, size] float32; `close(whole=False)` leaves nothing behind."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size, self.count = path, size, 0
        self.temporary = path.with_name(f"{PREFIX}{os.getpid()}-{path.name}")
        if path.is_dir():
            raise InputError(f"{path}: is a folder, not a file")
        try:
            self.file = self.temporary.open("wb")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None
        self.file.write(self._header())

    def _header(self) -> bytes:
        """Version 1.0 of the format, of a fixed length so that it can be written again."""
        shape = f"({self.count}, {self.size})"
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
        magic = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")
        return magic + text.ljust(HEADER - 11).encode() + b"\n"

    def write(self, vectors: NDArray[np.float32]) -> None:
        self.file.write(vectors.astype(KIND).tobytes())
        self.count += len(vectors)

    def close(self, whole: bool) -> None:
        try:
            if whole:
                self.file.seek(0)
                self.file.write(self._header())
                self.file.flush()
                os.fsync(self.file.fileno())
                os.replace(self.temporary, self.path)
                sync_folder(self.path.parent)
        finally:
            self.file.close()
            self.temporary.unlink(missing_ok=True)
