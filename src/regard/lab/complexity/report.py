"""The report of `regard lab complexity`: the measurements beside the paper's table 1 (fitted
exponents, agreement, the lengths at which self-attention becomes slower than other layers), the
reasons for differences, and a picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from regard.lab.common.fits import PowerLaw, find_crossing, fit_power_law
from regard.lab.common.layers import THEORY, expected_operations
from regard.lab.common.report import MARKS, LabReport, Picture, line_styles, plain_table
from regard.lab.common.timing import PASSES
from regard.lab.complexity.measure import LayerMeasurements, Points
from regard.view.picture import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

LONG = 4096  # tokens: the exponents of time and memory are fitted from here on
NEAR = 0.1  # the largest difference of a fitted exponent to the table's that still agrees
RIVALS = ("lstm", "gru", "convolution")  # the layers that attention is compared with
NOTES = {
    "attention": "Self-attention: the table leaves out the four projections, 8 n d² of the "
    "4 n² d + 8 n d² operations. They are the larger part until n = 2 d: below that the exponent "
    "of n is nearer to 1 and that of d nearer to 2.",
    "restricted": "Restricted self-attention: the projections again, which do not depend on r and "
    "bring the exponent of d nearer to 2. The attention backend works in blocks of at least 64 "
    "queries with all keys that one of them sees, so that it computes more than the definition "
    "needs, and from n = 2 max(64, r) on its chain is two operations longer. "
    "A layer sees r tokens to each side, so the path is (n - 1) / r.",
    "convolution": "Convolution: table 1 has one path length, O(log_k n); the text below it gives "
    "that to dilated kernels and O(n / k) to contiguous ones, and books repeat one or the other "
    "(Dive into Deep Learning, section 11.6: O(n / k)). Both are correct, for different layers; "
    "both are measured. Exactly: a kernel of k tokens reaches k - 1 further, so the "
    "paths are (n - 1) / (k - 1) and log_k n, rounded up. k n d² is the full convolution; a "
    "separable one (k n d + n d², in the paper's text) is not measured.",
    "lstm": "Recurrence: the table counts one matrix, n d²; an LSTM has four gates with two "
    "matrices each (16 n d² operations), a GRU three. One step is about ten operations that depend "
    "on each other, so the chain is about ten times n.",
    "feed-forward": "Feed-forward: not in the table; it works on each position separately, so that "
    "no number of layers connects the first input with the last output.",
}


@dataclass
class LayerComparison:
    """A layer's line of the table."""

    kind: str
    parameters: str
    parameters_agree: bool
    operations: str  # as in the paper's table
    in_n: PowerLaw | None
    in_d: PowerLaw | None
    in_n_agrees: bool | None  # None: too few points to fit
    in_d_agrees: bool | None
    computed_over_needed: float  # the largest ratio of counted operations and closed form
    sequential: str
    chain: list[tuple[int, int]]  # (n, length of the chain of dependent operations)
    chain_in_n: PowerLaw | None
    sequential_agrees: bool | None
    path: str
    paths: list[tuple[int, int | None]]
    path_agrees: bool
    longest: dict[str, Any] = field(default_factory=dict)  # pass -> time, memory and their fits


@dataclass
class ComplexityReport(LabReport):
    command = "complexity"

    measured: LayerMeasurements
    layers: list[LayerComparison]
    crossings: Points

    def figures(self) -> dict[str, Any]:
        table = [asdict(layer) for layer in self.layers]
        own = {"table": table, "crossings": self.crossings, "notes": self.notes()}
        return asdict(self.measured) | own

    def notes(self) -> list[str]:
        return [NOTES[name] for name in NOTES if name in self.measured.kinds]

    def csv_rows(self) -> list[dict[str, Any]]:
        """One row per figure."""
        rows: list[dict[str, Any]] = []
        for quantity in ("parameters", "operations", "steps", "paths"):
            for point in self.measured.points(quantity):
                place = {"kind": point["kind"], "n": point.get("n", ""), "d": point.get("d", "")}
                values = {"measured": point["counted"], "expected": point.get("expected", "")}
                rows.append({"what": quantity, **place, **values})
        for point in self.measured.times:
            place = {key: point[key] for key in ("kind", "n", "d")}
            for unit in ("seconds", "memory"):
                rows.append({"what": f"{point['pass']} {unit}", **place, "measured": point[unit]})
        return rows

    def print_tables(self, console: Console) -> None:
        measured = self.measured
        console.print(
            f"n = {measured.lengths[0]:,} to {measured.lengths[-1]:,} tokens, d = "
            f"{measured.widths[0]:,} to {measured.widths[-1]:,}, r = {measured.window}, k = "
            f"{measured.kernel}; {measured.machine}\n"
        )
        for title, table in (
            self.counts_table(), self.chains_table(), self.costs_table(), self.crossings_table(),
        ):  # fmt: skip
            if table.row_count:
                console.print(f"\n{title}\n")
                console.print(table)
        if measured.left_out:
            few = ", ".join(
                f"{measured.title(p['kind'])} {p['pass']} n={p['n']:,} d={p['d']:,} ({p['why']})"
                for p in measured.left_out[:3]
            )
            more = ", ..." if len(measured.left_out) > 3 else ""
            console.print(f"\nleft out: {len(measured.left_out)} points: {few}{more}")
        for note in self.notes():
            console.print(f"\n{note}")

    def counts_table(self) -> tuple[str, Table]:
        title = (
            "Counted: parameters, operations, exponents of n and d fitted to them, and operations "
            "as a multiple of the definition's; ✓: as in the closed form or the paper"
        )
        table = layer_table("layer", "parameters", "operations", "n", "d", "times")
        for row in self.layers:
            table.add_row(
                self.measured.title(row.kind), f"{row.parameters} {MARKS[row.parameters_agree]}",
                f"O({row.operations})", f"{row.in_n or ''} {MARKS[row.in_n_agrees]}",
                f"{row.in_d} {MARKS[row.in_d_agrees]}" if row.in_d else "",
                f"{row.computed_over_needed:.2f}",
            )  # fmt: skip
        return title, table

    def chains_table(self) -> tuple[str, Table]:
        n = self.measured.steps[-1]["n"]
        far = self.measured.paths[-1]["n"] if self.measured.paths else 0
        title = (
            "Counted: operations that depend on each other; layers (of a recurrence: steps) from "
            "the first input to the last output"
        )
        table = layer_table("layer", "sequential", f"at n={n:,}", "path", f"at n={far:,}")
        for row in self.layers:
            chains, paths = dict(row.chain), dict(row.paths)
            path = f"O({row.path})" if row.path != "never" else row.path
            count = "none" if paths.get(far) is None else f"{paths[far]:,}"
            table.add_row(
                self.measured.title(row.kind), f"O({row.sequential})",
                f"{chains[n]:,} {MARKS[row.sequential_agrees]}" if n in chains else "", path,
                f"{count} {MARKS[row.path_agrees]}" if far in paths else "",
            )  # fmt: skip
        return title, table

    def costs_table(self) -> tuple[str, Table]:
        title = (
            f"Measured at d = {middle_width(self.measured):,} and the longest n; exponents of n "
            f"from {LONG:,} tokens on; peak: share of the speed of a matrix product"
        )
        table = layer_table("layer", "pass", "n", "ms", "exponent", "MB", "exponent", "peak")
        for row in self.layers:
            for which, entry in row.longest.items():
                memory = "" if entry["memory"] is None else f"{entry['memory'] / 1e6:,.0f}"
                share = "" if which == "training" else f"{entry['fraction_of_peak']:.0%}"
                table.add_row(
                    self.measured.title(row.kind) if which == PASSES[0] else "", which,
                    f"{entry['n']:,}", f"{1000 * entry['seconds']:,.1f}",
                    str(entry["seconds_in_n"] or ""), memory, str(entry["memory_in_n"] or ""),
                    share,
                )  # fmt: skip
        return title, table

    def crossings_table(self) -> tuple[str, Table]:
        title = "Self-attention takes longer than this layer from n = ... on"
        widths = self.measured.widths
        table = layer_table("layer", "by", *(f"d = {d:,}" for d in widths))
        for rival in dict.fromkeys(entry["rival"] for entry in self.crossings):
            counts = (crossing_by_operations(self.measured, rival, d) for d in widths)
            table.add_row(self.measured.title(rival), "count", *(f"{n:,.0f}" for n in counts))
            for which in PASSES:
                cells = {
                    entry["d"]: format_crossing(entry)
                    for entry in self.crossings
                    if (entry["rival"], entry["pass"]) == (rival, which)
                }
                table.add_row("", which, *(cells.get(d, "") for d in widths))
        return title, table

    def pictures(self) -> list[Picture]:
        title = f"Why attention: cost over length ({self.measured.machine})"
        return [Picture(self.command, (18, 11.5), title, draw)]


