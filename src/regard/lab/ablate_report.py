"""What `regard lab ablate` shows: a table as the paper's, what to know of it, and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from regard.console import make_console
from regard.lab.ablate_measured import NEAR, QUALITY, Result
from regard.lab.ablate_rows import GROUPS, SIGNS
from regard.lab.significance import said_p
from regard.tasks.evaluation import SURE, WIDE
from regard.training.progress import duration
from regard.view.picture import COLOURS, MARKERS, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"bleu": "BLEU", "accuracy": "accuracy, %", "f1": "F1, %"}
STAR = "*"


@dataclass
class Report:
    """What is printed."""

    task: str
    counts: str  # the data whose quality counts: valid or test
    examples: int
    seeds: list[int]
    machine: str
    results: list[Result]  # the base first
    skipped: list[tuple[str, str]]  # rows that make no sense here, and why
    failed: list[tuple[str, str]]
    files: list[Path] = field(default_factory=list)

    @property
    def metric(self) -> str:
        return QUALITY[self.task]

    @property
    def scale(self) -> int:
        return 1 if self.metric == "bleu" else 100

    @property
    def base(self) -> Result:
        return self.results[0]

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.task, "metric": self.metric, "counts": self.counts,
            "examples": self.examples, "seeds": self.seeds,
            "steps": self.base.row.config.training.steps, "machine": self.machine,
            "base": self.base_values(), "goal": NEAR * statistics.fmean(self.base.valid),
            "rows": [result.to_dict() for result in self.results],
            "skipped": dict(self.skipped), "failed": dict(self.failed),
            "notes": self.notes(), "files": [str(path) for path in self.files],
        }  # fmt: skip

    def base_values(self) -> dict[str, Any]:
        """The settings that the paper's table has columns for, and the others that rows change."""
        config = self.base.row.config
        model = {
            key: getattr(config.model, key)
            for key in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "head_size",
                        "dropout", "positions", "norm_first", "tie_embeddings", "mixer", "window",
                        "vocabulary_size")
        }  # fmt: skip
        training = {
            key: getattr(config.training, key)
            for key in ("label_smoothing", "learning_rate", "warmup", "batch_tokens")
        }
        return {"model": model, "training": training}

    def lines(self) -> list[dict[str, Any]]:
        """The table as it is written to a file: a line for each row, figures unrounded."""
        found = []
        for one in (result.to_dict() for result in self.results):
            difference = one.get("difference", {})
            line = {key: one[key] for key in ("name", "group", "differs", "parameters")}
            for key in ("perplexity", f"valid_{self.metric}", f"test_{self.metric}"):
                if key in one:
                    line |= {key: one[key]["value"], f"{key}_spread": one[key].get("spread")}
            line |= {
                "difference": difference.get("value"), "p": difference.get("p"),
                "p_holm": difference.get("adjusted"),
                "significant": difference.get("significant"), "ms_per_step": one["ms_per_step"],
                "seconds_to_quality": one["seconds_to_quality"],
            }  # fmt: skip
            found.append(line)
        return found

    # ---- words --------------------------------------------------------------------------

    def notes(self) -> list[str]:
        """What to know before a figure is believed; only what concerns the rows there are."""
        groups = {result.row.group for result in self.results}
        rates = {result.row.config.training.learning_rate for result in self.results}
        rate = self.base.row.config.training.learning_rate
        said = []
        if len(self.seeds) > 1:
            said.append(
                f"p: Student's t-test over {len(self.seeds)} seeds of each row, their deviation "
                f"pooled over all rows, after Holm's correction for {len(self.results) - 1} "
                f"comparisons; {STAR}: below {SURE}. ±: standard deviation of the row's own seeds."
            )
        else:
            said.append(
                f"p: paired bootstrap over {self.examples:,} examples, after Holm's correction for "
                f"{len(self.results) - 1} comparisons; {STAR}: below {SURE}. With one seed it "
                "tells of other examples, not of another training: take more --seed for that."
            )
        said.append(
            "perplexity: that of a word piece on the validation data, on which the final weights "
            "are chosen as well. Quality: that of greedy search."
        )
        said.append(
            f"All rows have the base's recipe (learning rate {rate:.2g}, warm-up, steps): it was "
            "made for the base, and another row may do better with one of its own."
            + (" Where d_model differs, so does the rate: it is the paper's for that width."
               if len(rates) > 1 else "")
            + (" Post-norm in particular wants a lower rate than pre-norm." if "norm" in groups
               else "")
        )  # fmt: skip
        if "B" in groups:
            said.append(
                "B: the paper made keys smaller and left values; here a head has one size, so that "
                "values shrink with keys."
            )
        goal = figure(self, NEAR * statistics.fmean(self.base.valid))
        said.append(
            f"to {NEAR:.0%}: steps until validation first reached {goal} ({NEAR:.0%} of the "
            "base's final), as finely as there were validations, times the time of a step, which "
            "is measured apart and in turns. The seconds of the trainings do not compare "
            "where several ran at once."
        )
        return said

    def base_said(self) -> str:
        """The base in the paper's letters."""
        config = self.base.row.config
        m = config.model
        layers = dict.fromkeys(str(n) for n in (m.encoder_layers, m.decoder_layers) if n)
        return (
            f"N={'+'.join(layers)} d_model={m.d_model} d_ff={m.d_ff} h={m.heads} d_k={m.head_size} "
            f"P_drop={m.dropout} ε_ls={config.training.label_smoothing}"
        )

    def cells(self, result: Result) -> list[str]:
        """A line of the table."""
        found = [
            result.row.name, result.row.differs(),
            f"{result.parameters / 1e6:.2f}", spread(result.perplexity, 2),
            spread([self.scale * value for value in result.valid], 1),
        ]  # fmt: skip
        if result.tests:
            found.append(spread([self.scale * value for value in result.tests], 1))
        if (one := result.difference) is None:
            found += ["", ""]
        else:
            mark = STAR if one.significant else " "
            found += [f"{self.scale * one.value:+.1f}{mark}", said_p(one.adjusted)]
        seconds = result.seconds_to_quality
        found += [f"{result.ms:.1f}", "never" if seconds is None else duration(seconds)]
        return found

    def head(self) -> list[str]:
        name = NAMES[self.metric]
        tests = [f"test {name}"] if self.base.tests else []
        return [
            "row", "what differs", "10⁶", "perplexity", f"valid {name}", *tests, "diff.", "p", "ms",
            f"to {NEAR:.0%}",
        ]  # fmt: skip

    def show(self) -> None:
        console = make_console()
        if not console.is_terminal:
            console.width = WIDE
        seeds = f"{len(self.seeds)} seed{'' if len(self.seeds) == 1 else 's'}"
        data = "test" if self.counts == "test" else "validation"
        steps = self.base.row.config.training.steps
        console.print(
            f"{self.task}, {self.examples:,} {data} examples, {seeds}, {steps:,} steps, "
            f"{self.machine}\nbase: {self.base_said()}\n"
        )
        table = Table(*self.head(), box=None, pad_edge=False)
        for i, column in enumerate(table.columns):
            column.no_wrap = i != 1  # on a narrow screen, only words are folded
            column.justify = "left" if i < 2 else "right"
        group = self.base.row.group
        for result in self.results:
            if result.row.group != group:
                table.add_section()
                group = result.row.group
            table.add_row(*self.cells(result))
        console.print(table)
        console.print("\n10⁶: parameters in millions. ms: of a training step.")
        for note in self.notes():
            console.print(note)
        for name, why in self.skipped:
            console.print(f"left out: {name}: {why}")
        for name, why in self.failed:
            console.print(f"failed: {name}: {why}")
        for path in self.files:
            console.print(f"written: {path}", soft_wrap=True)


