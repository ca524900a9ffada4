"""The report of `regard lab recall`: accuracy and time over the distance, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.lab.common import report as common
from regard.lab.common.recall_training import CHANCE, PASS, RecallTraining

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console


@dataclass
class RecallReport(common.LabReport):
    command = "recall"
    width = common.WIDE

    training: RecallTraining
    distances: Sequence[int]
    questions: int  # for each distance and seed
    kinds: dict[str, dict[str, Any]]

    def figures(self) -> dict[str, Any]:
        own = {"chance": CHANCE, "questions": self.questions, "kinds": self.kinds}
        return self.training.to_dict() | own

    def csv_rows(self) -> list[dict[str, Any]]:
        return [
            {"kind": name, "distance": entry["distance"], "seed": seed, "accuracy": accuracy,
             "learned_after_seconds": after, "steps": steps, "seconds": seconds}
            for name, kind in self.kinds.items()
            for entry in kind["accuracies"]
            for seed, accuracy, after, steps, seconds in zip(
                self.training.seeds, entry["seeds"], entry["learned_after_seconds"], kind["steps"],
                kind["seconds"], strict=True,
            )
        ]  # fmt: skip

    def print_tables(self, console: Console) -> None:
        training, seeds = self.training, len(self.training.seeds)
        console.print(
            f"Accuracy in percent at recalling a token so many steps back, after {training.budget} "
            f"of training: {training.layers} layers, d_model {training.d_model}, chance "
            f"{CHANCE:.1%}, {common.plural(seeds, 'seed')} x {self.questions} questions\n",
            soft_wrap=True,
        )
        columns = ["", *map(str, self.distances)]
        table = common.plain_table(*columns, "reach", "steps", "ms a step")
        times = common.plain_table(*columns)
        for kind in self.kinds.values():
            reach = str(kind["reach"]) if kind["reach"] < self.distances[-1] else "all"
            table.add_row(
                kind["title"], *map(format_accuracy, kind["accuracies"]), reach,
                f"{sum(kind['steps']) / seeds:,.0f}", f"{kind['ms_per_step']:.0f}",
            )  # fmt: skip
            times.add_row(kind["title"], *map(format_seconds, kind["accuracies"]))
        console.print(table, soft_wrap=True)
        console.print(
            "\nreach: the farthest input on which the last output depends at all, by the gradient; "
            "beyond it, accuracy is chance. Within it, what is not recalled was not learned in the "
            f"time. In brackets: lowest and highest seed. Seconds until {PASS:.0%} were correct:\n",
            soft_wrap=True,
        )
        console.print(times, soft_wrap=True)

    def pictures(self) -> list[common.Picture]:
        return [
            common.Picture(self.command, (14, 8.5), "Recall of a token so many steps back", draw)
        ]


def format_accuracy(entry: dict[str, Any]) -> str:
    low, high = min(entry["seeds"]), max(entry["seeds"])
    spread = f" ({100 * low:.0f}-{100 * high:.0f})" if high - low > 0.1 else ""
    return f"{100 * entry['accuracy']:.0f}{spread}"


def format_seconds(entry: dict[str, Any]) -> str:
    """The mean over the seeds; empty unless all have learned the distance."""
    times = entry["learned_after_seconds"]
    return "" if None in times else f"{sum(times) / len(times):.1f}"


def draw(picture: Figure, report: RecallReport) -> None:
    """Accuracy over the distance."""
    panel = picture.subplots()
    draw_accuracies(panel, report)
    draw_reaches(panel, report)
    panel.axhline(100 * CHANCE, color="#777777", linewidth=1, linestyle=(0, (2, 2)))
    panel.annotate(
        f"chance {CHANCE:.1%}", (1, 100 * CHANCE), (4, -4), xycoords=("axes fraction", "data"),
        textcoords="offset points", color="#555555", fontsize=12, va="center",
    )  # fmt: skip
    common.set_distance_axis(panel, report.distances)
    panel.set(
        xlabel="steps back (log scale)", ylabel="accuracy, %", ylim=(0, 102),
        xlim=(0.85 * report.distances[0], 1.15 * report.distances[-1]),
    )  # fmt: skip
    panel.set_title(
        f"{report.training.layers} layers, {report.training.budget} of training each; bars: lowest "
        "and highest seed; ▼ where the reach ends, by the gradient", loc="left", pad=52,
        fontsize=13,
    )  # fmt: skip
    common.add_legend_below(picture, panel)


def draw_accuracies(panel: Axes, report: RecallReport) -> None:
    lines = zip(report.kinds.values(), common.line_styles(), strict=False)
    for i, (kind, style) in enumerate(lines):
        points = kind["accuracies"]
        # Slightly shifted, so that lines at the top do not cover each other.
        x = [entry["distance"] * 1.015 ** (i - len(report.kinds) // 2) for entry in points]
        y = [100 * entry["accuracy"] for entry in points]
        panel.plot(x, y, **style, label=kind["title"], zorder=3)
        for at, entry in zip(x, points, strict=True):
            ends = [100 * min(entry["seeds"]), 100 * max(entry["seeds"])]
            panel.plot([at, at], ends, color=style["color"], linewidth=1.5)


def draw_reaches(panel: Axes, report: RecallReport) -> None:
    """Mark where the reach of a kind ends; labels that would overlap are at two heights."""
    ends = [entry for entry in report.kinds.values() if 0 < entry["reach"] < report.distances[-1]]
    raised, before = 0, 0.0
    for kind in sorted(ends, key=lambda entry: entry["reach"]):
        raised = 1 - raised if kind["reach"] < 1.9 * before else 0
        before = kind["reach"]
        gap = "\n" * (1 + raised)
        panel.annotate(
            f"{kind['title']}{gap}▼", (before, 102.5), fontsize=11,
            ha="center", va="bottom", annotation_clip=False,
        )  # fmt: skip
