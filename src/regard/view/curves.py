"""`regard view curves`: training curves from `metrics.jsonl` as PNG and SVG.

Four panels over steps: loss, the task's metric, learning rate, and tokens per second. Each line has
its label at its end.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.errors import InputError
from regard.files import LARGEST_METRICS, read_bounded, real_path
from regard.view.picture import COLOURS, DASHES, MARKERS, new_figure, picture_name, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = ("loss", "valid_loss", "learning_rate", "tokens_per_second")
LARGEST_STEP, LARGEST_VALUE, LONGEST_LINE = 10**12, 1e30, 100_000
LOWER_IS_BETTER = ("valid_loss", "valid_perplexity", "valid_bits_per_byte")
NAMES = {"bleu": "BLEU", "chrf": "chrF"}  # other scores keep their names


class Point(NamedTuple):
    step: int
    value: float


@dataclass(frozen=True)
class Curves:
    """The metrics of one run by name, and its final record if it has finished."""

    name: str
    steps: int
    series: dict[str, list[Point]]
    final: dict[str, Any]

    def metric(self) -> str | None:
        """The task's metric: the first score of a validation that is not its loss."""
        scores = (key for key in self.series if key.startswith("valid_") and key != "valid_loss")
        return next(scores, None)

    def best(self, key: str) -> Point | None:
        points = [point for point in self.series.get(key, []) if math.isfinite(point.value)]
        choose = min if key in LOWER_IS_BETTER else max
        return choose(points, key=lambda point: point.value, default=None)

    def summary(self) -> str:
        """The run in one line: name, steps, score."""
        words = f"{shorten(self.name, 50)}: {self.steps:,} step{'' if self.steps == 1 else 's'}"
        key = self.metric() or "valid_loss"
        score = self.final.get(key.removeprefix("valid_"))
        if isinstance(score, float):
            weights = shorten(str(self.final["final"]), 50)
            words += f", final {title(key)} {figure(key, score)} (weights: {weights})"
        elif best := self.best(key):
            words += f", best {title(key)} {figure(key, best.value)}"
        return words if self.final else f"{words}, not finished"


def draw_curves(runs: list[Path], out: Path | None) -> list[Path]:
    """Draw the training curves of runs in one picture; returns the two files.

    out: NAME.png or NAME.svg, for both; None: curves.png and curves.svg in the first run's folder.
    """
    out = runs[0] / "curves" if out is None else out / "curves" if out.is_dir() else out
    out = picture_name(out)
    names = [real_path(run).name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run) for run in runs]
    curves = [read_curves(run, name) for run, name in zip(runs, names, strict=True)]
    return save_picture(lambda: draw(curves), out)


def read_curves(run: Path, name: str) -> Curves:
    path = run / "metrics.jsonl"
    try:
        lines = read_bounded(path, LARGEST_METRICS, "the metrics of a run").splitlines()
    except InputError as error:
        hint = "give the folder of a run, as regard train --out RUN writes it"
        raise InputError(f"{error}: {hint}") from None
    steps, final = 0, {}
    series: dict[str, list[Point]] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = read_record(line)
        except ValueError as error:
            if number == len(lines):
                break  # incomplete: the run was killed while it wrote this line
            raise InputError(f"{path}:{number}: {error}") from None
        steps = max(steps, record["step"])
        final = record if "final" in record else {}  # dropped if the run was resumed later
        for key, value in record.items():
            if isinstance(value, float) and not final and key.isidentifier():
                series.setdefault(key, []).append(Point(record["step"], value))
    return Curves(name, steps, series, final)


def read_record(line: bytes) -> dict[str, Any]:
    """A line of the metrics with its numbers as floats; NaN for those that cannot be drawn."""
    record: Any = None
    try:
        if len(line) <= LONGEST_LINE:
            record = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise ValueError("this line is not JSON") from None
    step = record.get("step") if isinstance(record, dict) else None
    if type(step) is not int or not 0 <= step <= LARGEST_STEP:
        raise ValueError('this line is not an object with an integer "step"')
    for key, value in record.items():
        if type(value) in (int, float) and key != "step":
            record[key] = float(value) if abs(value) <= LARGEST_VALUE else math.nan
        elif key in DRAWN:
            raise ValueError(f'"{key}" is not a number')
    return dict(record)


