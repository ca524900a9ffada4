"""One piece of work by several programs: in turns, checked to be the same, and shown.

Calls alternate between the programs, so that whatever else the machine does hits them all.
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

# A thread pool spins for some milliseconds after its last work: no program shall be timed while
# the threads of the one before still hold the cores, nor shall they count as others' work.
SPIN, PAUSE = 0.02, 0.02
BUSY = 0.25  # of the cores, by others: more is not quiet
STAT = Path("/proc/stat")  # Linux
ABOVE = 1.1  # of the limit: it is measured, too, so a little more may be
UNEVEN = 2.0  # slowest call to fastest: more is not the program but the machine
ENOUGH, MOST = 4.0, 25  # seconds of rounds, and how many there are at most
OURS = "regard"
PEERS = {  # name: what it is called in a table, and the packages it needs
    "huggingface": ("Hugging Face", ["transformers"]),
    "ctranslate2": ("CTranslate2", ["transformers", "ctranslate2"]),
    "onnxruntime": ("ONNX Runtime", ["transformers", "onnx", "onnxruntime"]),
    "pytorch": ("regard by PyTorch", []),  # without its native code: does that pay?
}
CPU_ONLY = ("ctranslate2", "onnxruntime", "pytorch")
DTYPES = ("float32", "bfloat16", "int8")


@dataclass(frozen=True)
class Entrant:
    """A program with its precision, and how its process makes it, where it has one."""

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
    """What every program is asked, and when it has done the same as the others."""

    work: str
    request: tuple[Any, ...]
    tokens: int  # of one call, real ones: the same for all
    check: Callable[[Any], str | None]  # what is wrong with an answer
    limits: dict[str, float]  # tokens a second that each precision could reach
    workers: int = 2  # of a program, at most: one sentence cannot be split


def turns(
    cell: Cell, programs: dict[Entrant, Program], repeats: int
) -> tuple[dict[Entrant, list[float]], float]:
    """Seconds of each program's calls; the first round warms up. Short calls are repeated until
    some time has passed, since what disturbs them does not last. And how busy others kept the
    cores meanwhile: between two calls nothing of ours works."""
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
            answer, seconds = program(*cell.request)
            wrong = cell.check(answer)
            if wrong is not None:
                raise SystemExit(f"{entrant.label} did other work than {cell.work}: {wrong}")
            if repeat:
                times[entrant].append(seconds)
    return times, worked / (worked + idle)


def ticks() -> tuple[int, int]:
    """What all cores together have worked and been idle; nothing where the system does not tell."""
    if not STAT.exists():
        return 0, 0
    with STAT.open() as file:
        user, nice, system, idle, waiting, *more = map(int, file.readline().split()[1:8])
    return user + nice + system + sum(more), idle + waiting


def busy_others(before: tuple[int, int], own: float) -> float:
    """How busy others kept the cores since `before`, while this process worked `own` seconds."""
    worked, idle = (now - then for now, then in zip(ticks(), before, strict=True))
    return max(0.0, worked - own * os.sysconf("SC_CLK_TCK")) / max(1, worked + idle)


def compare(cell: Cell, programs: dict[Entrant, Program], repeats: int, log: RatioLog) -> None:
    able = {entrant: program for entrant, program in programs.items()
            if entrant.workers <= cell.workers}  # fmt: skip
    times, others = turns(cell, able, repeats)
    show(cell.work, times, cell.tokens, cell.limits, log, others)


def show(
    work: str,
    times: dict[Entrant, list[float]],
    tokens: float,
    limits: dict[str, float],
    log: RatioLog,
    others: float = 0.0,
) -> None:
    """The speed of each program, and a row for each of ours beside each peer.

    times: seconds of calls of so many tokens each; limits: tokens a second of each precision;
    others: how busy they kept the machine.
    """
    speeds = {entrant: tokens / statistics.median(t) for entrant, t in times.items()}
    parts = {entrant: speed / limits[entrant.dtype] for entrant, speed in speeds.items()}
    # Nobody is faster than the limit: where one is, others were busy when that was measured.
    uneven = {e for e, t in times.items() if max(t) > UNEVEN * min(t) or parts[e] > ABOVE}
    print(f" {work}")
    if others > BUSY:
        print(f"  NOT QUIET: others kept the cores {others:.0%} busy")
        uneven = set(times)
    for entrant, speed in speeds.items():
        said = "  NOT QUIET: it does not count" if entrant in uneven else ""
        print(
            f"  {entrant.label:32}{speed:10,.0f} tokens/s {parts[entrant]:6.1%} of the limit{said}"
        )
    ours = [entrant for entrant in speeds if entrant.name == OURS]
    peers = [entrant for entrant in speeds if entrant.name != OURS]
    for entrant, peer in product(ours, peers):
        if not {entrant, peer} & uneven:
            log.add(
                work, entrant.dtype, speeds[entrant], "tokens/s", peer.label, speeds[peer],
                parts[entrant],
            )  # fmt: skip
    if ours and peers:
        best = max(ours, key=speeds.__getitem__)
        beside = [f"{speeds[best] / speeds[p]:.2f}x {p.label}" for p in peers]
        print(f"  {best.label} is " + ", ".join(beside), flush=True)


@contextmanager
def all_started(entrants: Sequence[Entrant]) -> Iterator[dict[Entrant, Program]]:
    """Those that can be had; a line for each that cannot."""
    with ExitStack() as stack:
        programs = {}
        for entrant in entrants:  # all at once, since each takes seconds to import what it needs
            assert entrant.make is not None
            programs[entrant] = stack.enter_context(started(entrant.make, *entrant.arguments))
        for entrant, program in list(programs.items()):
            try:
                program.wait()
            except Missing as missing:
                print(f"{entrant.label} is skipped: {missing}")
                del programs[entrant]
        yield programs


def available(wanted: Sequence[str], device: str) -> list[str]:
    """The peers that can be measured here; a line for each that cannot."""
    peers = []
    for peer in wanted:
        name, needed = PEERS[peer]
        missing = [package for package in needed if find_spec(package) is None]
        if missing:
            print(f"{name} is skipped: {missing[0]} is missing (pip install -e '.[bench]')")
        elif peer in CPU_ONLY and device != "cpu":
            print(f"{name} is skipped: it is measured on the CPU only")
        else:
            peers.append(peer)
    return peers


def precisions(options: argparse.Namespace) -> Sequence[str]:
    """Of all programs: those of the peers, too."""
    more = ["float32", "int8"] if options.device == "cpu" else []
    return list(dict.fromkeys([*options.dtype, *more]))


def add_options(parser: argparse.ArgumentParser, peers: Sequence[str], repeats: int) -> None:
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--peers", nargs="*", default=list(peers), choices=peers)
    parser.add_argument("--threads", type=int, help="of each program (default: PyTorch's)")
    parser.add_argument(
        "--repeats", type=int, default=repeats, help="calls, after one that warms up"
    )
    ratios.add_options(parser)
