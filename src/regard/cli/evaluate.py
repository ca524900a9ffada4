"""`regard evaluate`: how good a model is on given data, and how sure that figure is.

Intervals are 95%, by bootstrap over the examples. Two models are compared on the same resampled
examples (paired), so that easy and hard ones do not count as a difference. Translation is judged
by sacreBLEU's own implementation of both, with its signatures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from regard.console import make_console, progress, warn
from regard.device import keep_freed_memory
from regard.errors import InputError
from regard.predictor import Model, load
from regard.tasks.bootstrap import Comparison, intervals, paired
from regard.tasks.task import Evaluation
from regard.tasks.translate import Translate

SURE = 0.05  # a p below is called a difference
LARGEST_CONFUSION = 12  # classes; more fill no screen
WIDE = 160  # columns of a table that goes into a file: one line for each metric


@dataclass
class Report:
    """What is printed."""

    task: str
    evaluation: Evaluation
    ranges: dict[str, tuple[float, float]]
    against: str = ""
    theirs: dict[str, Any] = field(default_factory=dict)
    differences: dict[str, Comparison] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        whole = {
            "task": self.task, **self.evaluation.scores, "examples": self.evaluation.count,
            "intervals": {name: list(ends) for name, ends in self.ranges.items()},
            **self.evaluation.details,
        }  # fmt: skip
        if self.against:
            compared = {name: vars(one) for name, one in self.differences.items()}
            whole["against"] = {"model": self.against, **self.theirs, "difference": compared}
        return whole

    def show(self) -> None:
        console = make_console()
        if not console.is_terminal:
            console.width = WIDE
        table = Table("metric", "score", "95% interval", box=None, pad_edge=False)
        if self.against:
            for name in (f"against {Path(self.against).name}", "difference", "p", ""):
                table.add_column(name)
        for column in table.columns:
            column.overflow = "fold"  # a name may be long, but must not lose its end
        for name, value in self.evaluation.scores.items():
            if name.endswith("_signature"):
                continue
            low, high = self.ranges.get(name, (None, None))
            cells = [name, str(value), "" if low is None else f"{low:.4g} to {high:.4g}"]
            if (one := self.differences.get(name)) is not None:
                verdict = "a difference" if one.p < SURE else "may be chance"
                between = f"{one.difference:+.4g}"
                if one.low is not None:
                    between += f" ({one.low:+.4g} to {one.high:+.4g})"
                cells += [str(self.theirs[name]), between, f"{one.p:.4f}", verdict]
            table.add_row(*cells)
        table.add_row("examples", f"{self.evaluation.count:,}")
        console.print(table)
        for name, value in self.evaluation.scores.items():
            if name.endswith("_signature"):
                console.print(f"{name}: {value}", soft_wrap=True)
        self._show_details(console)

    def _show_details(self, console: Console) -> None:
        details = self.evaluation.details
        labels = details.get("labels", [])
        if "confusion" in details and len(labels) <= LARGEST_CONFUSION:
            table = Table("wanted \\ given", *labels, title="confusion", title_justify="left")
            for label, row in zip(labels, details["confusion"], strict=True):
                table.add_row(label, *map(str, row))
            console.print(table)
        if "exact_by_task" in details:
            table = Table("kind of question", "exact match", box=None, pad_edge=False)
            for kind, value in details["exact_by_task"].items():
                table.add_row(kind, f"{value:.4f}")
            console.print(table)


def evaluate_model(options: argparse.Namespace, decoding: dict[str, Any]) -> Report:
    """Evaluate -m on --data, and compare it with --against."""
    keep_freed_memory()
    files = [Path(file) for file in options.data]
    model = load(options.model, options.device, options.dtype)
    other = None
    if options.against is not None:
        other = load(options.against, options.device, options.dtype)
        if other.task.name != model.task.name:
            raise InputError(
                f"{options.against} was trained to {other.task.name}, but {options.model} to "
                f"{model.task.name}: only models of one task can be compared"
            )
        model.task.check_comparable(other.task)
    examples = read(model, files)
    with progress("evaluating", None, options.quiet):
        found = evaluated(model, examples, decoding)
        for i, count in found.pieces.items():
            pair = isinstance(model.task, Translate)
            path, row = (files[0], examples[i]) if pair else examples[i]
            warn(f"{path}:{row.line}: {model.in_pieces(count)}")
        if other is None:
            return judged(model, found, None, options)
        check(other, examples)  # the other model may not know all labels
        return judged(model, found, evaluated(other, examples, decoding), options)


def read(model: Model, files: list[Path]) -> list[Any]:
    """The examples, as the model's own configuration has them read."""
    model.task.check_files(files)
    examples = list(model.task.read(files, model.config))
    if not examples:
        raise InputError(f"{files[0]} is empty: there is nothing to evaluate")
    check(model, examples)
    return examples


def check(model: Model, examples: list[Any]) -> None:
    """Refuse examples on which the model cannot be evaluated."""
    for example in examples:
        model.task.check(example)


def evaluated(model: Model, examples: list[Any], decoding: dict[str, Any]) -> Evaluation:
    chosen = model.decoding(decoding)
    return model.task.evaluate(model.transformer, examples, model.config, chosen)


def judged(
    model: Model, ours: Evaluation, theirs: Evaluation | None, options: argparse.Namespace
) -> Report:
    if isinstance(model.task, Translate):
        return judged_by_sacrebleu(ours, theirs, options, model.config.data.bleu)
    report = Report(model.task.name, ours, intervals(ours.metrics, ours.count, options.samples))
    if theirs is not None:
        compared = paired(ours.metrics, theirs.metrics, ours.count, options.samples)
        report.against, report.theirs = str(options.against), theirs.scores
        report.differences = compared
    return report


def judged_by_sacrebleu(
    ours: Evaluation, theirs: Evaluation | None, options: argparse.Namespace, words: str
) -> Report:
    """sacreBLEU's bootstrap, and its paired bootstrap against the other model."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest, Result

    systems: list[tuple[str, Sequence[str]]] = [("ours", ours.answers)]
    if theirs is not None:
        systems.insert(0, ("theirs", theirs.answers))
    _, found = PairedTest(
        systems, {"BLEU": BLEU(tokenize=words), "chrF2": CHRF()}, [ours.references], "bs",
        options.samples,
    )()  # fmt: skip
    report = Report(Translate.name, ours, {})
    for name, column in (("bleu", "BLEU"), ("chrf", "chrF2")):
        own, base = found[column][-1], found[column][0]
        assert isinstance(own, Result)
        assert isinstance(base, Result)
        if own.mean is not None and own.ci is not None:
            middle, half = float(own.mean), float(own.ci)
            report.ranges[name] = max(0.0, middle - half), min(100.0, middle + half)
        if theirs is not None and own.p_value is not None:
            difference = own.score - base.score
            # It counts what is larger than the difference: nothing is, where there is none.
            p = float(own.p_value) if difference else 1.0
            report.differences[name] = Comparison(difference, None, None, p)
    if theirs is not None:
        report.against, report.theirs = str(options.against), theirs.scores
    return report
