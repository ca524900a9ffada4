"""What `regard lab path` says: a table for each state, path.csv, and a picture of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from regard.console import make_console
from regard.lab.common.recall_training import School
from regard.view.picture import COLOURS, DASHES, MARKERS, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 160  # of a table at most: a figure is never cut
FLOOR = 1e-60  # the picture shows nothing below


@dataclass
class PathReport:
    length: int
    school: School
    distances: Sequence[int]
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def add(self, name: str, steps: list[int], states: dict[str, dict[str, Any]]) -> None:
        self.kinds[name] = {"title": self.school.title(name), "steps": steps, "states": states}

    def to_dict(self) -> dict[str, Any]:
        return {
            "length": self.length, **self.school.to_dict(), "distances": list(self.distances),
            "measure": "Frobenius norm of d output_last / d input_(last - t), estimated with "
            "random vectors; root mean square over sequences, geometric mean over seeds",
            "kinds": self.kinds, "files": [str(path) for path in self.files],
        }  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"kind": name, "state": state, "t": t, "gradient": value,
             "others": found["others"]["gradient"][t]}
            for name, kind in self.kinds.items()
            for state, found in kind["states"].items()
            for t, value in zip(self.distances, found["recalled"]["gradient"], strict=True)
        ]  # fmt: skip

    def show(self) -> None:
        console = make_console(width=WIDTH)
        school = self.school
        seeds = len(school.seeds)
        console.print(
            f"Gradient of the last output by the token to be recalled, t steps back: n = "
            f"{self.length}, {school.layers} layers, d_model {school.d_model}, "
            f"{seeds} model{'' if seeds == 1 else 's'} of each kind",
            soft_wrap=True,
        )
        for state in next(iter(self.kinds.values()))["states"]:
            table = Table(title=state, title_justify="left", box=None, pad_edge=False)
            for column in ("", *map(str, self.distances), "reach", "factor a step"):
                table.add_column(column, justify="right" if column else "left", no_wrap=True)
            for kind in self.kinds.values():
                found = kind["states"][state]
                values = map(figure, found["recalled"]["gradient"])
                table.add_row(kind["title"], *values, self.far(found["reach"]), ratio(found))
            console.print()
            console.print(table, soft_wrap=True)
        console.print(
            "\n0 is exactly zero: no path leads there. reach: the largest t that is not. factor: "
            "of the exponential that fits, ± deviation over seeds; 1 is flat.",
            soft_wrap=True,
        )
        for path in self.files:
            console.print(f"written: {path}", soft_wrap=True)

    def far(self, reach: int) -> str:
        return "all" if reach == self.length - 1 else str(reach)


def figure(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}" if value >= 0.01 else f"{value:.0e}"


def ratio(found: dict[str, Any]) -> str:
    factor = found["recalled"]["factor_a_step"]
    if factor is None:
        return ""
    spread = "" if factor["deviation"] is None else f" ± {factor['deviation']:.4f}"
    return f"{factor['mean']:.4f}{spread}"


# ---- the picture ------------------------------------------------------------------------


def draw_path(report: PathReport, out: Path) -> None:
    """Both states side by side, as OUT/path.png and OUT/path.svg."""
    save_picture(lambda: draw(report), out / "path")


def draw(report: PathReport) -> Figure:
    from matplotlib.figure import Figure

    picture = Figure(figsize=(16, 8.5), dpi=100, layout="constrained")
    panels = picture.subplots(1, 2)
    states = list(next(iter(report.kinds.values()))["states"])
    for panel, state in zip(panels, states, strict=True):
        draw_state(panel, report, state)
        panel.set_title(state[0].upper() + state[1:], loc="left", pad=14)
        panel.set_ylabel("gradient (log scale, each panel its own)")
        found = [row["gradient"] for row in report.rows() if row["state"] == state]
        values = [value for value in found if value > 0] or [1.0]
        low = math.floor(math.log10(max(FLOOR, min(values))))
        panel.set_ylim(10.0 ** (low - 0.5), 3 * max(values))
    handles, names = panels[0].get_legend_handles_labels()
    picture.legend(
        handles, names, loc="outside lower center", ncols=4, handlelength=5, frameon=False,
        title="Where a line falls to the bottom, the gradient is exactly zero from then on",
    )  # fmt: skip
    picture.suptitle(
        f"Gradient of the last output by the token to be recalled, t steps back "
        f"({report.school.layers} layers)", fontsize=17, weight="bold",
    )  # fmt: skip
    return picture


def draw_state(panel: Axes, report: PathReport, state: str) -> None:
    for kind, style in styled(report.kinds):
        found = kind["states"][state]
        points = [
            (t, value)
            for t, value in zip(report.distances, found["recalled"]["gradient"], strict=True)
            if value > 0
        ]
        panel.plot(
            [t for t, _ in points], [value for _, value in points], **style,
            label=kind["title"] + ("" if points else " (zero everywhere)"),
        )  # fmt: skip
        if points and found["reach"] < report.length - 1:  # down to nothing
            ends = [found["reach"]] * 2, [points[-1][1], 1e-300]
            panel.plot(*ends, color=style["color"], linestyle=style["linestyle"])
    distance_axis(panel, report.distances)
    panel.set_yscale("log")
    panel.set(xlabel="t, steps back (log scale)", xlim=(0.9, 1.1 * report.distances[-1]))


def styled(kinds: dict[str, dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each kind, and how its line looks; `regard lab recall` has the same."""
    looks = zip(cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=True)
    for kind, (colour, dashes, marker) in zip(kinds.values(), looks, strict=False):
        yield kind, {
            "color": colour, "linestyle": dashes, "marker": marker, "markersize": 8, "linewidth": 2,
        }  # fmt: skip


def distance_axis(panel: Axes, distances: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator

    panel.set_xscale("log", base=2)
    panel.set_xticks(distances, [str(t) for t in distances])
    panel.xaxis.set_minor_locator(NullLocator())
