"""`regard lab positions`: section 3.5 of the paper, measured.

First the sinusoids themselves (sinusoids.py), then models that learn a task of order with each kind
of positions and are tested on lengths beyond those of their training (order_task.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.progress import Progress

from regard.console import make_console, make_progress
from regard.device import choose_device, keep_freed_memory
from regard.errors import InputError
from regard.lab.common.memory import check_memory
from regard.lab.common.synthetic import TrainedModel
from regard.lab.common.training import check_budget, check_out, check_seeds, create_out
from regard.lab.positions import order_task, sinusoids
from regard.lab.positions.report import PositionsReport
from regard.view.positions import check_sizes

BASES = 4  # at most: more could not be distinguished in a picture


@dataclass(frozen=True)
class PositionsOptions:
    """The options of the command."""

    out: Path
    length: int  # of the sinusoids, as d_model and bases
    d_model: int
    bases: Sequence[float]
    steps: int | None  # of each training
    seconds: float | None  # of each training, instead of steps
    seeds: Sequence[int]
    device: str = "auto"
    quiet: bool = False

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is."""
        for base in self.bases:
            check_sizes(self.length, self.d_model, base)
        names = [f"{base:g}" for base in self.bases]  # as they are printed
        if len(set(names)) < len(names) or len(names) > BASES:
            raise InputError(f"--base {' '.join(names)}: give up to {BASES} different ones")
        check_budget(self.seconds, self.steps)
        check_seeds(self.seeds)
        check_out(self.out, "positions")
        request = f"--length {self.length} with --d-model {self.d_model}"
        check_memory(
            sinusoids.needed_memory(self.length, self.d_model), torch.device("cpu"), request
        )


def measure_positions(options: PositionsOptions) -> PositionsReport:
    """Measure the sinusoids, and train and test the models."""
    options.check()
    device = choose_device(options.device)
    create_out(options.out, "positions")
    keep_freed_memory()
    if options.steps is None and options.seconds is None:
        options = replace(options, steps=order_task.STEPS)
    seconds = options.seconds
    budget = f"{options.steps:,} steps" if seconds is None else f"{seconds:g} seconds"
    bases, seeds = list(options.bases), list(options.seeds)
    report = PositionsReport(options.length, options.d_model, bases, seeds, device.type, budget)
    console = make_console(stderr=True, quiet=options.quiet)
    with make_progress(console, disable=options.quiet) as progress:
        measure_sinusoids(report, progress)
        train_all(report, options, progress)
    return report


def measure_sinusoids(report: PositionsReport, progress: Progress) -> None:
    length, d_model = report.length, report.d_model
    sizes = [*(size for size in sinusoids.SMALL if size < d_model), d_model]
    bar = progress.add_task("", total=len(report.bases) * (len(sizes) + 1))
    for base in report.bases:
        progress.update(bar, description=f"sinusoids of base {base:,g}")
        report.products[base] = sinusoids.dot_products(length, d_model, base).tolist()
        report.quantities += sinusoids.wavelengths(length, d_model, base)
        report.quantities += sinusoids.decay(length, d_model, base)
        maps = sinusoids.linear_maps(length, d_model, base)
        progress.advance(bar)
        for size in sizes:
            progress.update(bar, description=f"all pairs, base {base:,g}, d_model {size}")
            nearest, deviation = sinusoids.compare_all(size, base)
            report.nearest += nearest
            progress.advance(bar)
        change = "PE(p)·PE(p+k): change with p"
        report.quantities += [sinusoids.Quantity(change, base, deviation, 0.0, 1e-9), *maps]
    progress.console.print("the sinusoids are measured")


def train_all(report: PositionsReport, options: PositionsOptions, progress: Progress) -> None:
    """Train and test every kind of positions with every seed."""
    steps, seconds = options.steps, options.seconds
    kinds = order_task.position_kinds(report.bases)
    count, each = len(report.seeds) * len(kinds), float(seconds or steps or 0)
    bar = progress.add_task("", total=count * each)
    for seed in report.seeds:
        for kind, model_options in kinds.items():
            progress.update(bar, description=f"training: {kind}, seed {seed}")

            def advance(now: TrainedModel, before: float = len(report.trained) * each) -> None:
                done = now.steps if seconds is None else now.seconds
                progress.update(bar, completed=before + done)

            result, model = order_task.train_kind(
                kind, model_options, seed, steps, seconds, options.device, advance
            )
            report.trained.append(result)
            progress.console.print(
                f"trained {len(report.trained)} of {count}: {kind}, seed {seed}: "
                f"{result.right[order_task.TESTED[0]]:.1%} correct",
                soft_wrap=True,
            )
            if kind == "learned":
                report.map_errors.append(order_task.map_errors(model, report.bases, seed))
            if kind == "none":
                report.changes.append(order_task.change_by_order(model, seed))
    report.blind = {
        n: sum(order_task.best_blind(n, seed) for seed in report.seeds) / len(report.seeds)
        for n in order_task.TESTED
    }
