"""Write a numpy file (.npy) row by row: the number of rows is not known at the start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.files import check_destination, named, sync_folder, unwritable

KIND = np.dtype("<f4")


class VectorFile:
    """A file of vectors [n, size] in float32.

    While it is written, its name ends with `.partial`, and it is a valid file with all vectors so
    far, also if the process is killed. `close` gives it its name.

    Args:
        path: the name of the complete file.
        size: the number of features of a vector.

    Raises:
        InputError: the file cannot be written.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size, self.count = path, size, 0
        self.partial = path.with_name(f"{path.name}.partial")
        check_destination(path)
        check_destination(self.partial)
        try:
            self.file = self.partial.open("wb")
        except OSError as error:
            raise unwritable(path, error) from None
        self._write_header()

    def _write_header(self) -> None:
        """NumPy leaves room for any number of rows, so that the header can be overwritten."""
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self.size)}
        self.file.seek(0)
        np.lib.format.write_array_header_1_0(self.file, header)
        self.file.flush()

    def write(self, vectors: Sequence[NDArray[np.float32]] | NDArray[np.float32]) -> None:
        """Append vectors: [n, size]."""
        with named(self.path):
            self.file.seek(0, os.SEEK_END)
            self.file.write(np.asarray(vectors, KIND).tobytes())
            self.file.flush()
            self.count += len(vectors)
            self._write_header()  # last: the header must not count more rows than the file has

    def close(self, whole: bool) -> Path | None:
        """Close the file.

        Args:
            whole: whether it is complete and gets its name.

        Returns:
            The partial file, if `whole` is False and the file has vectors; an empty one is removed.
        """
        keep = not whole and self.count > 0
        with named(self.path):
            try:
                if whole:
                    os.fsync(self.file.fileno())
                    os.replace(self.partial, self.path)
                    sync_folder(self.path.parent)
            finally:
                if not keep:
                    self.partial.unlink(missing_ok=True)
                self.file.close()  # last: it writes the buffer, which may fail again
        return self.partial if keep else None