def draw(curves: list[Curves]) -> Figure:
    heading = curves[0].summary() if len(curves) == 1 else f"Training of {len(curves)} runs"
    height = 10 + 0.8 * max(0, len(curves) - 4)  # room for the names beside the lines
    picture = new_figure(16, height, heading)
    panels = picture.subplots(2, 2, gridspec_kw={"height_ratios": (3, 2)})
    metric = next((key for run in curves if (key := run.metric())), "valid_score")
    keys = ("valid_loss", metric, "learning_rate", "tokens_per_second")
    for panel, key in zip(panels.flat, keys, strict=True):
        panel.set(xlabel="step", xlim=(0, 1.015 * max(1, *(run.steps for run in curves))))
        panel.set_ylabel(title(key), labelpad=10)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.xaxis.get_major_locator().set_params(integer=True, nbins=7)
        panel.yaxis.set_major_formatter(lambda y, _: f"{y:,.6g}")
        draw_panel(panel, curves, key)
    panels[0, 0].set_title("Loss: training thin, validation bold, ★ best", loc="left", pad=14)
    panels[0, 1].set_title(f"Validation {title(metric)}, ★ best", loc="left", pad=14)
    if len(curves) > 1:
        lines = panels[1, 0].lines[-len(curves) :]
        names = ["run"] * len(lines)
        legend = picture.legend(lines, names, loc="outside lower center", handlelength=5)
        for text, run in zip(legend.get_texts(), curves, strict=True):
            text.set(text=run.summary(), parse_math=False)  # _ and $ are ordinary characters
    return picture


def draw_panel(panel: Axes, curves: list[Curves], key: str) -> None:
    """Draw a line for each run, with a label at its end, and with its best point for a score."""
    training = draw_lines(panel, curves, "loss" if key == "valid_loss" else "", thin=True)
    ends = draw_lines(panel, curves, key)
    labels = [(training[0], "training", COLOURS[0])] if len(curves) == 1 else []
    for run, end, behind, colour in zip(curves, ends, training, cycle(COLOURS), strict=False):
        words = [shorten(run.name, 22)] if len(curves) > 1 else []
        if best := run.best(key) if key.startswith("valid_") else None:
            panel.scatter(*best, s=400, c=colour, marker="*", ec="white", zorder=5, clip_on=False)
            near = " " if words else "\n"  # the label of a single run has more room
            words.append(f"best {figure(key, best.value)}{near}at step {best.step:,}")
        labels.append((end or behind, "\n".join(words), colour))
    if not any((*ends, *training)):
        panel.text(0.5, 0.5, "no values", transform=panel.transAxes, ha="center")
        panel.set_yticks([])
    elif not key.startswith("valid_"):
        panel.set_ylim(bottom=0)
    elif key == "valid_loss":  # without the first twentieth: its fall would flatten the rest
        points = [(run, p) for run in curves for k in DRAWN[:2] for p in run.series.get(k, [])]
        if values := [p.value for run, p in points if p.value >= 0 and p.step >= run.steps / 20]:
            margin = (max(values) - min(values)) / 20 or 0.1
            panel.set_ylim(min(values) - margin, max(values) + margin)
    add_labels(panel, [(end, text, colour) for end, text, colour in labels if end and text])


def draw_lines(panel: Axes, curves: list[Curves], key: str, thin: bool = False) -> list[Any]:
    """Draw a line for each run, even an empty one; returns the last point of each, or None."""
    ends = []
    styles = zip(curves, cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False)
    for i, (run, colour, dashes, marker) in enumerate(styles):
        points = run.series.get(key, [])
        every = len(points) // 12 + 1
        bare = len(points) > 1 and (thin or (len(curves) == 1 and not key.startswith("valid_")))
        panel.plot(
            [point.step for point in points], [point.value for point in points], color=colour,
            linestyle=dashes, linewidth=1 if thin else 2, alpha=0.45 if thin else 1,
            marker="" if bare else marker, markersize=8, markevery=(i % every, every),
            clip_on=key.endswith("loss"), in_layout=False,
        )  # fmt: skip
        ends.append(next((p for p in reversed(points) if math.isfinite(p.value)), None))
    return ends


def add_labels(panel: Axes, labels: list[tuple[Point, str, str]]) -> None:
    """Draw labels in the right margin at the height of their lines, without overlaps."""
    labels.sort(key=lambda label: label[0].value)
    low, high = panel.get_ylim()
    room = [(text.count("\n") + 1.4) * 21 / panel.bbox.height for _, text, _ in labels]
    middles = [(end.value - low) / (high - low) for end, _, _ in labels]
    for _ in range(200):
        for i, j in pairwise(range(len(labels))):
            push = max(0.0, (room[i] + room[j]) / 2 - (middles[j] - middles[i])) / 2
            middles[i], middles[j] = middles[i] - push, middles[j] + push
        middles = [min(max(m, size / 2), 1.0) for m, size in zip(middles, room, strict=True)]
    line = {"arrowstyle": "-", "color": "#999999", "shrinkA": 3, "shrinkB": 5, "relpos": (0, 0.5)}
    for (end, text, colour), middle in zip(labels, middles, strict=True):
        panel.annotate(
            text, end, (1.05, middle), textcoords="axes fraction", color=colour, fontsize=12,
            va="center", annotation_clip=False, parse_math=False, arrowprops=line,
        )  # fmt: skip


def title(key: str) -> str:
    name = key.removeprefix("valid_")
    return NAMES.get(name, name.replace("_", " "))


def figure(key: str, value: float) -> str:
    return f"{value:.2f}" if title(key) in NAMES.values() else f"{value:.3f}"


def shorten(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most // 2 - 1]}…{name[-most // 2 :]}"
