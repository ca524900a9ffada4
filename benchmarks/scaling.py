"""Growth of time and memory with length, batch, width and layers.

Length: one self-attention layer with every fast attention backend, one sequence of 256 to 65,536
tokens, with full visibility or a window. Batch, width and layers: encoder blocks on sequences of
128 tokens. Exponents are fitted to the larger half of the points. A decoding step is timed at
tokens 10 and 200: the difference is compared with the time to read the new part of the cache.

Every part gets a share of --budget; points that would take longer are left out and reported.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from benchmarks import ratios
from benchmarks.limits import bandwidth
from benchmarks.ratios import RatioLog
from regard import ModelConfig, Transformer
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import Search
from regard.device import keep_freed_memory, synchronise
from regard.errors import InputError
from regard.lab.common.fits import fit_power_law
from regard.lab.common.layers import REFERENCE, Layer
from regard.lab.common.memory import available_memory
from regard.lab.common.timing import PASSES, Pass, needed_memory
from regard.model.attention import Plan
from regard.model.stack import Stack
from regard.model.visibility import Visibility
from regard.ops import ATTENTION_BACKENDS

LENGTHS = [2**k for k in range(8, 17)]
WIDTH, WINDOW = 64, 64  # of the layer with growing length
SEQUENCE = 128  # tokens of each sequence in the other measurements
GROWING = {
    "batch": [1, 2, 4, 8, 16, 32, 64],
    "width": [64, 128, 256, 512, 1024],
    "layers": [1, 2, 4, 8, 16],
}
# Upper bounds of the exponents of time and memory. Training has gradients of d x d weights, hence
# the exponent of width; the forward pass keeps nothing of a layer.
THEORY = {
    ("batch", "forward"): (1.0, 1.0),
    ("batch", "training"): (1.0, 1.0),
    ("width", "forward"): (2.0, 1.0),
    ("width", "training"): (2.0, 2.0),
    ("layers", "forward"): (1.0, 0.0),
    ("layers", "training"): (1.0, 1.0),
}
USUAL = {"batch": 8, "width": 128, "layers": 2}
EARLY, LATE, AROUND = 10, 200, 3  # timed steps, and the number of steps on both sides of them
ENOUGH = 0.3  # seconds for which short passes are repeated
UNSURE = 0.1  # standard error of an exponent above which it is not counted
PASSES_OF_A_POINT = 4  # two for its memory, at least two for its time


Measure = Callable[[float], tuple[list["Point"], str]]  # from its share of the budget, in seconds
Job = tuple[str, Measure, tuple[float, float], int]  # bounds of the exponents; parts of the budget


@dataclass
class Point:
    size: int
    seconds: float
    memory: int | None  # bytes


class Attention(Layer):
    """One self-attention layer with one attention backend."""

    def __init__(
        self, backend: str, window: bool, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__("restricted" if window else "attention", WIDTH, WINDOW, 3, device, dtype)
        self.backend = backend

    def plan(self, n: int, backend: str = "auto") -> Any:
        return super().plan(n, self.backend)


class Blocks(Layer):
    """Encoder blocks on sequences of equal length."""

    def __init__(self, layers: int, width: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__("attention", width, WINDOW, 3, device, dtype)
        self.layers = layers
        self.module = Stack(self.config, layers, False).to(device, dtype)

    def plan(self, n: int, backend: str = "auto") -> list[Plan]:
        lengths = [SEQUENCE] * (n // SEQUENCE)
        plan = Plan(lengths, lengths, Visibility(), backend=backend, device=self.device)
        return [plan] * self.layers

    def __call__(self, x: Tensor, plan: list[Plan]) -> Tensor:
        return self.module(x, torch.arange(len(x), device=x.device) % SEQUENCE, plan)


def measured(layer: Layer, n: int, size: int, which: str) -> Point:
    item = Pass(layer, n, which == "training")
    memory = item.memory()  # first, because memory that is kept afterwards would hide the peak
    return Point(size, item.seconds(ENOUGH), memory)


def by_length(
    backend: str, window: bool, which: str, target: tuple[torch.device, torch.dtype], share: float
) -> tuple[list[Point], str]:
    """The points of one backend, as far as time (share) and memory allow, and what is left out."""
    layer, points, spent = Attention(backend, window, *target), list[Point](), 0.0
    for n in LENGTHS:
        grown = 1.0 if not points else (n / points[-1].size) ** (1 if window else 2)
        next_one = PASSES_OF_A_POINT * grown * points[-1].seconds if points else 0.0
        needed = needed_memory("restricted" if window else "attention", n, WIDTH, WINDOW, 3)
        if spent + next_one > share or needed > available_memory(target[0]):
            return points, f"from {n:,} tokens on left out"
        began = time.perf_counter()
        points.append(measured(layer, n, n, which))
        spent += time.perf_counter() - began
    return points, ""


def by_size(
    dimension: str, which: str, target: tuple[torch.device, torch.dtype], share: float
) -> tuple[list[Point], str]:
    points, spent = list[Point](), 0.0
    for size in GROWING[dimension]:
        sizes = USUAL | {dimension: size}
        if spent > share:
            return points, f"from {size} on left out"
        began = time.perf_counter()
        layer = Blocks(sizes["layers"], sizes["width"], *target)
        points.append(measured(layer, sizes["batch"] * SEQUENCE, size, which))
        spent += time.perf_counter() - began
    return points, ""


def show(
    work: str, points: Sequence[Point], expected: tuple[float, float], left_out: str, log: RatioLog
) -> None:
    """Print the last point and the exponents of the larger half, and log them with their bounds."""
    tail = points[len(points) // 2 :] if len(points) > 3 else points
    sizes = [p.size for p in tail]
    line = f"  {work:40}"
    if points:
        last = points[-1]
        weight = "" if last.memory is None else f", {last.memory / 2**20:,.1f} MiB"
        line += f" at {last.size:,}: {1e3 * last.seconds:,.2f} ms{weight};"
    for name, values, bound in (
        ("time", [p.seconds for p in tail], expected[0]),
        ("memory", [p.memory or 0 for p in tail], expected[1]),
    ):
        fit = fit_power_law(sizes, values)
        if fit is not None:
            line += f" {name} ~ {fit} (at most {bound:g})"
            if fit.error is not None and fit.error > UNSURE:
                line += " NOISY: not counted;"
                continue
            log.add(
                f"{work}: {name}",
                log.options.dtype,
                fit.exponent,
                "exponent",
                "theory",
                bound,
                None,
            )
    print(f"{line} {left_out}".rstrip(), flush=True)


def decoding(device: torch.device, dtype: torch.dtype, log: RatioLog) -> None:
    """The time of an early and a late step, with the default decoding engine."""
    batch, repeats = 32, 3
    config = ModelConfig.preset("base", vocabulary_size=1000, dropout=0.0)
    model = Transformer(config).eval().to(device, dtype)
    requests = [Request(source=[5] * 20, limit=LATE + AROUND + 1)] * batch
    options = DecodingConfig(beam=1, min_length=LATE + AROUND + 1)
    timed: dict[int, list[float]] = {EARLY: [], LATE: []}
    for repeat in range(repeats + 1):
        for step, seconds in steps(Search(model, requests, options), device):
            for place, times in timed.items():
                if repeat and abs(step - place) <= AROUND:
                    times.append(seconds)
    early, late = (statistics.median(timed[place]) for place in (EARLY, LATE))
    # One key and one value per head, layer, sentence and step.
    token = 2 * config.decoder_layers * config.heads * config.head_size * dtype.itemsize * batch
    grown = token * (LATE - EARLY)
    reading = grown / bandwidth(2**28, device)
    print(
        f"  a step of base, batch {batch}: {1e3 * early:.3f} ms at token {EARLY}, {1e3 * late:.3f} "
        f"ms at token {LATE}: {1e3 * (late - early):+.3f} ms; the cache grew by "
        f"{grown / 2**20:.1f} MiB, which take {1e3 * reading:.3f} ms to read"
    )
    # in milliseconds: the bound of a late step is an early step plus reading the new entries
    log.add(
        f"a step at token {LATE}, batch {batch}", log.options.dtype, 1e3 * late, "ms",
        f"token {EARLY} and reading the cache", 1e3 * (early + reading), None,
    )  # fmt: skip


def steps(search: Search, device: torch.device) -> Iterator[tuple[int, float]]:
    """The number of each step, from 1, and its time in seconds."""
    start = time.perf_counter()
    for number, _ in enumerate(search, start=1):
        synchronise(device)
        now = time.perf_counter()
        yield number, now - start
        start = time.perf_counter()


def backends(device: torch.device) -> list[str]:
    """The fast attention backends that run here."""
    available = []
    for name in ATTENTION_BACKENDS:
        if name not in ("auto", REFERENCE):
            try:
                layer = Attention(name, False, device, torch.float32)
                Pass(layer, SEQUENCE, False).run()
            except (InputError, ImportError, RuntimeError, AssertionError) as error:
                print(f"  {name} is skipped: {str(error).splitlines()[0]}")
            else:
                available.append(name)
    return available


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--budget", type=float, default=180.0, help="approximate time in seconds")
    ratios.add_options(parser)
    options = parser.parse_args(arguments)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    log = RatioLog("scaling", arguments, options, options.device)
    print(f"{log.hardware}, {options.dtype}; y ~ size^exponent")
    fast = backends(device)
    target = device, dtype
    jobs: list[Job] = []
    for backend in fast:
        for window, which in product((False, True), PASSES):
            seen = f", window {WINDOW}" if window else ""
            measure: Measure = partial(by_length, backend, window, which, target)
            exponents = (1.0 if window else 2.0, 1.0)
            part = 1 if window or which == "training" else 2  # the forward pass reaches all lengths
            jobs.append((f"attention by {backend}{seen}, {which}", measure, exponents, part))
    for (dimension, which), bound in THEORY.items():
        measure = partial(by_size, dimension, which, target)
        jobs.append((f"blocks, {dimension}, {which}", measure, bound, 1))
    total = sum(job[-1] for job in jobs)
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("measuring", total=total + 1)
        for work, measure, expected, part in jobs:
            points, left_out = measure(options.budget * part / total)
            show(work, points, expected, left_out, log)
            bar.advance(task, part)
        if device.type == "cpu":
            keep_freed_memory()  # not before: memory that is kept would hide the peak of a pass
        decoding(device, dtype, log)
        bar.advance(task)
    return log.close()
