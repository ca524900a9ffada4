"""The report of `regard lab ablate`: a table like the paper's, notes on it, and a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config.parameters import closed_form
from regard.lab.ablate.variants import GROUPS, SIGNS, Variant
from regard.lab.common.report import WIDE, LabReport, Picture, plain_table, plural
from regard.lab.common.significance import LEVEL, format_p
from regard.training.model_folder import final_scores
from regard.training.progress import duration
from regard.view.picture import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

QUALITY = {"translate": "bleu", "classify": "accuracy", "answer": "f1"}  # higher is better
NAMES = {"bleu": "BLEU", "accuracy": "accuracy, %", "f1": "F1, %"}
NEAR = 0.9  # of the base's final quality: the goal of the time to quality
STAR = "*"
BASE_VALUES = {  # the settings that the paper's table has columns for, and others of the variants
    "model": "encoder_layers decoder_layers d_model d_ff heads head_size dropout positions "
    "norm_first tie_embeddings mixer window vocabulary_size",
    "training": "label_smoothing learning_rate warmup batch_tokens",
}


@dataclass
class Difference:
    """The difference of a variant to the base, in the quality that counts."""

    value: float
    p: float  # of this variant alone
    error: float | None = None  # standard error, with several seeds
    adjusted: float = 1.0  # p after Holm's correction

    @property
    def significant(self) -> bool:
        return self.adjusted < LEVEL


@dataclass
class VariantResult:
    """A variant and what was measured of it."""

    variant: Variant
    runs: list[Path]  # one for each seed
    tests: list[float] = field(default_factory=list)  # quality on --test, for each seed
    interval: tuple[float, float] | None = None  # of one seed's quality, over the examples
    difference: Difference | None = None  # None for the base
    ms: float = 0.0  # of a training step
    reached: list[int | None] = field(default_factory=list)  # the step of NEAR, for each seed

    @property
    def metric(self) -> str:
        return QUALITY[self.variant.config.task]

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in closed_form(self.variant.config.model).values())

    @property
    def valid(self) -> list[float]:
        return [float(final_scores(run)[self.metric]) for run in self.runs]

    @property
    def perplexity(self) -> list[float]:
        return [math.exp(min(50.0, final_scores(run)["loss"])) for run in self.runs]

    @property
    def qualities(self) -> list[float]:
        """The quality that counts: on --test where it is given."""
        return self.tests or self.valid

    @property
    def seconds_to_quality(self) -> float | None:
        steps = [step for step in self.reached if step is not None]
        if not steps or len(steps) < len(self.reached):
            return None
        return statistics.fmean(steps) * self.ms / 1000

    def to_dict(self) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "name": self.variant.name, "group": self.variant.group, "changes": self.variant.changes,
            "differs": self.variant.describe(), "parameters": self.parameters,
            "perplexity": summary(self.perplexity), f"valid_{self.metric}": summary(self.valid),
        }  # fmt: skip
        if self.tests:
            figures[f"test_{self.metric}"] = summary(self.tests)
        if self.interval is not None:
            figures["interval"] = list(self.interval)
        if (entry := self.difference) is not None:
            figures["difference"] = {**vars(entry), "significant": entry.significant}
        return figures | {
            "ms_per_step": self.ms, "steps_to_quality": self.reached,
            "seconds_to_quality": self.seconds_to_quality,
        }  # fmt: skip


def summary(values: Sequence[float]) -> dict[str, Any]:
    figures: dict[str, Any] = {"value": statistics.fmean(values), "seeds": list(values)}
    return figures | ({"spread": statistics.stdev(values)} if len(values) > 1 else {})


@dataclass
class AblationReport(LabReport):
    command = "ablate"

    task: str
    counts: str  # the data whose quality counts: valid or test
    examples: int
    seeds: list[int]
    machine: str
    results: list[VariantResult]  # the base first
    skipped: list[tuple[str, str]]  # variants that this base cannot have, and why
    failed: list[tuple[str, str]]

    @property
    def metric(self) -> str:
        return QUALITY[self.task]

    @property
    def scale(self) -> int:
        return 1 if self.metric == "bleu" else 100

    @property
    def base(self) -> VariantResult:
        return self.results[0]

    @property
    def data(self) -> str:
        return "test" if self.counts == "test" else "validation"

    @property
    def goal(self) -> float:
        return NEAR * statistics.fmean(self.base.valid)

    def figures(self) -> dict[str, Any]:
        return {
            "task": self.task, "metric": self.metric, "counts": self.counts,
            "examples": self.examples, "seeds": self.seeds,
            "steps": self.base.variant.config.training.steps, "machine": self.machine,
            "base": self.base_values(), "goal": self.goal,
            "rows": [result.to_dict() for result in self.results],
            "skipped": dict(self.skipped), "failed": dict(self.failed), "notes": self.notes(),
        }  # fmt: skip

    def base_values(self) -> dict[str, Any]:
        config = self.base.variant.config
        sections = {"model": config.model, "training": config.training}
        return {
            section: {key: getattr(values, key) for key in BASE_VALUES[section].split()}
            for section, values in sections.items()
        }

    def csv_rows(self) -> list[dict[str, Any]]:
        """The table, with figures that are not rounded."""
        rows = []
        for entry in (result.to_dict() for result in self.results):
            difference = entry.get("difference", {})
            row = {key: entry[key] for key in ("name", "group", "differs", "parameters")}
            for key in ("perplexity", f"valid_{self.metric}", f"test_{self.metric}"):
                if key in entry:
                    row |= {key: entry[key]["value"], f"{key}_spread": entry[key].get("spread")}
            rows.append(row | {
                "difference": difference.get("value"), "p": difference.get("p"),
                "p_holm": difference.get("adjusted"),
                "significant": difference.get("significant"), "ms_per_step": entry["ms_per_step"],
                "seconds_to_quality": entry["seconds_to_quality"],
            })  # fmt: skip
        return rows

    def notes(self) -> list[str]:
        """How to read the figures; only what concerns the variants in this report."""
        groups = {result.variant.group for result in self.results}
        rates = {result.variant.config.training.learning_rate for result in self.results}
        rate = self.base.variant.config.training.learning_rate
        count = len(self.results) - 1
        corrected = f"after Holm's correction for {count} comparisons; {STAR}: below {LEVEL}."
        if len(self.seeds) > 1:
            test = (
                f"p: Student's t-test over {len(self.seeds)} seeds of each row, their deviation "
                f"pooled over all rows, {corrected} ±: standard deviation of the row's own seeds."
            )
        else:
            test = (
                f"p: paired bootstrap over {self.examples:,} examples, {corrected} With one seed "
                "it covers other examples, not another training run: give several --seed for that."
            )
        recipe = (
            f"All rows are trained with the base's recipe (learning rate {rate:.2g}, warm-up, "
            "steps), which was made for the base; another row may do better with its own."
        )
        if len(rates) > 1:
            recipe += " Where d_model differs, so does the rate: it is the paper's for that width."
        if "norm" in groups:
            recipe += " Post-norm in particular needs a lower rate than pre-norm."
        notes = [
            test,
            "perplexity: per word piece on the validation data, on which the final weights are "
            "chosen as well. Quality: with greedy search.",
            recipe,
        ]
        if "B" in groups:
            notes.append(
                "B: the paper made keys smaller and kept the values; here the values of a head "
                "have the size of its keys, so that they shrink as well."
            )
        goal = f"{self.scale * self.goal:.1f}{'' if self.scale == 1 else '%'}"
        notes.append(
            f"to {NEAR:.0%}: steps until validation first reached {goal} ({NEAR:.0%} of the "
            "base's final quality), at the resolution of the validations, times the time of a "
            "step, which is measured separately and in turns. The seconds of the training runs are "
            "not comparable where several ran at once."
        )
        return notes

    def describe_base(self) -> str:
        """The base in the paper's letters."""
        config = self.base.variant.config
        m = config.model
        layers = dict.fromkeys(str(n) for n in (m.encoder_layers, m.decoder_layers) if n)
        return (
            f"N={'+'.join(layers)} d_model={m.d_model} d_ff={m.d_ff} h={m.heads} d_k={m.head_size} "
            f"P_drop={m.dropout} ε_ls={config.training.label_smoothing}"
        )

    def cells(self, result: VariantResult) -> list[str]:
        """One row of the table."""
        size, perplexity = f"{result.parameters / 1e6:.2f}", format_mean(result.perplexity, 2)
        cells = [result.variant.name, result.variant.describe(), size, perplexity]
        for values in (result.valid, result.tests):
            if values:
                cells.append(format_mean([self.scale * value for value in values], 1))
        if (entry := result.difference) is None:
            cells += ["", ""]
        else:
            mark = STAR if entry.significant else " "
            cells += [f"{self.scale * entry.value:+.1f}{mark}", format_p(entry.adjusted)]
        seconds = result.seconds_to_quality
        return [*cells, f"{result.ms:.1f}", "never" if seconds is None else duration(seconds)]

    def print_tables(self, console: Console) -> None:
        if not console.is_terminal:
            console.width = WIDE
        steps = self.base.variant.config.training.steps
        console.print(
            f"{self.task}, {self.examples:,} {self.data} examples, "
            f"{plural(len(self.seeds), 'seed')}, {steps:,} steps, {self.machine}\n"
            f"base: {self.describe_base()}\n"
        )
        name = NAMES[self.metric]
        qualities = [f"valid {name}", *([f"test {name}"] if self.base.tests else [])]
        header = ("row", "what differs", "10⁶", "perplexity", *qualities, "diff.", "p", "ms")
        table = plain_table(*header, f"to {NEAR:.0%}", left=(0, 1), wrap=(1,))
        group = self.base.variant.group
        for result in self.results:
            if result.variant.group != group:
                table.add_section()
                group = result.variant.group
            table.add_row(*self.cells(result))
        console.print(table)
        console.print("\n10⁶: parameters in millions. ms: of a training step.")
        for note in self.notes():
            console.print(note)
        for heading, reasons in (("left out", self.skipped), ("failed", self.failed)):
            for name, why in reasons:
                console.print(f"{heading}: {name}: {why}")

    def pictures(self) -> list[Picture]:
        size = 13, 2.6 + 0.42 * len(self.results[1:])
        return [Picture(self.command, size, "What each change does to the base", draw)]


