"""Exponents and crossings from measured points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PowerLaw:
    """y = c x^exponent; `error` is the standard error of the exponent, None for two points."""

    exponent: float
    error: float | None

    def __str__(self) -> str:
        error = "" if self.error is None or self.error < 0.005 else f" ± {self.error:.2f}"
        return f"{self.exponent:z.2f}{error}"


def fit_power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw | None:
    """Fit a line through the logarithms; None unless two points with different x are positive."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    if len({a for a, _ in points}) < 2:
        return None
    log_x, log_y = np.log(np.array(points, dtype=np.float64)).T
    if len(points) == 2:
        return PowerLaw(float(np.polyfit(log_x, log_y, 1)[0]), None)
    (exponent, _), covariance = np.polyfit(log_x, log_y, 1, cov=True)
    return PowerLaw(float(exponent), math.sqrt(covariance[0, 0]))


def find_crossing(
    x: Sequence[float], first: Sequence[float], second: Sequence[float]
) -> float | None:
    """Where the first curve, below the second at the beginning, rises above it for good.

    The point is interpolated in the logarithms. None: the first curve stays below, or is above
    from the beginning.
    """
    gap = [math.log(a / b) for a, b in zip(first, second, strict=True)]
    above = [i for i in range(1, len(gap)) if gap[i - 1] < 0 <= gap[i]]
    if not above or gap[-1] < 0:
        return None
    i = above[-1]
    share = -gap[i - 1] / (gap[i] - gap[i - 1])
    return math.exp((1 - share) * math.log(x[i - 1]) + share * math.log(x[i]))
