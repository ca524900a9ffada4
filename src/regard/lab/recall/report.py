"""What `regard lab recall` says: a table, recall.csv, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from regard.console import make_console
from regard.lab.common.curriculum import CHANCE, PASS
from regard.lab.common.recall_training import School
from regard.lab.path.report import WIDTH, distance_axis, styled
from regard.view.picture import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass
class RecallReport:
    school: School
    distances: Sequence[int]
    questions: int  # for each distance and seed
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def add(self, name: str, reach: int, found: dict[str, Any]) -> None:
        self.kinds[name] = {"title": self.school.title(name), "reach": reach, **found}

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.school.to_dict(), "chance": CHANCE, "questions": self.questions,
            "kinds": self.kinds, "files": [str(path) for path in self.files],
        }  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"kind": name, "distance": one["distance"], "seed": seed, "accuracy": accuracy,
             "learned_after_seconds": after, "steps": steps, "seconds": seconds}
            for name, kind in self.kinds.items()
            for one in kind["accuracies"]
            for seed, accuracy, after, steps, seconds in zip(
                self.school.seeds, one["seeds"], one["learned_after_seconds"], kind["steps"],
                kind["seconds"], strict=True,
            )
        ]  # fmt: skip

    def show(self) -> None:
        console = make_console(width=WIDTH)
        school, seeds = self.school, len(self.school.seeds)
        each = f"{school.steps} steps" if school.seconds is None else f"{school.seconds:g} s"
        console.print(
            f"Accuracy in percent at recalling a token so many steps back, after {each} of "
            f"training: {school.layers} layers, d_model {school.d_model}, chance {CHANCE:.1%}, "
            f"{seeds} seed{'' if seeds == 1 else 's'} x {self.questions} questions\n",
            soft_wrap=True,
        )
        table = Table(box=None, pad_edge=False)
        for column in ("", *map(str, self.distances), "reach", "steps", "ms a step"):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for kind in self.kinds.values():
            cells = [cell(one) for one in kind["accuracies"]]
            steps = f"{sum(kind['steps']) / seeds:,.0f}"
            reach = self.far(kind["reach"])
            table.add_row(kind["title"], *cells, reach, steps, f"{kind['ms_per_step']:.0f}")
        console.print(table, soft_wrap=True)
        console.print(
            "\nreach: the farthest input on which the last output depends at all, by the gradient; "
            "beyond it there is chance. Within it, what is not recalled was not learned in the "
            f"time. In brackets: lowest and highest seed. Seconds until {PASS:.0%} were right:\n",
            soft_wrap=True,
        )
        times = Table(box=None, pad_edge=False)
        for column in ("", *map(str, self.distances)):
            times.add_column(column, justify="right" if column else "left", no_wrap=True)
        for kind in self.kinds.values():
            times.add_row(kind["title"], *(when(one) for one in kind["accuracies"]))
        console.print(times, soft_wrap=True)
        for path in self.files:
            console.print(f"written: {path}", soft_wrap=True)

    def far(self, reach: int) -> str:
        return str(reach) if reach < self.distances[-1] else "all"


def cell(one: dict[str, Any]) -> str:
    low, high = min(one["seeds"]), max(one["seeds"])
    spread = f" ({100 * low:.0f}-{100 * high:.0f})" if high - low > 0.1 else ""
    return f"{100 * one['accuracy']:.0f}{spread}"


def when(one: dict[str, Any]) -> str:
    """The mean over the seeds, once all have learned it."""
    times = one["learned_after_seconds"]
    return "" if None in times else f"{sum(times) / len(times):.1f}"


# ---- the picture ------------------------------------------------------------------------


def draw_recall(report: RecallReport, out: Path) -> None:
    """Accuracy over distance, as OUT/recall.png and OUT/recall.svg."""
    save_picture(lambda: draw(report), out / "recall")


def draw(report: RecallReport) -> Figure:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(14, 8.5), dpi=100, layout="constrained")
    panel = picture.subplots()
    draw_kinds(panel, report)
    school = report.school
    each = f"{school.steps} steps" if school.seconds is None else f"{school.seconds:g} s"
    panel.set_title(
        f"{school.layers} layers, {each} of training each; bars: lowest and highest seed; "
        "▼ where the gradient says that the reach ends", loc="left", pad=52, fontsize=13,
    )  # fmt: skip
    handles, names = panel.get_legend_handles_labels()
    picture.legend(
        handles, names, loc="outside lower center", ncols=4, handlelength=5, frameon=False
    )
    picture.suptitle("A token so many steps back, recalled", fontsize=17, weight="bold")
    return picture


def draw_kinds(panel: Axes, report: RecallReport) -> None:
    for i, (kind, style) in enumerate(styled(report.kinds)):
        found = kind["accuracies"]
        # A little aside of each other, so that lines at the top can be told apart.
        x = [one["distance"] * 1.015 ** (i - len(report.kinds) // 2) for one in found]
        panel.plot(
            x, [100 * one["accuracy"] for one in found], **style, label=kind["title"], zorder=3
        )
        for at, one in zip(x, found, strict=True):
            ends = [100 * min(one["seeds"]), 100 * max(one["seeds"])]
            panel.plot([at, at], ends, color=style["color"], linewidth=1.5)
    ends = [one for one in report.kinds.values() if 0 < one["reach"] < report.distances[-1]]
    ends.sort(key=lambda one: one["reach"])
    raised, before = 0, 0.0
    for kind in ends:  # two that would meet stand at two heights
        raised = 1 - raised if kind["reach"] < 1.9 * before else 0
        before = kind["reach"]
        gap = "\n" * (1 + raised)
        panel.annotate(
            f"{kind['title']}{gap}▼", (before, 102.5), fontsize=11,
            ha="center", va="bottom", annotation_clip=False,
        )  # fmt: skip
    panel.axhline(100 * CHANCE, color="#777777", linewidth=1, linestyle=(0, (2, 2)))
    panel.annotate(
        f"chance {CHANCE:.1%}", (1, 100 * CHANCE), (4, -4), xycoords=("axes fraction", "data"),
        textcoords="offset points", color="#555555", fontsize=12, va="center",
    )  # fmt: skip
    distance_axis(panel, report.distances)
    panel.set(
        xlabel="steps back (log scale)", ylabel="accuracy, %", ylim=(0, 102),
        xlim=(0.85 * report.distances[0], 1.15 * report.distances[-1]),
    )  # fmt: skip
