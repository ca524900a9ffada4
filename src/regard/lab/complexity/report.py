"""What `regard lab complexity` says: theory beside measurement, agreement marked, the rest
explained."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from regard.console import make_console
from regard.lab.common.fits import Fit, crossing, line, power
from regard.lab.common.layers import THEORY, operations
from regard.lab.common.report import write_tables
from regard.lab.common.timing import PASSES
from regard.lab.complexity.measure import Findings

LONG = 4096  # tokens: from here on curves are long enough to show their exponent
NEAR = 0.1  # how far a fitted exponent may be from the table's
RIVALS = ("lstm", "gru", "convolution")  # that attention is compared with
EXPLAINED = {
    "attention": "Self-attention: the table leaves out the four projections, 8 n d² of the "
    "4 n² d + 8 n d² operations. They are the larger part until n = 2 d: below that the exponent "
    "of n is nearer to 1 and that of d nearer to 2.",
    "restricted": "Restricted self-attention: the projections again, which do not depend on r and "
    "make the exponent of d nearer to 2; and the engine works in pieces of at least 64 queries "
    "with all keys that one of them sees, so that it computes more than the definition asks for, "
    "and from n = 2 max(64, r) on its chain is two operations longer. "
    "A layer sees r tokens to each side, so the path is (n - 1) / r.",
    "convolution": "Convolution: table 1 has one path length, O(log_k n); the text below it gives "
    "that to dilated kernels and O(n / k) to contiguous ones, and books repeat one or the other "
    "(Dive into Deep Learning, section 11.6: O(n / k)). Both are right, of two different layers, "
    "and both are measured here. Exactly: a kernel of k tokens reaches k - 1 further, so the "
    "paths are (n - 1) / (k - 1) and log_k n, rounded up. k n d² is the full convolution; a "
    "separable one (k n d + n d², in the paper's text) is not measured.",
    "lstm": "Recurrence: the table counts one matrix, n d²; an LSTM has four gates with two "
    "matrices each (16 n d² operations), a GRU three. One step is about ten operations that wait "
    "for each other, so the chain is about ten times n.",
    "feed-forward": "Feed-forward: not in the table; it works on each position by itself, so that "
    "no number of layers brings the first input to the last output.",
}


@dataclass
class Row:
    """A layer's line of the table."""

    kind: str
    parameters: str
    parameters_agree: bool
    operations: str  # as the table has it
    in_n: Fit | None
    in_d: Fit | None
    in_n_agrees: bool | None  # None: too few points to fit
    in_d_agrees: bool | None
    computed_over_needed: float  # the largest ratio of counted and closed form
    sequential: str
    chain: list[tuple[int, int]]  # (n, operations that wait for each other)
    chain_in_n: Fit | None
    sequential_agrees: bool | None
    path: str
    paths: list[tuple[int, int | None]]
    path_agrees: bool
    longest: dict[str, Any] = field(default_factory=dict)  # pass -> time, memory and their fits


