"""Is a difference between two sets of trainings more than chance? Student's t-test and Holm's rule.

Two or three seeds of a row say little about how far seeds fall apart; those of all rows together
say it well, so their deviation is pooled, as in an analysis of variance. It is taken to be the same
in every row. Many rows against one base would find "differences" by chance alone; Holm's correction
(1979) keeps the chance that any of them is a false one below the level that a single test has.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SMALL = 1e-300  # stands for a zero that something is divided by


@dataclass(frozen=True)
class Spread:
    """How far a training falls from the mean of its own row, over all rows together."""

    deviation: float
    freedom: int  # degrees: trainings less rows


def pooled(rows: Sequence[Sequence[float]]) -> Spread:
    """At least one row with two values."""
    squares = sum(statistics.variance(row) * (len(row) - 1) for row in rows if len(row) > 1)
    freedom = sum(len(row) - 1 for row in rows)
    return Spread(math.sqrt(squares / freedom), freedom)


@dataclass(frozen=True)
class Test:
    difference: float  # mean of ours - mean of theirs
    error: float  # its standard error
    p: float  # two-sided


def student(ours: Sequence[float], theirs: Sequence[float], spread: Spread) -> Test:
    """Student's t-test with the spread of all rows."""
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    error = spread.deviation * math.sqrt(1 / len(ours) + 1 / len(theirs))
    if error == 0:  # the same again and again: any difference is one
        return Test(difference, 0.0, 0.0 if difference else 1.0)
    return Test(difference, error, student_tails(difference / error, spread.freedom))


def student_tails(t: float, freedom: float) -> float:
    """How often Student's t is at least this far from 0, on either side."""
    if math.isinf(t):
        return 0.0
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction.

    The fraction converges fast below the mean of the distribution; above it, the function is 1
    minus that of the other side.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logarithm + a * math.log(x) + b * math.log1p(-x)) / a
    # Lentz's way (as Thompson and Barnett have it): numerator and denominator as ratios.
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or SMALL)
    found = d
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + term * d) or SMALL)
            c = (1 + term / c) or SMALL
            found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * found


def said_p(p: float) -> str:
    """Never as 0: no test says that."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def holm(p: Sequence[float]) -> list[float]:
    """Each p as it is among all of them: compare these with the level."""
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted
