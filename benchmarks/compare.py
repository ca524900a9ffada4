"""Run the same work with several programs in turns, check that it is the same, and show the speeds.

Calls alternate between the programs, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import ratios
from benchmarks.processes import Make, Missing, Program, started
from benchmarks.ratios import RatioLog

# A thread pool spins for some milliseconds after its last work. A program is timed only after the
# threads of the previous one have stopped, and they must not count as load of other processes.
SPIN, PAUSE = 0.02, 0.02
BUSY = 0.25  # load of other processes, as a fraction of the cores, above which nothing is counted
STAT = Path("/proc/stat")  # Linux
ABOVE = 1.1  # of the limit: the limit is a measurement, so a speed may exceed it slightly
UNEVEN = 2.0  # slowest call to fastest; a larger ratio is caused by other load on the machine
ENOUGH, MOST = 4.0, 25  # seconds of rounds, and their maximum number
OURS = "regard"
PEERS = {  # name: its name in tables, and the packages that it needs
    "huggingface": ("Hugging Face", ["transformers"]),
    "ctranslate2": ("CTranslate2", ["transformers", "ctranslate2"]),
    "onnxruntime": ("ONNX Runtime", ["transformers", "onnx", "onnxruntime"]),
    "llama.cpp": ("llama.cpp", ["llama_cpp", "gguf"]),
    "sentence-transformers": ("sentence-transformers", ["sentence_transformers"]),
    "pytorch": ("regard by PyTorch", []),  # without the C++ code, to show its gain
}
NOT_IN_EXTRA = {"llama_cpp": "llama-cpp-python"}  # compiled when it is installed, for minutes
CPU_ONLY = ("ctranslate2", "onnxruntime", "pytorch")
DTYPES = ("float32", "bfloat16", "int8")


@dataclass(frozen=True)
class Entrant:
    """A program with a precision, and the function that makes it in its own process, if any."""

    name: str
    dtype: str
    make: Make | None = None
    arguments: tuple[Any, ...] = ()
    workers: int = 1

    @property
    def label(self) -> str:
        return f"{self.name} {self.dtype}" + (", two workers" if self.workers == 2 else "")


@dataclass(frozen=True)
class Cell:
    """One request to every program, and the check that its output has the right form."""

    work: str
    request: tuple[Any, ...]
    tokens: int  # real tokens of one call (or what `unit` counts), the same for all programs
    check: Callable[[Any], str | None]  # returns what is wrong with an output
    limits: dict[str, float]  # tokens per second, for each precision
    workers: int = 2  # maximum number of workers of a program: one sentence cannot be split
    unit: str = "tokens/s"


def turns(
    cell: Cell, programs: dict[Entrant, Program], repeats: int
) -> tuple[dict[Entrant, list[float]], float]:
    """Time the calls of each program; the first round is the warm-up.

    Short calls are repeated for some seconds, because disturbances are short.

    Returns:
        The seconds of the calls of each program, and the load of other processes as a fraction of
        the cores, measured between the calls, when no program works.
    """
    times: dict[Entrant, list[float]] = {entrant: [] for entrant in programs}
    began, worked, idle = time.perf_counter(), 0, 1
    for repeat in range(MOST + 1):
        if repeat > repeats and time.perf_counter() - began > ENOUGH:
            break
        for entrant, program in programs.items():
            time.sleep(SPIN)
            before = ticks()
            time.sleep(PAUSE)
            after = ticks()
            worked, idle = worked + after[0] - before[0], idle + after[1] - before[1]
            output, seconds = program(*cell.request)
            wrong = cell.check(output)
            if wrong is not None:
                raise SystemExit(f"{entrant.label} did different work than {cell.work}: {wrong}")
            if repeat:
                times[entrant].append(seconds)
    return times, worked / (worked + idle)


def ticks() -> tuple[int, int]:
    """Busy and idle time of all cores together; zero where the system does not provide it."""
    if not STAT.exists():
        return 0, 0
    with STAT.open() as file:
        user, nice, system, idle, waiting, *more = map(int, file.readline().split()[1:8])
    return user + nice + system + sum(more), idle + waiting


def busy_others(before: tuple[int, int], own: float) -> float:
    """The load of other processes since `before`, while this process worked for `own` seconds."""
    worked, idle = (now - then for now, then in zip(ticks(), before, strict=True))
    return max(0.0, worked - own * os.sysconf("SC_CLK_TCK")) / max(1, worked + idle)


def compare(cell: Cell, programs: dict[Entrant, Program], repeats: int, log: RatioLog) -> None:
    """Time one request with all programs that can split it, and show the speeds."""
    able = {entrant: program for entrant, program in programs.items()
            if entrant.workers <= cell.workers}  # fmt: skip
    times, others = turns(cell, able, repeats)
    show(cell.work, times, cell.tokens, cell.limits, log, others, cell.unit)


def show(
    work: str,
    times: dict[Entrant, list[float]],
    tokens: float,
    limits: dict[str, float],
    log: RatioLog,
    others: float = 0.0,
    unit: str = "tokens/s",
) -> None:
    """Print the speed of each program, and log a row for each precision of regard and each peer.

    Args:
        times: seconds of the calls.
        tokens: tokens of one call.
        limits: tokens per second, for each precision.
        others: load of other processes as a fraction of the cores.
        unit: of the speed.
    """
    speeds = {entrant: tokens / statistics.median(t) for entrant, t in times.items()}
    parts = {entrant: speed / limits[entrant.dtype] for entrant, speed in speeds.items()}
    # A speed above the limit means that the machine was busy when the limit was measured.
    uneven = {e for e, t in times.items() if max(t) > UNEVEN * min(t) or parts[e] > ABOVE}
    print(f" {work}")
    if others > BUSY:
        print(f"  NOISY: other processes used {others:.0%} of the cores")
        uneven = set(times)
    for entrant, speed in speeds.items():
        note = "  NOISY: not counted" if entrant in uneven else ""
        print(f"  {entrant.label:32}{speed:10,.0f} {unit} {parts[entrant]:6.1%} of the limit{note}")
    own = [entrant for entrant in speeds if entrant.name == OURS]
    peers = [entrant for entrant in speeds if entrant.name != OURS]
    for entrant, peer in product(own, peers):
        if not {entrant, peer} & uneven:
            log.add(
                work, entrant.dtype, speeds[entrant], unit, peer.label, speeds[peer],
                parts[entrant],
            )  # fmt: skip
    if own and peers:
        best = max(own, key=speeds.__getitem__)
        factors = [f"{speeds[best] / speeds[p]:.2f}x {p.label}" for p in peers]
        print(f"  {best.label} is " + ", ".join(factors), flush=True)


@contextmanager
def all_started(entrants: Sequence[Entrant]) -> Iterator[dict[Entrant, Program]]:
    """Start the programs. Prints one line for each that is not available."""
    with ExitStack() as stack:
        programs = {}
        for entrant in entrants:  # all at once, because imports take seconds
            assert entrant.make is not None
            programs[entrant] = stack.enter_context(started(entrant.make, *entrant.arguments))
        for entrant, program in list(programs.items()):
            try:
                program.wait()
            except Missing as missing:
                print(f"{entrant.label} is skipped: {missing}")
                del programs[entrant]
        yield programs


def available(names: Sequence[str], device: str) -> list[str]:
    """The peers that can be measured here. Prints one line for each that cannot."""
    peers = []
    for peer in names:
        name, needed = PEERS[peer]
        missing = [package for package in needed if find_spec(package) is None]
        if missing:
            install = NOT_IN_EXTRA.get(missing[0], "-e '.[bench]'")
            print(f"{name} is skipped: {missing[0]} is missing (pip install {install})")
        elif peer in CPU_ONLY and device != "cpu":
            print(f"{name} is skipped: it is measured on the CPU only")
        else:
            peers.append(peer)
    return peers


def precisions(options: argparse.Namespace) -> Sequence[str]:
    """The precisions of all programs, including the peers."""
    more = ["float32", "int8"] if options.device == "cpu" else []
    return list(dict.fromkeys([*options.dtype, *more]))


def add_options(parser: argparse.ArgumentParser, peers: Sequence[str], repeats: int) -> None:
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--peers", nargs="*", default=list(peers), choices=peers)
    parser.add_argument(
        "--threads", type=int, help="threads of each program (default: that of PyTorch)"
    )
    parser.add_argument("--repeats", type=int, default=repeats, help="calls after the warm-up")
    ratios.add_options(parser)
