"""Exponents and crossings from measured points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """y = c x^exponent, with the standard error of the exponent; None from two points only."""

    exponent: float
    error: float | None

    def __str__(self) -> str:
        spread = "" if self.error is None or self.error < 0.005 else f" ± {self.error:.2f}"
        return f"{self.exponent:z.2f}{spread}"


def power(x: Sequence[float], y: Sequence[float]) -> Fit | None:
    """The straight line through the logarithms; None where there are not two points above 0."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    if len({a for a, _ in points}) < 2:
        return None
    logs = np.log(np.array(points, dtype=np.float64))
    slope, error = line(logs[:, 0], logs[:, 1])
    return Fit(slope, error)


def line(x: Numbers, y: Numbers) -> tuple[float, float | None]:
    """Slope of the least-squares line, and its standard error."""
    x0 = x - x.mean()
    slope = float((x0 * y).sum() / (x0 * x0).sum())
    if len(x) < 3:
        return slope, None
    rest = y - y.mean() - slope * x0
    return slope, float(math.sqrt((rest * rest).sum() / (len(x) - 2) / (x0 * x0).sum()))


def crossing(x: Sequence[float], one: Sequence[float], other: Sequence[float]) -> float | None:
    """Where the first line, below at the beginning, passes the other for good: interpolated in the
    logarithms. None: it does not, or is above from the beginning."""
    gap = [math.log(a / b) for a, b in zip(one, other, strict=True)]
    above = [i for i in range(1, len(gap)) if gap[i - 1] < 0 <= gap[i]]
    if not above or gap[-1] < 0:
        return None
    i = above[-1]
    share = -gap[i - 1] / (gap[i] - gap[i - 1])
    return math.exp((1 - share) * math.log(x[i - 1]) + share * math.log(x[i]))