@dataclass
class Report:
    found: Findings
    rows: list[Row]
    crossings: list[dict[str, Any]]
    files: list[Path] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.found),
            "table": [asdict(row) for row in self.rows],
            "crossings": self.crossings,
            "notes": self.notes(),
            "files": [str(path) for path in self.files],
        }

    def notes(self) -> list[str]:
        return [EXPLAINED[name] for name in EXPLAINED if name in self.found.kinds]

    def write(self, out: Path) -> None:
        from regard.lab.complexity.picture import draw_complexity

        self.files = draw_complexity(self.found, out)
        self.files += [out / "complexity.json", out / "complexity.csv"]
        write_tables(out, "complexity", self.to_dict(), csv_rows(self.found))

    def show(self) -> None:
        console = make_console()
        found = self.found
        console.print(
            f"n = {found.lengths[0]:,} to {found.lengths[-1]:,} tokens, d = {found.widths[0]:,} to "
            f"{found.widths[-1]:,}, r = {found.window}, k = {found.kernel}; {found.machine}\n"
        )
        for title, table in (self.counts(), self.chains(), self.costs(), self.passing()):
            if table.row_count:
                console.print(f"\n{title}\n")
                console.print(table)
        if found.left_out:
            few = ", ".join(
                f"{found.title(p['kind'])} {p['pass']} n={p['n']:,} d={p['d']:,} ({p['why']})"
                for p in found.left_out[:3]
            )
            more = ", ..." if len(found.left_out) > 3 else ""
            console.print(f"\nleft out: {len(found.left_out)} points: {few}{more}")
        for note in self.notes():
            console.print(f"\n{note}")
        for path in self.files:
            console.print(f"written: {path}", soft_wrap=True)

    def counts(self) -> tuple[str, Table]:
        title = (
            "Counted: parameters, operations, exponents of n and d fitted to them, and how much is "
            "computed of what the definition asks for; ✓: as the closed form or the paper has it"
        )
        table = plain(
            "layer", "parameters", "operations", "n", "d", "times",
        )  # fmt: skip
        for row in self.rows:
            table.add_row(
                self.found.title(row.kind), f"{row.parameters} {mark(row.parameters_agree)}",
                f"O({row.operations})", f"{said_fit(row.in_n)} {mark(row.in_n_agrees)}",
                f"{said_fit(row.in_d)} {mark(row.in_d_agrees)}" if row.in_d else "",
                f"{row.computed_over_needed:.2f}",
            )  # fmt: skip
        return title, table

    def chains(self) -> tuple[str, Table]:
        n, far = self.found.steps[-1]["n"], self.found.paths[-1]["n"] if self.found.paths else 0
        title = (
            "Counted: operations that wait for each other; layers (of a recurrence: steps) from "
            "the first input to the last output"
        )
        table = plain(
            "layer", "sequential", f"at n={n:,}", "path", f"at n={far:,}",
        )  # fmt: skip
        for row in self.rows:
            chains, paths = dict(row.chain), dict(row.paths)
            path = f"O({row.path})" if row.path != "never" else row.path
            count = "none" if paths.get(far) is None else f"{paths[far]:,}"
            table.add_row(
                self.found.title(row.kind), f"O({row.sequential})",
                f"{chains[n]:,} {mark(row.sequential_agrees)}" if n in chains else "", path,
                f"{count} {mark(row.path_agrees)}" if far in paths else "",
            )  # fmt: skip
        return title, table

    def costs(self) -> tuple[str, Table]:
        found = self.found
        d = middle(found.widths)
        title = (
            f"Measured at d = {d:,} and the longest n; exponents of n from {LONG:,} tokens on; "
            "peak: of the speed of a matrix product"
        )
        table = plain(
            "layer", "pass", "n", "ms", "exponent", "MB", "exponent", "peak",
        )  # fmt: skip
        for row in self.rows:
            for which in PASSES:
                one = row.longest.get(which)
                if one is None:
                    continue
                memory = "" if one["memory"] is None else f"{one['memory'] / 1e6:,.0f}"
                share = "" if which == "training" else f"{one['fraction_of_peak']:.0%}"
                table.add_row(
                    found.title(row.kind) if which == PASSES[0] else "", which, f"{one['n']:,}",
                    f"{1000 * one['seconds']:,.1f}", said_fit(one["seconds_in_n"]), memory,
                    said_fit(one["memory_in_n"]), share,
                )  # fmt: skip
        return title, table

    def passing(self) -> tuple[str, Table]:
        """From which length on self-attention takes longer than the others."""
        title = "Self-attention takes longer than this layer from n = ... on"
        table = plain(
            "layer", "by", *(f"d = {d:,}" for d in self.found.widths),
        )  # fmt: skip
        for rival in dict.fromkeys(one["rival"] for one in self.crossings):
            own = [one for one in self.crossings if one["rival"] == rival]
            table.add_row(
                self.found.title(rival), "count",
                *(f"{by_operations(self.found, rival, d):,.0f}" for d in self.found.widths),
            )  # fmt: skip
            for which in PASSES:
                cells = {one["d"]: said_crossing(one) for one in own if one["pass"] == which}
                table.add_row("", which, *(cells.get(d, "") for d in self.found.widths))
        return title, table


def plain(*columns: str) -> Table:
    """A table that also fits a narrow terminal."""
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=not i)
    return table


def make_report(found: Findings) -> Report:
    return Report(found, [make_row(found, name) for name in found.kinds], crossings(found))


def make_row(found: Findings, name: str) -> Row:
    theory = THEORY[name]
    parameters = found.points("parameters", kind=name)
    counts = found.points("operations", kind=name)
    small = [p for p in counts if p["d"] == found.widths[0]]
    wide = [p for p in counts if p["n"] == counts[-1]["n"]] if counts else []
    # Exponents are those of long sequences: where n is a few times d.
    tail = [p for p in small if p["n"] >= 16 * p["d"]]
    tail = tail if len(tail) > 2 else small[-3:]
    in_n = power([p["n"] for p in tail], [p["counted"] for p in tail])
    in_d = power([p["d"] for p in wide], [p["counted"] for p in wide])
    chain = [(p["n"], p["counted"]) for p in found.points("steps", kind=name)]
    chain_fit = power([n for n, _ in chain[-5:]], [c for _, c in chain[-5:]])
    paths = found.points("paths", kind=name)
    return Row(
        name, parameters[0]["formula"],
        all(p["counted"] == p["expected"] for p in parameters),
        theory.operations, in_n, in_d,
        near(in_n, theory.in_n), near(in_d, theory.in_d),
        max((p["counted"] / p["expected"] for p in counts), default=0.0),
        theory.sequential, chain, chain_fit, near(chain_fit, theory.steps_in_n),
        theory.path, [(p["n"], p["counted"]) for p in paths],
        all(p["counted"] == p["expected"] for p in paths) and grows(paths, theory.growth),
        {which: cost for which in PASSES if (cost := costs_of(found, name, which))},
    )  # fmt: skip


