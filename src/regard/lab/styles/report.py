"""The report of `regard lab styles`: a table, a sentence for each style, and a picture."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config.sections import Config
from regard.lab.common.report import ALL_COLUMNS, LabReport, Picture, plain_table
from regard.lab.common.timing import TimedStep
from regard.tasks.registry import find_task
from regard.tasks.task import Task
from regard.view.curves import Curves, Point, add_labels, draw_lines, read_curves
from regard.view.picture import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

QUALITY = {"translate": ("bleu", "exact"), "classify": ("accuracy", "macro_f1")}
NAMES = {"bleu": "BLEU", "exact": "exact match", "macro_f1": "macro F1"}
SENTENCES = 32  # whose predictions are timed, one by one and all at once


@dataclass
class StyleResult:
    """One of the three styles: how it is trained, and what was measured of it."""

    config: Config
    task: Task
    runs: list[Path]  # one for each seed
    read: float  # tokens that its stacks read of a test example, together
    targets: float  # targets of a test example
    qualities: list[dict[str, float]] = field(default_factory=list)  # one for each seed
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    seconds: float = 0.0  # of the training with the first seed
    parameters: int = 0
    steps: list[TimedStep] = field(default_factory=list)
    predictions: dict[int, list[float]] = field(default_factory=dict)  # seconds, by batch size
    written: float = 0.0  # tokens of a prediction; 0 for a label
    passes: float = 0.0  # of a prediction, in sequence

    @property
    def name(self) -> str:
        return self.config.model.style

    @property
    def layers(self) -> list[int]:
        model = self.config.model
        return [n for n in (model.encoder_layers, model.decoder_layers) if n]

    def quality(self, name: str) -> dict[str, Any]:
        """The mean over the seeds, with their deviation or with the interval of one seed."""
        values = [result[name] for result in self.qualities]
        figures: dict[str, Any] = {"value": statistics.mean(values), "seeds": values}
        if len(values) > 1:
            return figures | {"spread": statistics.stdev(values)}
        return figures | dict(zip(("low", "high"), self.ranges[name], strict=True))

    def to_dict(self) -> dict[str, Any]:
        median = statistics.median
        decoding: dict[str, Any] = {"steps": self.passes}
        if self.written:
            decoding["tokens"] = self.written
        for batch, seconds in self.predictions.items():
            sentence = 1000 * median(seconds)
            decoding[f"batch_{batch}"] = {"ms_per_sentence": sentence}
            if self.written:
                decoding[f"batch_{batch}"]["ms_per_token"] = sentence / self.written
        return {
            "layers": self.layers, "parameters": self.parameters,
            "quality": {name: self.quality(name) for name in QUALITY[self.config.task]},
            "training": {
                "seconds": self.seconds, "batch_tokens": self.config.training.batch_tokens,
                "examples_per_step": statistics.mean(count for _, count, _ in self.steps),
                "ms_per_step": 1000 * median(seconds for seconds, _, _ in self.steps),
                "targets_per_second": median(n / seconds for seconds, _, n in self.steps),
            },
            "decoding": decoding, "tokens_read": self.read,
            "target_share": self.targets / self.read, "runs": [str(run) for run in self.runs],
        }  # fmt: skip


@dataclass
class StylesReport(LabReport):
    command = "styles"

    task: str
    examples: int
    seeds: list[int]
    machine: str
    styles: list[StyleResult]

    def figures(self) -> dict[str, Any]:
        return {
            "task": self.task, "examples": self.examples, "seeds": self.seeds,
            "machine": self.machine,
            "styles": {result.name: result.to_dict() for result in self.styles},
        }  # fmt: skip

    def csv_rows(self) -> list[dict[str, Any]]:
        rows = []
        for name, result in self.figures()["styles"].items():
            row = {"style": name, "parameters": result["parameters"]}
            row |= {metric: value["value"] for metric, value in result["quality"].items()}
            row |= result["training"] | {"decoding_steps": result["decoding"]["steps"]}
            for batch in (1, SENTENCES):
                ms = result["decoding"][f"batch_{batch}"]["ms_per_sentence"]
                row[f"ms_per_sentence_batch_{batch}"] = ms
            rows.append(row | {key: result[key] for key in ("tokens_read", "target_share")})
        return rows

    def print_tables(self, console: Console) -> None:
        styles = self.figures()["styles"]
        table = plain_table("", *styles, wrap=ALL_COLUMNS)
        for row in zip(*map(cells, styles.values()), strict=True):
            table.add_row(row[0][0], *(value for _, value in row))
        console.print(f"{self.task}, {self.examples:,} test examples, {self.machine}\n")
        console.print(table)
        sizes = [result.parameters for result in self.styles]
        console.print(
            f"\nA style of one stack has as many layers as come nearest to the {sizes[0]:,} "
            f"parameters of the encoder-decoder (largest / smallest: {max(sizes) / min(sizes):.3f})"
            ", and a batch of about as many examples."
        )
        if len(self.seeds) > 1:
            console.print(f"Times are those of the models of seed {self.seeds[0]}.")
        for name, result in styles.items():
            console.print(sentence(name, result))

    def pictures(self) -> list[Picture]:
        title = f"Three styles, one task: {self.task}"
        return [Picture(self.command, (16, 7.5), title, draw)]


def cells(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The column of a style: (name, figure) of each row."""
    training, decoding = result["training"], result["decoding"]
    layers = " + ".join(map(str, result["layers"]))
    rows = [("layers", layers), ("parameters", f"{result['parameters']:,}")]
    for name, quality in result["quality"].items():
        rows.append((metric_name(name), figure(name, quality["value"])))
        if "spread" in quality:
            label = f"  deviation, {len(quality['seeds'])} seeds"
            rows.append((label, figure(name, quality["spread"])))
        else:
            ends = [figure(name, quality[end]) for end in ("low", "high")]
            rows.append(("  95% interval", " to ".join(ends)))
    rows += [
        ("training", ""),
        ("  examples a step", f"{training['examples_per_step']:.1f}"),
        ("  ms a step", f"{training['ms_per_step']:.1f}"),
        ("  targets a second", f"{training['targets_per_second']:,.0f}"),
        ("reading", ""),
        ("  tokens of an example", f"{result['tokens_read']:.1f}"),
        ("  targets among them", f"{result['target_share']:.1%}"),
        ("prediction", ""),
        ("  steps in sequence", f"{decoding['steps']:.1f}"),
    ]
    if "tokens" in decoding:
        rows.append(("  tokens written", f"{decoding['tokens']:.1f}"))
    for batch in (1, SENTENCES):
        for unit, value in decoding[f"batch_{batch}"].items():
            rows.append((f"  {unit.replace('_per_', ' a ')}, batch {batch}", f"{value:.3f}"))
    return rows


def sentence(name: str, result: dict[str, Any]) -> str:
    """The main figures of a style as a sentence."""
    qualities = ", ".join(
        f"{metric_name(key)} {figure(key, value['value'])}"
        for key, value in result["quality"].items()
    )
    decoding = result["decoding"]
    tokens = f"{decoding['tokens']:.1f} tokens" if "tokens" in decoding else "a label"
    alone, among = (decoding[f"batch_{n}"]["ms_per_sentence"] for n in (1, SENTENCES))
    return (
        f"{name}: {qualities}; {result['training']['ms_per_step']:.0f} ms a training step; it "
        f"predicts {tokens} in {decoding['steps']:.1f} steps, in {alone:.1f} ms a sentence alone "
        f"and {among:.2f} ms in a batch of {SENTENCES}."
    )


def metric_name(name: str) -> str:
    return NAMES.get(name, name)


def figure(name: str, value: float) -> str:
    return f"{value:z.1f}" if name == "bleu" else f"{100 * value:z.1f}%"


def draw(picture: Figure, report: StylesReport) -> None:
    """Quality over the time of a prediction, and the validation scores during training."""
    task, styles = report.task, report.styles
    left, right = picture.subplots(1, 2)
    draw_quality(left, QUALITY[task][0], styles)
    metric = find_task(task).better
    curves = [mean_curve(style, f"valid_{metric}") for style in styles]
    draw_lines(right, curves, f"valid_{metric}")
    ends = [curve.series[f"valid_{metric}"][-1] for curve in curves]
    right.set(xlabel="training step", ylabel=f"validation {metric_name(metric)}", xlim=(0, None))
    right.set_ylim(bottom=0)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set_title("Validation during training", loc="left", pad=14)
    add_labels(right, [
        (end, result.name, colour)
        for end, result, colour in zip(ends, styles, COLOURS, strict=False)
    ])  # fmt: skip


def draw_quality(panel: Axes, name: str, styles: list[StyleResult]) -> None:
    """A mark for each style whose area shows its parameters: full for sentences one by one, empty
    for a batch."""
    from matplotlib.ticker import LogLocator

    largest = max(style.parameters for style in styles)
    scale = 1 if name == "bleu" else 100
    for style, colour, marker in zip(styles, COLOURS, MARKERS, strict=False):
        quality = style.quality(name)
        value, spread = quality["value"], quality.get("spread", 0.0)
        low, high = quality.get("low", value - spread), quality.get("high", value + spread)
        layers = " + ".join(map(str, style.layers))
        label = f"{style.name}: {layers} layers, {style.parameters:,} parameters"
        times = [1000 * statistics.median(seconds) for seconds in style.predictions.values()]
        for i, ms in enumerate(times):
            panel.plot([ms, ms], [scale * low, scale * high], color=colour, linewidth=1.5)
            panel.scatter(
                ms, scale * value, 320 * style.parameters / largest, marker=marker, zorder=3,
                color="white" if i else colour, edgecolor=colour, linewidth=2,
                label="" if i else label,
            )  # fmt: skip
    panel.set_xscale("log")
    panel.margins(0.15, 0.15)
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_minor_formatter("")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter("{x:,.4g}")
    panel.set(
        xlabel=f"ms a sentence (full: one at a time, empty: {SENTENCES} at a time)",
        ylabel=f"test {metric_name(name)}{'' if scale == 1 else ', %'}",
    )
    bar = "deviation over seeds" if len(styles[0].runs) > 1 else "95% interval"
    panel.set_title(f"Quality and time of a prediction (bar: {bar})", loc="left", pad=14)
    location: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
    panel.legend(**location, frameon=False, title="area of a mark: parameters")


def mean_curve(style: StyleResult, key: str) -> Curves:
    """The validation scores of a style, as means over its seeds."""
    runs = [read_curves(run, style.name).series[key] for run in style.runs]
    places = zip(*runs, strict=False)
    points = [Point(at[0].step, statistics.mean(point.value for point in at)) for at in places]
    return Curves(style.name, points[-1].step, {key: points}, {})