def format_mean(values: Sequence[float], places: int) -> str:
    deviation = f" ±{statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{places}f}{deviation}"


def draw(picture: Figure, report: AblationReport) -> None:
    """The difference of each variant to the base, one line each."""
    results, scale = report.results[1:], report.scale
    base = scale * statistics.fmean(report.base.qualities)
    panel = picture.subplots()
    heights: list[float] = []
    for i, result in enumerate(results):
        new_group = i > 0 and results[i - 1].variant.group != result.variant.group
        heights.append((heights[-1] + 1 + 0.5 * new_group) if heights else 0.0)
        draw_variant(panel, heights[-1], result, scale, base)
    if len(report.seeds) > 1:
        deviation = statistics.stdev(scale * quality for quality in report.base.qualities)
        panel.axvspan(-deviation, deviation, color="#e0e0e0", zorder=0)
    panel.axvline(0, color="#222222", linewidth=1)
    labels = [  # with the changes that the name does not contain
        variant.name + (f"   {variant.describe()}" if variant.changes.keys() & SIGNS.keys() else "")
        for variant in (result.variant for result in results)
    ]
    panel.set_yticks(heights, labels)
    panel.grid(axis="y", visible=False)
    panel.set_ylim((heights[-1] if heights else 0) + 0.7, -0.7)
    name = NAMES[report.metric]
    panel.set_xlabel(f"{report.data} {name}: difference to the base ({base:.1f})")
    if len(report.seeds) > 1:
        legend = "line: standard error of the difference; |: each seed; grey: the base's deviation"
    else:
        legend = "line: 95% interval of the row's own score over the examples"
    panel.set_title(f"full mark: significant (Holm, {LEVEL})\n{legend}", loc="left", fontsize=11)


def draw_variant(panel: Axes, y: float, result: VariantResult, scale: int, base: float) -> None:
    """The difference as a mark, full where it is significant; its standard error over seeds (and
    each seed as a small bar), or the interval of the quality over the examples, as a line."""
    assert result.difference is not None
    style = list(GROUPS).index(result.variant.group) - 1
    colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
    value = scale * result.difference.value
    if result.interval is not None:
        low, high = (scale * end - base for end in result.interval)
    else:
        error = scale * (result.difference.error or 0.0)
        low, high = value - error, value + error
    panel.plot([low, high], [y, y], color=colour, linewidth=2)
    if len(result.runs) > 1:
        each = [scale * quality - base for quality in result.qualities]
        panel.plot(each, [y] * len(each), "|", color=colour, markersize=9)
    panel.plot(
        value, y, marker, color=colour, markersize=10, markeredgewidth=1.6, zorder=3,
        markerfacecolor=colour if result.difference.significant else "white",
    )  # fmt: skip
