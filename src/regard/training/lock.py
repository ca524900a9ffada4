"""An exclusive lock on a run folder between processes.

The lock is an `flock` on the file `.lock` in the folder. It stays valid if the folder is renamed,
and the system releases it when the process ends, for whatever reason. On Windows and on file
systems without locks, nothing is locked.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import unwritable

NAME, TRIES = ".lock", 100


class FolderLock:
    """A lock that this process can hold on one folder."""

    descriptor: int | None = None  # of the locked file

    def acquire(self, folder: Path) -> None:
        """Lock the folder; raise an InputError that names the holder if it is locked already."""
        try:
            import fcntl
        except ImportError:
            return
        try:
            for _ in range(TRIES):
                self._try(folder, fcntl)
                if self.descriptor is not None:
                    return
            raise InputError(f"{folder} cannot be locked: choose a folder on a local disk")
        except OSError as error:
            raise unwritable(folder, error) from None

    def _try(self, folder: Path, fcntl: Any) -> None:
        """Lock the file once; it counts only if the last holder has not just removed the file."""
        path = folder / NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise InputError(
                f"{folder} is in use by another process{f' ({holder})' if holder else ''}: "
                "wait until it ends, or choose a different folder"
            ) from None
        except OSError:
            pass  # this file system has no locks
        try:
            if is_open_as(descriptor, path):
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, f"PID {os.getpid()}\n".encode(), 0)
                self.descriptor = descriptor
        finally:
            if self.descriptor is None:
                os.close(descriptor)

    def release(self, folder: Path) -> None:
        """Unlock the folder, which may have been renamed since. Does nothing without a lock, and
        keeps the lock of another process that has created a folder with this name."""
        if self.descriptor is not None:
            if is_open_as(self.descriptor, folder / NAME):
                (folder / NAME).unlink(missing_ok=True)
            os.close(self.descriptor)
            self.descriptor = None


def is_open_as(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
