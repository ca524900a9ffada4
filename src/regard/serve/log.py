"""The log on standard error, written by a thread of its own.

If what reads standard error stops reading, for example a pager, a write waits. The event loop must
not wait with it: lines are dropped when too many of them wait.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

MOST_LINES = 10_000  # that wait to be written


def write_lines(text: str) -> None:
    """Write lines to standard error."""
    with suppress(OSError, ValueError):  # it is closed: requests must still be answered
        sys.stderr.write(text)
        sys.stderr.flush()


class Log:
    """Call it with a line, in any thread; it does not wait.

    Args:
        write: writes one or more lines.
    """

    def __init__(self, write: Callable[[str], None] = write_lines) -> None:
        self._write = write
        self._changed = threading.Condition()  # protects the following
        self._lines: deque[str] = deque()
        self._dropped = 0  # lines
        self._thread: threading.Thread | None = None
        self._writing = False  # whether the thread writes lines

    def __call__(self, line: str) -> None:
        with self._changed:
            if len(self._lines) >= MOST_LINES:
                self._dropped += 1
                return
            self._lines.append(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float = 1.0) -> None:
        """Wait until all lines are written, but not longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._writing), seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                self._writing = True
                lines = list(self._lines)
                if self._dropped:
                    lines.append(f"regard: {self._dropped} lines of the log were dropped")
                self._lines.clear()
                self._dropped = 0
            self._write("".join(f"{line}\n" for line in lines))
