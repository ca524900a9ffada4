"""The picture of `regard lab complexity`: six quantities over the length of the sequence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.lab.complexity.measure import Findings
from regard.view.picture import COLOURS, DASHES, MARKERS, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_complexity(found: Findings, out: Path) -> list[Path]:
    return save_picture(lambda: draw(found), out / "complexity")


def draw(found: Findings) -> Figure:
    from matplotlib.figure import Figure

    small, d = found.widths[0], found.widths[len(found.widths) // 2]
    picture = Figure(figsize=(18, 11.5), dpi=100, layout="constrained")
    panels = picture.subplots(2, 3).flat
    operations = [p for p in found.operations if p["d"] == small]
    times: dict[str, list[dict[str, Any]]] = {
        which: [p for p in found.times if p["d"] == d and p["pass"] == which]
        for which in ("forward", "training")
    }
    memory = [{**p, "memory": p["memory"] / 1e6} for p in times["training"] if p["memory"]]
    for panel, title, points, key in zip(
        panels,
        (f"Operations, counted (d = {small})", "Chain of dependent operations, counted",
         "Path: layers or steps from first input\nto last output, from gradients",
         f"Forward pass, seconds (d = {d})", f"Training step, seconds (d = {d})",
         f"Peak memory of a training step,\nMB (d = {d})"),
        (operations, found.steps, found.paths, times["forward"], times["training"], memory),
        ("counted", "counted", "counted", "seconds", "seconds", "memory"),
        strict=True,
    ):  # fmt: skip
        draw_panel(panel, found, points, key)
        panel.set_title(title, loc="left", pad=10)
    lines = list(picture.axes[0].lines)
    names = [found.title(name) for name in found.kinds]
    picture.legend(lines, names, loc="outside lower center", ncols=4, handlelength=5)
    picture.suptitle(
        f"Why attention: cost over length ({found.machine})", fontsize=17, weight="bold"
    )
    return picture


def draw_panel(panel: Axes, found: Findings, points: list[dict[str, Any]], key: str) -> None:
    for i, name in enumerate(found.kinds):
        own = [p for p in points if p["kind"] == name and p[key]]
        panel.plot(
            [p["n"] for p in own], [p[key] for p in own], color=COLOURS[i % len(COLOURS)],
            linestyle=DASHES[i % len(DASHES)], marker=MARKERS[i % len(MARKERS)], markersize=7,
            linewidth=2, fillstyle="none" if i >= len(COLOURS) else "full",
        )  # fmt: skip
    panel.set_xscale("log", base=2)
    if any(p[key] for p in points):
        panel.set_yscale("log")
    else:  # no path at all, say: a logarithmic scale would need a number
        panel.set_yticks([])
        panel.text(0.5, 0.5, "none", transform=panel.transAxes, ha="center")
    panel.set_xlabel("tokens (n)")
    panel.set_xlim(found.lengths[0] / 1.2, found.lengths[-1] * 1.2)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_xticks(found.lengths[:: max(1, -(-len(found.lengths) // 5))])