def figure(report: Report, value: float) -> str:
    return f"{report.scale * value:.1f}{'' if report.scale == 1 else '%'}"


def spread(values: Sequence[float], places: int) -> str:
    said = f"{statistics.fmean(values):.{places}f}"
    return said + (f" ±{statistics.stdev(values):.{places}f}" if len(values) > 1 else "")


# ---- the picture ----------------------------------------------------------------------------


def draw_ablation(out: Path, report: Report) -> list[Path]:
    """How much each row differs from the base, as OUT.png and OUT.svg."""
    return save_picture(lambda: draw(report), out)


def draw(report: Report) -> Figure:
    """A line for each row: its difference, with the standard error over seeds (and each seed as a
    small bar), or with the interval of its quality over the examples. Full marks are significant.
    """
    from matplotlib.figure import Figure

    rows, scale, name = report.results[1:], report.scale, NAMES[report.metric]
    middle = scale * statistics.fmean(report.base.qualities)
    picture = Figure(figsize=(13, 2.6 + 0.42 * len(rows)), dpi=100, layout="constrained")
    panel = picture.subplots()
    order = {group: i for i, group in enumerate(GROUPS)}
    gap = 0.5  # between groups
    heights: list[float] = []
    for i, result in enumerate(rows):
        fresh = i > 0 and rows[i - 1].row.group != result.row.group
        heights.append((heights[-1] + 1 + gap * fresh) if heights else 0.0)
        style = order[result.row.group] - 1
        colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
        assert result.difference is not None
        value, y = scale * result.difference.value, heights[-1]
        if result.interval is not None:
            low, high = (scale * end - middle for end in result.interval)
        else:
            error = scale * (result.difference.error or 0.0)
            low, high = value - error, value + error
        panel.plot([low, high], [y, y], color=colour, linewidth=2)
        if len(result.runs) > 1:
            each = [scale * one - middle for one in result.qualities]
            panel.plot(each, [y] * len(each), "|", color=colour, markersize=9)
        panel.plot(
            value, y, marker, color=colour, markersize=10, markeredgewidth=1.6, zorder=3,
            markerfacecolor=colour if result.difference.significant else "white",
        )  # fmt: skip
    if len(report.seeds) > 1:
        deviation = statistics.stdev(scale * one for one in report.base.qualities)
        panel.axvspan(-deviation, deviation, color="#e0e0e0", zorder=0)
    panel.axvline(0, color="#222222", linewidth=1)
    labels = [  # where the name does not say it all
        one.name + (f"   {one.differs()}" if one.changes.keys() & SIGNS.keys() else "")
        for one in (result.row for result in rows)
    ]
    panel.set_yticks(heights, labels)
    panel.grid(axis="y", visible=False)
    panel.set_ylim((heights[-1] if heights else 0) + 0.7, -0.7)
    data = "test" if report.counts == "test" else "validation"
    panel.set_xlabel(f"{data} {name}: difference to the base ({middle:.1f})")
    if len(report.seeds) > 1:
        said = "line: standard error of the difference; |: each seed; grey: the base's deviation"
    else:
        said = "line: 95% interval of the row's own score over the examples"
    picture.suptitle("What each change does to the base", fontsize=17, weight="bold")
    panel.set_title(f"full mark: significant (Holm, {SURE})\n{said}", loc="left", fontsize=11)
    return picture