def costs_of(found: Findings, name: str, which: str) -> dict[str, Any] | None:
    """Time and memory at the longest length measured, with their exponents for long sequences."""
    points = found.points("times", kind=name, d=middle(found.widths), **{"pass": which})
    if not points:
        return None
    last = points[-1]
    long = [p for p in points if p["n"] >= LONG]
    work = operations(name, last["n"], last["d"], found.window, found.kernel)[1]
    return {
        "n": last["n"], "seconds": last["seconds"], "memory": last["memory"],
        "seconds_in_n": power([p["n"] for p in long], [p["seconds"] for p in long]),
        "memory_in_n": power([p["n"] for p in long], [p["memory"] or 0 for p in long]),
        "fraction_of_peak": work / last["seconds"] / found.peak,
    }  # fmt: skip


def crossings(found: Findings) -> list[dict[str, Any]]:
    """From which length on self-attention costs more than its rivals: by operations (closed form)
    and by measured time, at each width."""
    if "attention" not in found.kinds:
        return []
    results = []
    for rival in (name for name in RIVALS if name in found.kinds):
        for which in PASSES:
            for d in found.widths:
                points = {
                    name: {p["n"]: p["seconds"] for p in
                           found.points("times", kind=name, d=d, **{"pass": which})}
                    for name in ("attention", rival)
                }  # fmt: skip
                both = sorted(points["attention"].keys() & points[rival].keys())
                if len(both) < 2:
                    continue
                lines = [[points[name][n] for n in both] for name in ("attention", rival)]
                results.append({
                    "rival": rival, "pass": which, "d": d, "from": both[0], "to": both[-1],
                    "n": crossing(both, *lines), "above": lines[0][-1] > lines[1][-1],
                    "by_operations": by_operations(found, rival, d),
                })  # fmt: skip
    return results


def by_operations(found: Findings, rival: str, d: int) -> float:
    """Where 4 n² d + 8 n d² is as much as the rival's n d² times its factor."""
    factor = operations(rival, 1, 1, found.window, found.kernel)[1]
    return max(0.0, (factor - 8) * d / 4)


def said_crossing(one: dict[str, Any]) -> str:
    if one["n"] is not None:
        return f"{one['n']:,.0f}"
    return "always" if one["above"] else f"not up to {one['to']:,}"


def grows(paths: list[dict[str, Any]], growth: str) -> bool:
    """Whether the path grows with n as the table says."""
    known = [(p["n"], p["counted"]) for p in paths if p["counted"] is not None]
    if growth == "never":
        return not known
    if not known or len(known) < len(paths):
        return False
    if growth == "constant":
        return all(count == 1 for _, count in known)
    n = np.array([p[0] for p in known], dtype=np.float64)
    count = np.array([p[1] for p in known], dtype=np.float64)
    if len(n) < 3 or count.min() == count.max():
        return True  # nothing to fit: that it equals the closed form has to be enough
    if growth == "linear":  # some c for which it is c (n - 1), rounded up
        return bool(((count - 1) / (n - 1)).max() < (count / (n - 1)).min())
    slope, _ = line(np.log(n), count)  # a straight line over log n, but for rounding up
    rest = count - count.mean() - slope * (np.log(n) - np.log(n).mean())
    return slope > 0 and bool(np.abs(rest).max() < 1)


def near(fit: Fit | None, wanted: float) -> bool | None:
    return None if fit is None else abs(fit.exponent - wanted) <= NEAR


def mark(agrees: bool | None) -> str:
    return {True: "✓", False: "✗", None: ""}[agrees]


def middle(widths: list[int]) -> int:
    return widths[len(widths) // 2]


def said_fit(fit: Fit | None) -> str:
    return "" if fit is None else str(fit)


def csv_rows(found: Findings) -> list[dict[str, Any]]:
    """Every figure as a line of its own."""
    rows: list[dict[str, Any]] = []
    for what in ("parameters", "operations", "steps", "paths"):
        for point in getattr(found, what):
            where = {"kind": point["kind"], "n": point.get("n", ""), "d": point.get("d", "")}
            values = {"measured": point["counted"], "expected": point.get("expected", "")}
            rows.append({"what": what, **where, **values})
    for point in found.times:
        where = {key: point[key] for key in ("kind", "n", "d")}
        for unit in ("seconds", "memory"):
            rows.append({"what": f"{point['pass']} {unit}", **where, "measured": point[unit]})
    return rows
