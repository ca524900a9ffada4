"""`regard lab complexity`: the paper's table 1, measured on real layers (section 4).

Parameters, operations, sequential steps and path lengths are counted, and the same everywhere;
times and memory are this machine's. Every count stands beside its closed form, every curve beside
the exponent that the table gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.console import make_console, make_progress
from regard.device import keep_freed_memory, peak
from regard.errors import InputError
from regard.lab.common import layers as table
from regard.lab.common.counting import CPU, counted, path_length
from regard.lab.common.layer_kinds import check_kinds
from regard.lab.common.layers import LAYERS, Layer
from regard.lab.common.memory import available_memory, refuse, size
from regard.lab.common.timing import PASSES, Pass, needed_memory
from regard.lab.common.training import begin, check_out
from regard.training.distributed import choose_device

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
WIDTHS = (64, 256, 1024)
LONGEST_PATH = 4096  # tokens: a path of that many layers says enough
MOST_OPERATIONS = 4e11  # of a pass in which they are counted
ROUNDS = 2  # in which everything is timed


@dataclass
class Findings:
    """Everything that was counted and measured; a list of points for each quantity."""

    kinds: list[str]
    lengths: list[int]
    widths: list[int]
    window: int
    kernel: int
    machine: str
    peak: float  # operations a second of a large matrix product here
    parameters: list[dict[str, Any]] = field(default_factory=list)
    operations: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    paths: list[dict[str, Any]] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def points(self, what: str, **wanted: Any) -> list[dict[str, Any]]:
        """The points of a quantity that have these values."""
        found: list[dict[str, Any]] = getattr(self, what)
        return [p for p in found if all(p[key] == value for key, value in wanted.items())]

    def title(self, name: str) -> str:
        return table.title(name, self.window, self.kernel)


def complexity(
    names: Sequence[str] = (),
    lengths: Sequence[int] = (),
    widths: Sequence[int] = (),
    window: int = 64,
    kernel: int = 3,
    limit: float = 1.0,  # seconds that a pass may take to be measured
    device: str = "auto",
    dtype: str = "auto",
    quiet: bool = False,
    out: Path | None = None,
) -> Findings:
    """Count and measure; sizes that are not given are the usual ones, as far as they fit.

    out: the folder that a report will be written to; it is made before the work.
    """
    where = choose_device(device)
    check(names, lengths, widths, window, kernel, limit, where)
    if out is not None:
        check_out(out, "complexity")
        begin(out, "complexity")
    if dtype == "auto":
        dtype = "bfloat16" if where.type == "cuda" else "float32"
    kind: torch.dtype = getattr(torch, dtype)
    chosen = sorted(set(lengths)) or list(LENGTHS), sorted(set(widths)) or list(WIDTHS)
    found = Findings(
        list(names) or list(LAYERS), *chosen, window, kernel, said_machine(where, dtype),
        peak(where, kind),
    )  # fmt: skip
    console = make_console(stderr=True, quiet=quiet)
    work = len(found.kinds) * len(found.lengths)
    with make_progress(console) as bar:
        counting = bar.add_task("counting", total=work)
        for name in found.kinds:
            count(found, name, lambda: bar.advance(counting))
        weighing = bar.add_task("weighing", total=work * len(found.widths))
        weigh_all(found, where, kind, limit, lambda: bar.advance(weighing))
        timing = bar.add_task("timing", total=ROUNDS * len(found.times))
        time_all(found, where, kind, lambda: bar.advance(timing))
    found.peak = max(found.peak, peak(where, kind))  # the machine may have been busy before
    return found


def said_machine(device: torch.device, dtype: str) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {dtype}"
    threads = torch.get_num_threads()
    return f"cpu, {threads} thread{'' if threads == 1 else 's'}, {dtype}"


def check(
    names: Sequence[str],
    lengths: Sequence[int],
    widths: Sequence[int],
    window: int,
    kernel: int,
    limit: float,
    device: torch.device,
) -> None:
    """Refuse what cannot be measured, before anything is."""
    check_kinds(names, LAYERS)
    for width in widths:
        if width % 2 or (width > table.HEAD and width % table.HEAD):
            raise InputError(
                f"--widths {width}: heads have {table.HEAD} features, so give an even number up to "
                f"{table.HEAD} or a multiple of it"
            )
    for name in names or LAYERS:
        if not names and name == table.REFERENCE:
            continue  # nobody asked for it: it is measured as far as it fits
        for length in lengths or LENGTHS[:1]:
            for width in widths or WIDTHS:
                needed = needed_memory(name, length, width, window, kernel)
                refuse(needed, device, f"{name} with a length of {length} and a width of {width}")


def count(found: Findings, name: str, advance: Callable[[], None]) -> None:
    """What does not depend on the machine. Operations: every length at the smallest width, every
    width at one length, of attention the longest that is soon over."""
    r, k = found.window, found.kernel
    for d in found.widths:
        formula, number = table.parameters(name, d, k)
        actual = Layer(name, d, r, k, CPU).parameters()
        found.parameters.append(
            {"kind": name, "d": d, "counted": actual, "formula": formula, "expected": number}
        )
    soon = [
        n for n in found.lengths
        if table.operations(name, n, found.widths[-1], r, k)[1] <= MOST_OPERATIONS
        and needed_memory(name, n, found.widths[-1], r, k) < available_memory(CPU)
    ]  # fmt: skip
    sizes = [(n, found.widths[0]) for n in found.lengths]
    # Where operations are in proportion to n, any length shows how they grow with d.
    linear = table.THEORY[name].in_n == 1
    usual = found.lengths[len(found.lengths) // 2]
    sizes += [(usual if linear or not soon else soon[-1], d) for d in found.widths[1:]]
    for n, d in sizes:
        if needed_memory(name, n, d, r, k) < available_memory(CPU):
            total, chain = counted(Layer(name, d, r, k, CPU), n)
            formula, value = table.operations(name, n, d, r, k)
            found.operations.append(
                {"kind": name, "n": n, "d": d, "counted": total, "formula": formula,
                 "expected": value}
            )  # fmt: skip
            if d == found.widths[0]:
                found.steps.append({"kind": name, "n": n, "counted": chain})
            if d == found.widths[0] and n <= LONGEST_PATH:
                found.paths.append(
                    {"kind": name, "n": n, "counted": path_length(name, n, r, k),
                     "expected": table.path(name, n, r, k)}
                )  # fmt: skip
        if d == found.widths[0]:
            advance()


def weigh_all(
    found: Findings,
    device: torch.device,
    dtype: torch.dtype,
    limit: float,
    advance: Callable[[], None],
) -> None:
    """Memory of a forward pass and a training step at every length and width. What would take
    longer than the limit, going by the length before it, is left out, and so is what does not
    fit."""
    r, k = found.window, found.kernel
    for d in found.widths:
        made = {name: Layer(name, d, r, k, device, dtype) for name in found.kinds}
        before: dict[tuple[str, str], tuple[int, float]] = {}
        for n in found.lengths:
            for name, layer in made.items():
                for which in PASSES:
                    place = {"kind": name, "n": n, "d": d, "pass": which}
                    needed = needed_memory(name, n, d, r, k)
                    last = before.get((name, which))
                    quadratic = name in ("attention", table.REFERENCE)
                    growth = (n / last[0]) ** (2 if quadratic else 1) if last else 1.0
                    if needed > available_memory(device):
                        why = f"needs about {size(needed)}"
                    elif last and last[1] * growth > limit:
                        why = f"would take about {last[1] * growth:.1g} s"
                    else:
                        one = Pass(layer, n, which == "training")
                        found.times.append({**place, "seconds": math.inf, "memory": one.memory()})
                        before[name, which] = n, one.seconds(enough=0.02)
                        continue
                    found.left_out.append({**place, "why": why})
                advance()


def time_all(
    found: Findings, device: torch.device, dtype: torch.dtype, advance: Callable[[], None]
) -> None:
    """Time what was weighed, layers in turns, all of it twice: a machine that is busy for a while
    is not so again at the same point."""
    if device.type == "cpu":
        keep_freed_memory()  # as in training: pages that the system takes back are slow to return
    for _ in range(ROUNDS):
        made: dict[tuple[str, int], Layer] = {}
        for point in found.times:  # width by width
            key = point["kind"], point["d"]
            if key not in made:
                made = {one: layer for one, layer in made.items() if one[1] == key[1]}
                made[key] = Layer(*key, found.window, found.kernel, device, dtype)
            took = Pass(made[key], point["n"], point["pass"] == "training").seconds()
            point["seconds"] = min(point["seconds"], took)
            advance()
