"""The log: it does not wait for what reads it."""

from __future__ import annotations

import threading

from regard.serve import log
from regard.serve.log import Log


def test_lines_are_written_in_order():
    written = []
    lines = Log(written.append)
    for i in range(100):
        lines(str(i))
    lines.flush(20)
    assert "".join(written) == "".join(f"{i}\n" for i in range(100))


def test_lines_are_dropped_while_nothing_reads_them(monkeypatch):
    monkeypatch.setattr(log, "MOST_LINES", 3)
    written, writing, readable = [], threading.Event(), threading.Event()

    def write(text):
        writing.set()
        readable.wait(20)
        written.append(text)

    lines = Log(write)
    lines("first")
    assert writing.wait(20)
    for i in range(10):  # returns although the first line is not written
        lines(str(i))
    lines.flush(0.01)
    assert written == []
    readable.set()
    lines.flush(20)
    assert written == ["first\n", "0\n1\n2\nregard: 7 lines of the log were dropped\n"]
