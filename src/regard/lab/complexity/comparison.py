"""The measurements of `regard lab complexity` beside the paper's table 1: fitted exponents, whether
they agree with the table, and the lengths at which self-attention becomes slower than other layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.lab.common.fits import PowerLaw, find_crossing, fit_line, fit_power_law
from regard.lab.common.layers import THEORY, expected_operations
from regard.lab.common.timing import PASSES
from regard.lab.complexity.measure import LayerMeasurements

LONG = 4096  # tokens: the exponents of time and memory are fitted from here on
NEAR = 0.1  # the largest difference of a fitted exponent to the table's that still agrees
RIVALS = ("lstm", "gru", "convolution")  # the layers that attention is compared with


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


def fit(points: list[dict[str, Any]], x: str, y: str) -> PowerLaw | None:
    return fit_power_law([p[x] for p in points], [p[y] or 0 for p in points])


def agrees(law: PowerLaw | None, expected: float) -> bool | None:
    return None if law is None else abs(law.exponent - expected) <= NEAR


def grows_as(paths: list[dict[str, Any]], growth: str) -> bool:
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
    line = fit_line(np.log(n), count)  # a straight line over log n, apart from rounding up
    return line[0] > 0 and bool(np.abs(count - np.polyval(line, np.log(n))).max() < 1)


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


def attention_crossings(measured: LayerMeasurements) -> list[dict[str, Any]]:
    """The length from which on self-attention costs more than each rival, at each width: by
    operations (closed form) and by measured time."""
    if "attention" not in measured.kinds:
        return []
    crossings = []
    for rival in (name for name in RIVALS if name in measured.kinds):
        for which in PASSES:
            for d in measured.widths:
                own, other = (
                    {p["n"]: p["seconds"] for p in
                     measured.points("times", kind=name, d=d, **{"pass": which})}
                    for name in ("attention", rival)
                )  # fmt: skip
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
