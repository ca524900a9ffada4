"""Numbers that the processes of a service share: their metrics, and the rates of clients."""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from typing import Any

WAYS = 8  # clients of a set, whose hashes have the same remainder
SETS = 1_250  # remainders: rates of up to 10,000 clients are remembered
HASH, TOKENS, TIME = range(3)  # columns of a client


class SharedNumbers:
    """A table of floats in memory that processes share; zero at first.

    It can be passed to a process that is being started. The memory has no name, so nothing is left
    behind, however the processes end.
    """

    def __init__(self, rows: int, columns: int, descriptor: int | None = None) -> None:
        self.rows, self.columns = rows, columns
        if descriptor is None:
            with tempfile.TemporaryFile() as file:
                file.truncate(rows * columns * 8)
                descriptor = os.dup(file.fileno())
        self._descriptor = descriptor
        self._values = memoryview(mmap.mmap(descriptor, rows * columns * 8)).cast("d")

    def __reduce__(self) -> tuple[Any, ...]:
        return attach, (self.rows, self.columns, DupFd(self._descriptor))

    def row(self, index: int) -> memoryview[float]:
        """One row of the table, which can be changed."""
        return self._values[index * self.columns : (index + 1) * self.columns]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude other processes. If a process is killed, its lock is released."""
        import fcntl

        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


def attach(rows: int, columns: int, descriptor: Any) -> SharedNumbers:
    """The numbers that another process shares."""
    return SharedNumbers(rows, columns, descriptor.detach())


class SharedRates:
    """A limit on the requests per minute of each client, counted over all processes; see
    `RateLimit`. Use it in one thread of each process.

    The table has sets of WAYS clients. In a full set, the client that was not seen for the longest
    time is forgotten.
    """

    def __init__(self, per_minute: int, table: SharedNumbers) -> None:
        self.per_minute, self.table = per_minute, table

    @staticmethod
    def make_table() -> SharedNumbers:
        """An empty table."""
        return SharedNumbers(SETS * WAYS, 3)

    def wait(self, client: str, now: float | None = None) -> float:
        """Count a request. Returns 0, or the seconds until the next request is allowed."""
        if not self.per_minute:
            return 0.0
        now = time.monotonic() if now is None else now  # the same clock in all processes
        full, rate = float(self.per_minute), self.per_minute / 60
        digest = hashlib.blake2b(client.encode(errors="replace"), digest_size=6).digest()
        number = int.from_bytes(digest, "little") + 1  # exact as a float, and not zero
        first = number % SETS * WAYS
        with self.table.lock():
            rows = [self.table.row(first + way) for way in range(WAYS)]
            row = next((row for row in rows if row[HASH] == number), None)
            if row is None:
                row = min(rows, key=lambda row: row[TIME])
                row[HASH], row[TOKENS], row[TIME] = number, full, now
            tokens = min(full, row[TOKENS] + max(0.0, now - row[TIME]) * rate)
            allowed = tokens >= 1
            row[TOKENS], row[TIME] = tokens - allowed, now
        return 0.0 if allowed else (1 - tokens) / rate