def make_report(measured: LayerMeasurements) -> ComplexityReport:
    layers = [compare_layer(measured, name) for name in measured.kinds]
    return ComplexityReport(measured, layers, attention_crossings(measured))


def compare_layer(measured: LayerMeasurements, name: str) -> LayerComparison:
    theory = THEORY[name]
    parameters = measured.points("parameters", kind=name)
    counts = measured.points("operations", kind=name)
    narrow = [p for p in counts if p["d"] == measured.widths[0]]
    wide = [p for p in counts if p["n"] == counts[-1]["n"]] if counts else []
    # The table's exponents are those of long sequences, where n is a multiple of d.
    tail = [p for p in narrow if p["n"] >= 16 * p["d"]]
    tail = tail if len(tail) > 2 else narrow[-3:]
    in_n, in_d = fit(tail, "n", "counted"), fit(wide, "d", "counted")
    chain = measured.points("steps", kind=name)
    chain_fit = fit(chain[-5:], "n", "counted")
    paths = measured.points("paths", kind=name)
    return LayerComparison(
        name, parameters[0]["formula"],
        all(p["counted"] == p["expected"] for p in parameters),
        theory.operations, in_n, in_d, agrees(in_n, theory.in_n), agrees(in_d, theory.in_d),
        max((p["counted"] / p["expected"] for p in counts), default=0.0),
        theory.sequential, [(p["n"], p["counted"]) for p in chain], chain_fit,
        agrees(chain_fit, theory.steps_in_n),
        theory.path, [(p["n"], p["counted"]) for p in paths],
        all(p["counted"] == p["expected"] for p in paths) and grows_as(paths, theory.growth),
        {which: cost for which in PASSES if (cost := longest_cost(measured, name, which))},
    )  # fmt: skip


def fit(points: Points, x: str, y: str) -> PowerLaw | None:
    return fit_power_law([p[x] for p in points], [p[y] or 0 for p in points])


def agrees(law: PowerLaw | None, expected: float) -> bool | None:
    return None if law is None else abs(law.exponent - expected) <= NEAR


def grows_as(paths: Points, growth: str) -> bool:
    """Whether the path grows with n as in the table."""
    known = [(p["n"], p["counted"]) for p in paths if p["counted"] is not None]
    if growth == "never":
        return not known
    if not known or len(known) < len(paths):
        return False
    if growth == "constant":
        return all(count == 1 for _, count in known)
    n, count = np.array(known, dtype=np.float64).T
    if len(n) < 3 or count.min() == count.max():
        return True  # too few points to fit: that it equals the closed form is enough
    if growth == "linear":  # c (n - 1) for some c, rounded up
        return bool(((count - 1) / (n - 1)).max() < (count / (n - 1)).min())
    line = np.polyfit(np.log(n), count, 1)  # a straight line over log n, apart from rounding up
    return bool(line[0] > 0 and np.abs(count - np.polyval(line, np.log(n))).max() < 1)


def middle_width(measured: LayerMeasurements) -> int:
    return measured.widths[len(measured.widths) // 2]


def longest_cost(measured: LayerMeasurements, name: str, which: str) -> dict[str, Any] | None:
    """Time and memory at the longest length, with their exponents for long sequences."""
    points = measured.points("times", kind=name, d=middle_width(measured), **{"pass": which})
    if not points:
        return None
    last = points[-1]
    long = [p for p in points if p["n"] >= LONG]
    work = expected_operations(name, last["n"], last["d"], measured.window, measured.kernel)[1]
    return {
        "n": last["n"], "seconds": last["seconds"], "memory": last["memory"],
        "seconds_in_n": fit(long, "n", "seconds"), "memory_in_n": fit(long, "n", "memory"),
        "fraction_of_peak": work / last["seconds"] / measured.peak,
    }  # fmt: skip


def attention_crossings(measured: LayerMeasurements) -> Points:
    """The length from which on self-attention costs more than each rival, at each width: by
    operations (closed form) and by measured time."""
    if "attention" not in measured.kinds:
        return []
    rivals = [name for name in RIVALS if name in measured.kinds]
    crossings = []
    for rival, which, d in product(rivals, PASSES, measured.widths):
        points = measured.points("times", d=d, **{"pass": which})
        own, other = (
            {p["n"]: p["seconds"] for p in points if p["kind"] == name}
            for name in ("attention", rival)
        )
        both = sorted(own.keys() & other.keys())
        if len(both) < 2:
            continue
        lines = [own[n] for n in both], [other[n] for n in both]
        crossings.append({
            "rival": rival, "pass": which, "d": d, "from": both[0], "to": both[-1],
            "n": find_crossing(both, *lines), "above": lines[0][-1] > lines[1][-1],
            "by_operations": crossing_by_operations(measured, rival, d),
        })  # fmt: skip
    return crossings


def crossing_by_operations(measured: LayerMeasurements, rival: str, d: int) -> float:
    """The n where 4 n² d + 8 n d² equals the rival's n d² times its factor."""
    factor = expected_operations(rival, 1, 1, measured.window, measured.kernel)[1]
    return max(0.0, (factor - 8) * d / 4)


def layer_table(*columns: str) -> Table:
    """A table that also fits a narrow terminal: only the name of the layer is never wrapped."""
    return plain_table(*columns, left=(0, 1), wrap=range(1, len(columns)))


def format_crossing(entry: dict[str, Any]) -> str:
    if entry["n"] is not None:
        return f"{entry['n']:,.0f}"
    return "always" if entry["above"] else f"not up to {entry['to']:,}"


def draw(picture: Figure, report: ComplexityReport) -> None:
    measured = report.measured
    small, d = measured.widths[0], middle_width(measured)
    times = {which: measured.points("times", d=d, **{"pass": which}) for which in PASSES}
    memory = [{**p, "memory": p["memory"] / 1e6} for p in times["training"] if p["memory"]]
    for panel, (title, points, key) in zip(
        picture.subplots(2, 3).flat,
        (
            (f"Operations, counted (d = {small})", measured.points("operations", d=small),
             "counted"),
            ("Chain of dependent operations, counted", measured.steps, "counted"),
            ("Path: layers or steps from first input\nto last output, from gradients",
             measured.paths, "counted"),
            (f"Forward pass, seconds (d = {d})", times["forward"], "seconds"),
            (f"Training step, seconds (d = {d})", times["training"], "seconds"),
            (f"Peak memory of a training step,\nMB (d = {d})", memory, "memory"),
        ),
        strict=True,
    ):  # fmt: skip
        draw_panel(panel, measured, points, key)
        panel.set_title(title, loc="left", pad=10)
    lines = list(picture.axes[0].lines)
    names = [measured.title(name) for name in measured.kinds]
    picture.legend(lines, names, loc="outside lower center", ncols=4, handlelength=5)


def draw_panel(panel: Axes, measured: LayerMeasurements, points: Points, key: str) -> None:
    lengths = measured.lengths
    for i, (name, style) in enumerate(zip(measured.kinds, line_styles(), strict=False)):
        own = [p for p in points if p["kind"] == name and p[key]]
        style |= {"markersize": 7, "fillstyle": "none" if i >= len(COLOURS) else "full"}
        panel.plot([p["n"] for p in own], [p[key] for p in own], **style)
    panel.set_xscale("log", base=2)
    if any(p[key] for p in points):
        panel.set_yscale("log")
    else:  # no layer has a path, for example: a logarithmic scale needs a value
        panel.set_yticks([])
        panel.text(0.5, 0.5, "none", transform=panel.transAxes, ha="center")
    panel.set_xlabel("tokens (n)")
    panel.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_xticks(lengths[:: max(1, -(-len(lengths) // 5))])
