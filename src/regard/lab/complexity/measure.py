"""`regard lab complexity`: the paper's table 1, measured on real layers (section 4).

Parameters, operations, sequential steps and path lengths are counted, and are the same everywhere;
times and memory are this machine's. Every count is compared with its closed form, every curve with
the exponent in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.console import make_console, make_progress
from regard.device import choose_device, keep_freed_memory, peak
from regard.errors import InputError
from regard.lab.common import layers
from regard.lab.common.counting import CPU, count_operations, path_length
from regard.lab.common.layer_kinds import check_layer_kinds, layer_title
from regard.lab.common.layers import HEAD, LAYERS, REFERENCE, Layer
from regard.lab.common.memory import available_memory, check_memory, gigabytes
from regard.lab.common.timing import PASSES, Pass, machine_name, needed_memory
from regard.lab.common.training import check_out, create_out

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
WIDTHS = (64, 256, 1024)
LONGEST_PATH = 4096  # tokens
MOST_OPERATIONS = 4e11  # of a pass in which they are counted
ROUNDS = 2  # of all timings

Points = list[dict[str, Any]]


@dataclass
class LayerMeasurements:
    """Everything that was counted and measured: a list of points for each quantity."""

    kinds: list[str]
    lengths: list[int]
    widths: list[int]
    window: int
    kernel: int
    machine: str
    peak: float  # operations per second of a large matrix product on this machine
    parameters: Points = field(default_factory=list)
    operations: Points = field(default_factory=list)
    steps: Points = field(default_factory=list)
    paths: Points = field(default_factory=list)
    times: Points = field(default_factory=list)
    left_out: Points = field(default_factory=list)

    def points(self, quantity: str, **values: Any) -> Points:
        """The points of a quantity that have these values."""
        points: Points = getattr(self, quantity)
        return [p for p in points if all(p[key] == value for key, value in values.items())]

    def title(self, name: str) -> str:
        return layer_title(name, self.window, self.kernel)


def measure_complexity(
    kinds: Sequence[str] = (),
    lengths: Sequence[int] = (),
    widths: Sequence[int] = (),
    window: int = 64,
    kernel: int = 3,
    limit: float = 1.0,
    device: str = "auto",
    dtype: str = "auto",
    quiet: bool = False,
    out: Path | None = None,
) -> LayerMeasurements:
    """Count and measure. Empty sizes: the defaults, as far as they fit into memory.

    limit: a pass that would take more seconds is left out.
    out: the folder of the report, which is created before the work.
    """
    chosen_device = choose_device(device)
    check_sizes(kinds, lengths, widths, window, kernel, chosen_device)
    if out is not None:
        check_out(out, "complexity")
        create_out(out, "complexity")
    gpu = chosen_device.type == "cuda"
    if dtype == "auto":
        dtype = "bfloat16" if gpu else "float32"
    torch_dtype: torch.dtype = getattr(torch, dtype)
    machine = torch.cuda.get_device_name(chosen_device) if gpu else machine_name(chosen_device)
    measured = LayerMeasurements(
        list(kinds) or list(LAYERS), sorted(set(lengths)) or list(LENGTHS),
        sorted(set(widths)) or list(WIDTHS), window, kernel, f"{machine}, {dtype}",
        peak(chosen_device, torch_dtype),
    )  # fmt: skip
    work = len(measured.kinds) * len(measured.lengths)
    with make_progress(make_console(stderr=True, quiet=quiet)) as bar:
        counting = bar.add_task("counting", total=work)
        for name in measured.kinds:
            count(measured, name, lambda: bar.advance(counting))
        memory = bar.add_task("measuring memory", total=work * len(measured.widths))
        measure_memory(measured, chosen_device, torch_dtype, limit, lambda: bar.advance(memory))
        timing = bar.add_task("timing", total=ROUNDS * len(measured.times))
        measure_times(measured, chosen_device, torch_dtype, lambda: bar.advance(timing))
    measured.peak = max(
        measured.peak, peak(chosen_device, torch_dtype)
    )  # the machine may have been busy
    return measured


def check_sizes(
    kinds: Sequence[str], lengths: Sequence[int], widths: Sequence[int], window: int, kernel: int,
    device: torch.device,
) -> None:  # fmt: skip
    """Refuse invalid sizes before the first measurement."""
    check_layer_kinds(kinds, LAYERS)
    for width in widths:
        if width % 2 or (width > HEAD and width % HEAD):
            raise InputError(
                f"--widths {width}: heads have {HEAD} features, so give an even number up to "
                f"{HEAD} or a multiple of it"
            )
    for name in kinds or LAYERS:
        if not kinds and name == REFERENCE:
            continue  # not requested by name: it is measured as far as it fits
        for length in lengths or LENGTHS[:1]:
            for width in widths or WIDTHS:
                request = f"{name} with a length of {length} and a width of {width}"
                check_memory(needed_memory(name, length, width, window, kernel), device, request)


def count(measured: LayerMeasurements, name: str, advance: Callable[[], None]) -> None:
    """Count what does not depend on the machine. Operations: every length at the smallest width,
    and every width at one length, for attention the longest that does not take too long."""
    lengths, widths = measured.lengths, measured.widths
    r, k = measured.window, measured.kernel
    for d in widths:
        formula, expected = layers.expected_parameters(name, d, k)
        actual = Layer(name, d, r, k, CPU).parameters()
        theory = {"formula": formula, "expected": expected}
        measured.parameters.append({"kind": name, "d": d, "counted": actual, **theory})
    feasible = [
        n for n in lengths
        if layers.expected_operations(name, n, widths[-1], r, k)[1] <= MOST_OPERATIONS
        and needed_memory(name, n, widths[-1], r, k) < available_memory(CPU)
    ]  # fmt: skip
    # Where operations are in proportion to n, any length shows how they grow with d.
    linear = layers.THEORY[name].in_n == 1
    length = lengths[len(lengths) // 2] if linear or not feasible else feasible[-1]
    for n, d in [*((n, widths[0]) for n in lengths), *((length, d) for d in widths[1:])]:
        if needed_memory(name, n, d, r, k) < available_memory(CPU):
            total, chain = count_operations(Layer(name, d, r, k, CPU), n)
            formula, value = layers.expected_operations(name, n, d, r, k)
            theory = {"formula": formula, "expected": value}
            measured.operations.append({"kind": name, "n": n, "d": d, "counted": total, **theory})
            if d == widths[0]:
                measured.steps.append({"kind": name, "n": n, "counted": chain})
            if d == widths[0] and n <= LONGEST_PATH:
                measured.paths.append(
                    {"kind": name, "n": n, "counted": path_length(name, n, r, k),
                     "expected": layers.expected_path(name, n, r, k)}
                )  # fmt: skip
        if d == widths[0]:
            advance()


def measure_memory(
    measured: LayerMeasurements,
    device: torch.device,
    dtype: torch.dtype,
    limit: float,
    advance: Callable[[], None],
) -> None:
    """Memory of a forward pass and of a training step at every length and width. A pass that does
    not fit is left out, and so is one that would exceed the time limit, by extrapolation from the
    length before it."""
    r, k = measured.window, measured.kernel
    for d in measured.widths:
        built = {name: Layer(name, d, r, k, device, dtype) for name in measured.kinds}
        before: dict[tuple[str, str], tuple[int, float]] = {}
        for n in measured.lengths:
            for name, layer in built.items():
                for which in PASSES:
                    place = {"kind": name, "n": n, "d": d, "pass": which}
                    needed = needed_memory(name, n, d, r, k)
                    last = before.get((name, which))
                    quadratic = name in ("attention", REFERENCE)
                    growth = (n / last[0]) ** (2 if quadratic else 1) if last else 1.0
                    if needed > available_memory(device):
                        why = f"needs about {gigabytes(needed)}"
                    elif last and last[1] * growth > limit:
                        why = f"would take about {last[1] * growth:.1g} s"
                    else:
                        layer_pass = Pass(layer, n, which == "training")
                        point = {**place, "seconds": math.inf, "memory": layer_pass.memory()}
                        measured.times.append(point)
                        before[name, which] = n, layer_pass.seconds(enough=0.02)
                        continue
                    measured.left_out.append({**place, "why": why})
                advance()


def measure_times(
    measured: LayerMeasurements,
    device: torch.device,
    dtype: torch.dtype,
    advance: Callable[[], None],
) -> None:
    """Time every pass that was measured before, with layers in turns, in two rounds: a busy moment
    of the machine does not affect the same point twice."""
    if device.type == "cpu":
        keep_freed_memory()  # as in training: pages that were returned to the system are slow
    for _ in range(ROUNDS):
        built: dict[tuple[str, int], Layer] = {}
        for point in measured.times:  # width by width
            key = point["kind"], point["d"]
            if key not in built:
                built = {name: layer for name, layer in built.items() if name[1] == key[1]}
                built[key] = Layer(*key, measured.window, measured.kernel, device, dtype)
            seconds = Pass(built[key], point["n"], point["pass"] == "training").seconds()
            point["seconds"] = min(point["seconds"], seconds)
            advance()
