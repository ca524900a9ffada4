"""The report of `regard lab path`: a table for each state, and a picture of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard.lab.common import report as common
from regard.lab.common.recall_training import RecallTraining

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

FLOOR = 1e-60  # the lower end of the picture, at least


@dataclass
class PathReport(common.LabReport):
    command = "path"
    width = common.WIDE

    length: int
    training: RecallTraining
    distances: Sequence[int]
    kinds: dict[str, dict[str, Any]]

    @property
    def states(self) -> list[str]:
        return list(next(iter(self.kinds.values()))["states"])

    def figures(self) -> dict[str, Any]:
        return {
            "length": self.length, **self.training.to_dict(), "distances": list(self.distances),
            "measure": "Frobenius norm of d output_last / d input_(last - t), estimated with "
            "random vectors; root mean square over sequences, geometric mean over seeds",
            "kinds": self.kinds,
        }  # fmt: skip

    def csv_rows(self) -> list[dict[str, Any]]:
        return [
            {"kind": name, "state": state, "t": t, "gradient": value,
             "others": measured["others"]["gradient"][t]}
            for name, kind in self.kinds.items()
            for state, measured in kind["states"].items()
            for t, value in zip(self.distances, measured["recalled"]["gradient"], strict=True)
        ]  # fmt: skip

    def print_tables(self, console: Console) -> None:
        training = self.training
        console.print(
            f"Gradient of the last output by the token to be recalled, t steps back: n = "
            f"{self.length}, {training.layers} layers, d_model {training.d_model}, "
            f"{common.plural(len(training.seeds), 'model')} of each kind",
            soft_wrap=True,
        )
        columns = ("", *map(str, self.distances), "reach", "factor a step")
        for state in self.states:
            table = common.plain_table(*columns, title=state)
            for kind in self.kinds.values():
                measured = kind["states"][state]
                values = map(figure, measured["recalled"]["gradient"])
                far = "all" if measured["reach"] == self.length - 1 else str(measured["reach"])
                table.add_row(kind["title"], *values, far, format_factor(measured))
            console.print()
            console.print(table, soft_wrap=True)
        console.print(
            "\n0 is exactly zero: there is no path. reach: the largest t with a gradient that is "
            "not zero. factor: of the exponential that fits, ± deviation over seeds; 1 is flat.",
            soft_wrap=True,
        )

    def pictures(self) -> list[common.Picture]:
        title = (
            "Gradient of the last output by the token to be recalled, t steps back "
            f"({self.training.layers} layers)"
        )
        return [common.Picture(self.command, (16, 8.5), title, draw)]


def figure(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}" if value >= 0.01 else f"{value:.0e}"


def format_factor(measured: dict[str, Any]) -> str:
    factor = measured["recalled"]["factor_a_step"]
    if factor is None:
        return ""
    spread = "" if factor["deviation"] is None else f" ± {factor['deviation']:.4f}"
    return f"{factor['mean']:.4f}{spread}"


def draw(picture: Figure, report: PathReport) -> None:
    """The gradients over the distance, one panel for each state."""
    panels = picture.subplots(1, 2)
    for panel, state in zip(panels, report.states, strict=True):
        draw_state(panel, report, state)
        panel.set_title(state[0].upper() + state[1:], loc="left", pad=14)
        panel.set_ylabel("gradient (log scale, each panel its own)")
        all_values = [row["gradient"] for row in report.csv_rows() if row["state"] == state]
        values = [value for value in all_values if value > 0] or [1.0]
        low = math.floor(math.log10(max(FLOOR, min(values))))
        panel.set_ylim(10.0 ** (low - 0.5), 3 * max(values))
    title = "Where a line falls to the bottom, the gradient is exactly zero from then on"
    common.add_legend_below(picture, panels[0], title)


def draw_state(panel: Axes, report: PathReport, state: str) -> None:
    for kind, style in zip(report.kinds.values(), common.line_styles(), strict=False):
        measured = kind["states"][state]
        values = zip(report.distances, measured["recalled"]["gradient"], strict=True)
        points = [(t, value) for t, value in values if value > 0]
        label = kind["title"] + ("" if points else " (zero everywhere)")
        panel.plot([t for t, _ in points], [value for _, value in points], **style, label=label)
        if points and measured["reach"] < report.length - 1:  # a line down to zero
            ends = [measured["reach"]] * 2, [points[-1][1], 1e-300]
            panel.plot(*ends, color=style["color"], linestyle=style["linestyle"])
    common.set_distance_axis(panel, report.distances)
    panel.set_yscale("log")
    panel.set(xlabel="t, steps back (log scale)", xlim=(0.9, 1.1 * report.distances[-1]))
