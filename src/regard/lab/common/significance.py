"""Is a difference between two sets of training runs more than chance? Student's t-test and Holm's
correction.

Two or three seeds of one variant say little about the deviation between seeds; the seeds of all
variants together say more. The deviation is therefore pooled over all variants, as in analysis of
variance, under the assumption that it is the same for each. Comparing many variants with one base
yields some "differences" by chance alone; Holm's correction (1979) keeps the probability of any
false one below the level of a single test.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from regard.errors import InputError

LEVEL = 0.05  # a smaller p is called significant


class PooledDeviation(NamedTuple):
    """The standard deviation of values around the mean of their own group, over all groups."""

    deviation: float
    freedom: int  # degrees of freedom: values minus groups


class TTest(NamedTuple):
    difference: float  # mean of the first group minus mean of the second
    error: float  # its standard error
    p: float  # two-sided


def load_stdtr() -> Callable[[float, float], float]:
    """scipy's distribution function of Student's t, stdtr(degrees of freedom, t); an InputError if
    scipy is not installed. Call this before long work that needs it."""
    try:
        from scipy.special import stdtr
    except ImportError:
        raise InputError(
            "significance over several seeds needs scipy: pip install 'regard[lab]'"
        ) from None
    return stdtr


def pool(groups: Sequence[Sequence[float]]) -> PooledDeviation:
    """The pooled deviation of groups, at least one of which has two values."""
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups if group[1:])
    freedom = sum(len(group) - 1 for group in groups)
    return PooledDeviation(math.sqrt(squares / freedom), freedom)


def t_test(first: Sequence[float], second: Sequence[float], pooled: PooledDeviation) -> TTest:
    """Student's t-test of two groups, with the pooled deviation of all groups."""
    difference = statistics.fmean(first) - statistics.fmean(second)
    error = pooled.deviation * math.sqrt(1 / len(first) + 1 / len(second))
    if error == 0:  # no variance at all: any difference is significant
        return TTest(difference, 0.0, 0.0 if difference else 1.0)
    return TTest(difference, error, two_sided_p(difference / error, pooled.freedom))


def two_sided_p(t: float, freedom: float) -> float:
    """The probability that Student's t is at least this far from 0, on either side."""
    return float(2 * load_stdtr()(freedom, -abs(t)))


def format_p(p: float) -> str:
    """A p-value with three digits, never as 0."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


def holm(p: Sequence[float]) -> list[float]:
    """p-values after Holm's correction for their number; compare these with the level."""
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted
