"""`regard evaluate`: the scores of a model on test data, as tables or JSON."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli import options as shared
from regard.console import as_json, make_console, progress, warn
from regard.errors import InputError
from regard.tasks.task import cut_note, too_long
from regard.training.shipped import boxed

if TYPE_CHECKING:
    from regard.tasks.evaluation import EvaluationReport

SIGNIFICANT = 0.05  # a difference with a smaller p is significant
DEFAULT_TASK = "translate"  # the model in the box for it is evaluated by default
FEW_SAMPLES = 100  # fewer samples are too few for the ends of a 95% interval
WIDE = 160  # columns of a table that is written to a file: one line for each metric
LARGEST_CONFUSION = 12  # classes; a larger table does not fit a screen


def evaluate_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--data", nargs="+", type=shared.file_name, required=True, metavar="FILE",
        help="test data, or the percentage of the training data that was held out, e.g. 5%%; "
        f"formats by task: {shared.file_formats()}",
    )  # fmt: skip
    shared.columns_option(verb)
    verb.add_argument(
        "--against",
        type=shared.file_path,
        metavar="MODEL",
        help="second model to compare with (default: none)",
    )
    verb.add_argument(
        "--samples", type=shared.bounded(int, 1, 10_000), default=1000, metavar="N",
        help="number of bootstrap samples for confidence intervals (default: 1000)",
    )  # fmt: skip
    shared.decoding_options(verb)
    shared.model_to_use(verb, DEFAULT_TASK)
    verb.set_defaults(model=None)


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate a model on test data, with confidence intervals, or compare two models."""
    decoding = shared.chosen_decoding(options)
    default = options.model is None
    options.model = Path(boxed(DEFAULT_TASK)) if default else options.model
    from regard.device import keep_freed_memory
    from regard.predictor.loading import load
    from regard.tasks.evaluation import read_examples, report_on

    keep_freed_memory()
    files = [Path(file) for file in options.data]
    model = load(options.model, options.device, options.dtype)
    task, other, theirs = model.task, None, None
    if decoding and not task.decodes:
        names = " and ".join(shared.option_of("decoding", key) for key in decoding)
        have = "have" if len(decoding) > 1 else "has"
        warn(f"{names} {have} no effect on the task {task.name}, which does not decode")
    if options.against is not None:
        other = load(options.against, options.device, options.dtype)
        if other.task.name != task.name:
            raise InputError(
                f"{options.against} was trained to {other.task.name}, but {options.model} to "
                f"{task.name}: only models of one task can be compared"
            )
        task.check_comparable(other.task)
    examples = read_examples(task, files, model.config, options.columns)
    files = task.data_files(files, model.config)
    if default:
        warn(f"no model is selected with -m: evaluating {options.model}")
    if options.samples < FEW_SAMPLES:
        warn(f"--samples {options.samples} is too few for intervals: use at least {FEW_SAMPLES}")
    with progress("evaluating", None, options.quiet):
        ours = model.evaluate_examples(examples, **decoding)
        for i, count in ours.pieces.items():
            note = too_long(model.longest, task.split_note(count))
            warn(f"{task.place(examples[i], files)}: {note}")
        if ours.cut:
            warn(f"{files[0]}: {cut_note(ours.cut, model.longest, 'text')}")
        if other is not None:
            for example in examples:
                other.task.check(example)  # the other model may not know all labels
            theirs = other.evaluate_examples(examples, **decoding)
        report = report_on(
            task, model.config, ours, theirs, samples=options.samples, against=str(options.against)
        )
    print(as_json(report.to_dict())) if options.json else show(report)
    return 0


def show(report: EvaluationReport) -> None:
    """Print the report as tables."""
    from rich.table import Table

    console = make_console()
    if not console.is_terminal:
        console.width = WIDE
    table = Table("metric", "score", "95% interval", box=None, pad_edge=False)
    if report.against:
        for name in (f"against {Path(report.against).name}", "difference", "p", ""):
            table.add_column(name)
    for column in table.columns:
        column.overflow = "fold"  # so that long names are wrapped, not cut
    for name, value in report.evaluation.scores.items():
        if name.endswith("_signature"):
            continue
        low, high = report.intervals.get(name, (None, None))
        cells = [name, str(value), "" if low is None else f"{low:.4g} to {high:.4g}"]
        if (comparison := report.differences.get(name)) is not None:
            significant = comparison.p < SIGNIFICANT
            difference = f"{comparison.difference:+.4g}"
            if comparison.low is not None:
                difference += f" ({comparison.low:+.4g} to {comparison.high:+.4g})"
            verdict = "significant" if significant else "not significant"
            cells += [str(report.theirs[name]), difference, f"{comparison.p:.4f}", verdict]
        table.add_row(*cells)
    table.add_row("examples", f"{report.evaluation.count:,}")
    console.print(table)
    for name, value in report.evaluation.scores.items():
        if name.endswith("_signature"):
            console.print(f"{name}: {value}", soft_wrap=True)
    details = report.evaluation.details  # tables that only some tasks have
    labels = details.get("labels", [])
    if "confusion" in details and len(labels) <= LARGEST_CONFUSION:
        table = Table("expected \\ predicted", *labels, title="confusion", title_justify="left")
        for label, row in zip(labels, details["confusion"], strict=True):
            table.add_row(label, *map(str, row))
        console.print(table)
    if "exact_by_task" in details:
        table = Table("kind of question", "exact match", box=None, pad_edge=False)
        for kind, value in details["exact_by_task"].items():
            table.add_row(kind, f"{value:.4f}")
        console.print(table)
