"""Write a numpy file (.npy) row by row: the number of rows is not known at the start."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.files import check_destination, named, sync_folder, temporary_name, unwritable

KIND = np.dtype("<f4")


class VectorFile:
    """A file of vectors [n, size] in float32, written atomically.

    `close(whole=False)` discards the file.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size, self.count = path, size, 0
        self.temporary = temporary_name(path)
        check_destination(path)
        try:
            self.file = self.temporary.open("wb")
        except OSError as error:
            raise unwritable(path, error) from None
        self._write_header()

    def _write_header(self) -> None:
        """numpy leaves room for any number of rows, so that the header can be overwritten."""
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self.size)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def write(self, vectors: NDArray[np.float32]) -> None:
        with named(self.path):
            self.file.write(np.asarray(vectors, KIND).tobytes())
        self.count += len(vectors)

    def close(self, whole: bool) -> None:
        with named(self.path):
            try:
                if whole:
                    self.file.seek(0)
                    self._write_header()
                    self.file.flush()
                    os.fsync(self.file.fileno())
                    os.replace(self.temporary, self.path)
                    sync_folder(self.path.parent)
            finally:
                self.temporary.unlink(missing_ok=True)
                self.file.close()  # last: it writes the buffer, which may fail again
