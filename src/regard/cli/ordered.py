"""Compute results for many inputs in groups of similar length, and return them in input order.

Inputs of similar length make efficient batches. A group therefore contains the oldest input that
has no result yet and those of the next POOL inputs whose lengths are nearest. Every result is
returned as soon as those of all earlier inputs are known, so memory is bounded, output appears
continuously, and an interrupted run keeps its results. No result depends on the groups.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

POOL = 256  # inputs from which groups are chosen, and at most this many results wait for others
SECONDS = 1.2  # time that one group should take
FIRST_COST = 4_000  # characters of the first group, before the speed is known
LEAST_COST = 2_500  # characters of a group on a slow machine
INPUT_COST = 20  # characters to which the constant cost of an input is equivalent


@dataclass
class Pace:
    """The size of the groups.

    Attributes:
        cost: characters of the next group; infinity: a group has the whole pool.
        pool: the number of inputs from which groups are chosen.
    """

    cost: float = FIRST_COST
    pool: int = POOL

    def measured(self, cost: float, seconds: float) -> None:
        """Adapt the size of the groups to the time that one of this cost took."""
        if self.cost < inf:
            right = cost * SECONDS / max(seconds, 1e-6)
            self.cost = max(LEAST_COST, min(max(right, self.cost / 2), self.cost * 2))


def results_in_order(
    sizes: Sequence[int], compute: Callable[[list[int]], Sequence[Any]], pace: Pace
) -> Iterator[tuple[list[int], list[tuple[int, Any]]]]:
    """Compute the results of inputs group by group.

    Args:
        sizes: the length of each input, in characters.
        compute: returns the results for a list of indices, which are in increasing order.
        pace: the size of the groups, which is adapted after each of them.

    Yields:
        After each group its indices, and (index, result) of all inputs whose results and those of
        all earlier inputs are known now. The second list may be empty.
    """
    waiting: list[tuple[int, int]] = []  # (size, index), sorted
    known: dict[int, Any] = {}
    added = returned = 0
    while returned < len(sizes):
        while added < min(len(sizes), returned + pace.pool):
            insort(waiting, (sizes[added], added))
            added += 1
        first, last, cost = _nearest(waiting, (sizes[returned], returned), pace.cost)
        group = sorted(index for _, index in waiting[first:last])
        del waiting[first:last]
        start = time.perf_counter()
        known.update(zip(group, compute(group), strict=True))
        pace.measured(cost, time.perf_counter() - start)
        finished = []
        while returned in known:
            finished.append((returned, known.pop(returned)))
            returned += 1
        yield group, finished


def _nearest(
    waiting: Sequence[tuple[int, int]], oldest: tuple[int, int], most: float
) -> tuple[int, int, float]:
    """A range of `waiting` around `oldest` that costs at most `most`, or one input if that costs
    more; returns its start, its end and its cost."""
    first = bisect_left(waiting, oldest)
    last, cost = first + 1, oldest[0] + INPUT_COST
    while first > 0 or last < len(waiting):
        below = oldest[0] - waiting[first - 1][0] if first > 0 else inf
        above = waiting[last][0] - oldest[0] if last < len(waiting) else inf
        more = waiting[first - 1 if below <= above else last][0] + INPUT_COST
        if cost + more > most:
            break
        first, last = (first - 1, last) if below <= above else (first, last + 1)
        cost += more
    return first, last, cost
