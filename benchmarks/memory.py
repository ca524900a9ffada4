"""The peak memory of `regard translate` for short and long inputs.

Translating from standard input must not need more memory for more lines. Each length runs in its
own process, which reads from a file; the system reports its peak when it ends. Options after `--`
are passed to `regard translate`.

This module does not import torch: Linux initialises the peak of a process with the memory of its
parent at the start, so the parent has to be the smaller one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO


@dataclass
class Measured:
    lines: int  # of output
    seconds: float
    peak: int  # bytes


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of the file, repeated without end."""
    while True:
        empty = True
        with path.open("rb") as file:
            for line in file:
                empty = False
                yield line.rstrip(b"\n") + b"\n"  # the last line may have no line end
        if empty:
            raise SystemExit(f"{path} is empty: give a file with at least one line")


def measure(command: list[str], lines: Iterator[bytes]) -> Measured:
    """Run a command with these lines as standard input."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
        source.writelines(lines)
        source.seek(0)
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=source, stdout=target)
        # of this child only; getrusage would give the maximum over all children
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
        unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
        return Measured(count_lines(target), seconds, usage.ru_maxrss * unit)


def count_lines(file: IO[bytes]) -> int:
    file.seek(0)
    return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory", description=__doc__)
    parser.add_argument("-m", "--model", required=True, metavar="MODEL")
    parser.add_argument("--input", required=True, type=Path, metavar="FILE", help="source lines")
    parser.add_argument("--lines", nargs="+", type=int, default=[1_000, 100_000])
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, passed_on = parser.parse_args(arguments[:end]), arguments[end + 1 :]
    command = [sys.executable, "-m", "regard", "translate", "-m", options.model, *passed_on]
    first, failed = None, False
    for lines in options.lines:
        measured = measure(command, islice(lines_of(options.input), lines))
        first = first or measured
        agrees = measured.lines == lines
        failed = failed or not agrees
        print(
            f"{lines:10,} lines in, {measured.lines:,} out{'' if agrees else ' (WRONG NUMBER)'}: "
            f"peak {measured.peak / 2**20:,.0f} MiB ({measured.peak / first.peak:.2f}x the first), "
            f"{lines / measured.seconds:,.0f} lines/s",
            flush=True,
        )
    if failed:
        raise SystemExit("the number of output lines differs from the number of input lines")
