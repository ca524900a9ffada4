"""`regard lab positions`: section 3.5 of the paper, measured.

The sinusoids themselves (positions_formula.py), then models that learn a task of order with each
kind of positions and are tested on lengths that they never saw (positions_trained.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import Progress

from regard.console import make_console, make_progress
from regard.device import keep_freed_memory
from regard.errors import InputError
from regard.lab.common.memory import refuse
from regard.lab.common.report import write_tables
from regard.lab.common.training import begin, check_budget, check_out, check_seeds
from regard.lab.positions.order_task import (
    STEPS,
    TESTED,
    best_blind,
    change_by_order,
    kinds,
    table_maps,
    train_kind,
)
from regard.lab.positions.report import Report, draw_report
from regard.lab.positions.sinusoids import (
    SMALL,
    Finding,
    compare_all,
    decay,
    dot_products,
    linear_maps,
    needed_memory,
    wavelengths,
)
from regard.training.distributed import choose_device
from regard.view.positions import check_sizes

BASES = 4  # at most: more would not be told apart in a picture


def measure(
    out: Path,
    length: int,
    d_model: int,
    bases: Sequence[float],
    steps: int | None,
    seconds: float | None,
    seeds: Sequence[int],
    device: str = "auto",
    quiet: bool = False,
) -> Report:
    """Measure, train, draw; everything is written to the folder `out`.

    steps, seconds: of each training; one of them, or none for the usual number of steps.
    """
    check(out, length, d_model, bases, steps, seconds, seeds)
    where = choose_device(device)
    begin(out, "positions")
    keep_freed_memory()
    steps = STEPS if steps is None and seconds is None else steps
    budget = f"{steps:,} steps" if seconds is None else f"{seconds:g} seconds"
    report = Report(length, d_model, list(bases), list(seeds), where.type, budget)
    console = make_console(stderr=True, quiet=quiet)
    with make_progress(console, disable=quiet) as progress:
        measure_formula(report, progress)
        train_all(report, steps, seconds, device, progress)
    report.files += write_tables(out, "positions", report.figures(), report.rows())
    report.files += draw_report(report, out)
    return report


def check(
    out: Path,
    length: int,
    d_model: int,
    bases: Sequence[float],
    steps: int | None,
    seconds: float | None,
    seeds: Sequence[int],
) -> None:
    """Refuse what cannot be measured, before anything is."""
    for base in bases:
        check_sizes(length, d_model, base)
    given = [f"{base:g}" for base in bases]  # as they are told apart
    if len(set(given)) < len(given) or len(given) > BASES:
        raise InputError(f"--base {' '.join(given)}: give up to {BASES} different ones")
    check_budget(seconds, steps)
    check_seeds(seeds)
    check_out(out, "positions")
    what = f"--length {length} with --d-model {d_model}"
    refuse(needed_memory(length, d_model), torch.device("cpu"), what)


def measure_formula(report: Report, progress: Progress) -> None:
    length, d_model = report.length, report.d_model
    sizes = [*(size for size in SMALL if size < d_model), d_model]
    bar = progress.add_task("", total=len(report.bases) * (len(sizes) + 1))
    for base in report.bases:
        progress.update(bar, description=f"sinusoids of base {base:,g}")
        report.products[base] = dot_products(length, d_model, base).tolist()
        report.findings += wavelengths(length, d_model, base) + decay(length, d_model, base)
        maps = linear_maps(length, d_model, base)
        progress.advance(bar)
        for size in sizes:
            progress.update(bar, description=f"all pairs, base {base:,g}, d_model {size}")
            nearest, deviation = compare_all(size, base)
            report.nearest += nearest
            progress.advance(bar)
        report.findings += [
            Finding("PE(p)·PE(p+k): change with p", base, deviation, 0.0, 1e-9), *maps
        ]  # fmt: skip
    progress.console.print("the sinusoids are measured")


def train_all(
    report: Report, steps: int | None, seconds: float | None, device: str, progress: Progress
) -> None:
    """Every kind with every seed; of the learned tables also how near they are to a linear map."""
    compared = kinds(report.bases)
    count = len(report.seeds) * len(compared)
    whole = float(steps) if seconds is None and steps is not None else float(seconds or 0)
    bar = progress.add_task("", total=count * whole)
    for seed in report.seeds:
        for kind in compared:
            progress.update(bar, description=f"training: {kind.name}, seed {seed}")
            before = len(report.trained) * whole
            trained, model = train_kind(
                kind, seed, steps, seconds, device,
                lambda done, before=before: progress.update(  # type: ignore[misc]
                    bar, completed=before + (done.steps if seconds is None else done.seconds)
                ),
            )  # fmt: skip
            report.trained.append(trained)
            progress.console.print(
                f"trained {len(report.trained)} of {count}: {kind.name}, seed {seed}: "
                f"{trained.right[TESTED[0]]:.1%} right",
                soft_wrap=True,
            )
            if kind.name == "learned":
                report.maps.append(table_maps(model, report.bases, seed))
            if kind.name == "none":
                report.changes.append(change_by_order(model, seed))
    report.blind = {
        n: sum(best_blind(n, seed) for seed in report.seeds) / len(report.seeds) for n in TESTED
    }
