"""What `regard lab styles` shows: a table, a sentence for each style, and a picture.

Only figures that were measured, no verdict: what they mean is the reader's to say.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from regard.console import make_console
from regard.lab.styles_measured import QUALITY, SENTENCES, Style
from regard.tasks.registry import find_task
from regard.view.curves import Curves, Point, add_labels, draw_lines, read_curves
from regard.view.picture import COLOURS, MARKERS, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"bleu": "BLEU", "exact": "exact match", "macro_f1": "macro F1"}


@dataclass(frozen=True)
class Report:
    """What is printed."""

    task: str
    examples: int
    seeds: list[int]
    machine: str
    styles: list[Style]
    files: list[Path]

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.task, "examples": self.examples, "seeds": self.seeds,
            "machine": self.machine, "styles": {one.name: one.to_dict() for one in self.styles},
            "files": [str(path) for path in self.files],
        }  # fmt: skip

    def show(self) -> None:
        console = make_console()
        found = [one.to_dict() for one in self.styles]
        table = Table("", *(one.name for one in self.styles), box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        columns = [cells(one) for one in found]
        for row in zip(*columns, strict=True):
            table.add_row(row[0][0], *(value for _, value in row))
        console.print(f"{self.task}, {self.examples:,} test examples, {self.machine}\n")
        console.print(table)
        sizes = [one.parameters for one in self.styles]
        console.print(
            f"\nA style of one stack has as many layers as come nearest to the {sizes[0]:,} "
            f"parameters of the encoder-decoder (largest / smallest: {max(sizes) / min(sizes):.3f})"
            ", and a batch of about as many examples."
        )
        if len(self.seeds) > 1:
            console.print(f"Times are those of the models of seed {self.seeds[0]}.")
        for style, one in zip(self.styles, found, strict=True):
            console.print(sentence(style.name, one))
        for path in self.files:
            console.print(f"drawn: {path}", soft_wrap=True)


def cells(one: dict[str, Any]) -> list[tuple[str, str]]:
    """The column of a style: what is measured, and the figure."""
    training, decoding = one["training"], one["decoding"]
    found = [
        ("layers", " + ".join(map(str, one["layers"]))),
        ("parameters", f"{one['parameters']:,}"),
    ]
    for name, quality in one["quality"].items():
        found.append((title(name), figure(name, quality["value"])))
        if "spread" in quality:
            said = f"  deviation, {len(quality['seeds'])} seeds"
            found.append((said, figure(name, quality["spread"])))
        else:
            ends = [figure(name, quality[end]) for end in ("low", "high")]
            found.append(("  95% interval", " to ".join(ends)))
    found += [
        ("training", ""),
        ("  examples a step", f"{training['examples_per_step']:.1f}"),
        ("  ms a step", f"{training['ms_per_step']:.1f}"),
        ("  targets a second", f"{training['targets_per_second']:,.0f}"),
        ("reading", ""),
        ("  tokens of an example", f"{one['tokens_read']:.1f}"),
        ("  targets among them", f"{one['target_share']:.1%}"),
        ("answering", ""),
        ("  steps in sequence", f"{decoding['steps']:.1f}"),
    ]
    if "tokens" in decoding:
        found.append(("  tokens written", f"{decoding['tokens']:.1f}"))
    for batch in (1, SENTENCES):
        for unit, value in decoding[f"batch_{batch}"].items():
            found.append((f"  {unit.replace('_per_', ' a ')}, batch {batch}", f"{value:.3f}"))
    return found


def sentence(name: str, one: dict[str, Any]) -> str:
    """What was measured of a style, in words."""
    qualities = ", ".join(
        f"{title(key)} {figure(key, value['value'])}" for key, value in one["quality"].items()
    )
    decoding = one["decoding"]
    tokens = f"{decoding['tokens']:.1f} tokens" if "tokens" in decoding else "a label"
    alone, among = (decoding[f"batch_{n}"]["ms_per_sentence"] for n in (1, SENTENCES))
    return (
        f"{name}: {qualities}; {one['training']['ms_per_step']:.0f} ms a training step; it gave "
        f"{tokens} in {decoding['steps']:.1f} steps, {alone:.1f} ms a sentence alone and "
        f"{among:.2f} ms among {SENTENCES}."
    )


def title(name: str) -> str:
    return NAMES.get(name, name)


def figure(name: str, value: float) -> str:
    return f"{value:z.1f}" if name == "bleu" else f"{100 * value:z.1f}%"


# ---- the picture ------------------------------------------------------------------------


def draw_styles(out: Path, task: str, styles: list[Style]) -> list[Path]:
    """Quality and time of each style, and how it learned, as OUT/styles.png and OUT/styles.svg."""
    return save_picture(lambda: draw(task, styles), out / "styles")


def draw(task: str, styles: list[Style]) -> Figure:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(16, 7.5), dpi=100, layout="constrained")
    left, right = picture.subplots(1, 2)
    draw_quality(left, QUALITY[task][0], styles)
    key = f"valid_{find_task(task).better}"
    curves = [learning(style, key) for style in styles]
    draw_lines(right, curves, key)
    ends = [curve.series[key][-1] for curve in curves]
    right.set(xlabel="training step", ylabel=f"validation {title(key[6:])}", xlim=(0, None))
    right.set_ylim(bottom=0)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set_title("How each learned", loc="left", pad=14)
    add_labels(right, [
        (end, one.name, colour) for end, one, colour in zip(ends, styles, COLOURS, strict=False)
    ])  # fmt: skip
    picture.suptitle(f"Three styles, one task: {task}", fontsize=17, weight="bold")
    return picture


def draw_quality(panel: Axes, name: str, styles: list[Style]) -> None:
    """A mark for each style, its area by its parameters: full where sentences come one by one,
    empty where they come together."""
    from matplotlib.ticker import LogLocator

    largest = max(style.parameters for style in styles)
    scale = 1 if name == "bleu" else 100
    for style, colour, marker in zip(styles, COLOURS, MARKERS, strict=False):
        found = style.quality(name)
        value, spread = found["value"], found.get("spread", 0.0)
        low, high = found.get("low", value - spread), found.get("high", value + spread)
        layers = " + ".join(map(str, style.layers))
        said = f"{style.name}: {layers} layers, {style.parameters:,} parameters"
        times = [1000 * statistics.median(seconds) for seconds in style.answers.values()]
        for i, ms in enumerate(times):
            panel.plot([ms, ms], [scale * low, scale * high], color=colour, linewidth=1.5)
            panel.scatter(
                ms, scale * value, 320 * style.parameters / largest, marker=marker, zorder=3,
                color="white" if i else colour, edgecolor=colour, linewidth=2,
                label="" if i else said,
            )  # fmt: skip
    panel.set_xscale("log")
    panel.margins(0.15, 0.15)
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_minor_formatter("")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter("{x:,.4g}")
    panel.set(
        xlabel=f"ms a sentence (full: one at a time, empty: {SENTENCES} at a time)",
        ylabel=f"test {title(name)}{'' if scale == 1 else ', %'}",
    )
    sure = "deviation over seeds" if len(styles[0].runs) > 1 else "95% interval"
    panel.set_title(f"Quality and time of an answer (bar: {sure})", loc="left", pad=14)
    panel.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False,
        title="area of a mark: parameters",
    )  # fmt: skip


def learning(style: Style, key: str) -> Curves:
    """The validation scores of a style, as means over its seeds."""
    runs = [read_curves(run, style.name).series[key] for run in style.runs]
    points = [
        Point(at[0].step, statistics.mean(point.value for point in at))
        for at in zip(*runs, strict=False)
    ]
    return Curves(style.name, points[-1].step, {key: points}, {})
