"""Which examples form a batch: packed rows under a token budget.

A row is a pure function of (corpus, seed, row number), so the order of the data never needs to be
saved: a run that resumes at step s requests the rows of step s. Packed rows may hold sequences of
different lengths, so rows are almost full: an example that does not fit waits for the next row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError

POOL = 512  # examples to choose from when the end of a row is filled
OPEN = 0.95  # a row takes the next examples up to this fraction, and then those that fit best


class BatchSampler:
    """All rows of a corpus, epoch after epoch; each epoch is shuffled anew.

    lengths: for each side (source and target, or one text) the length of every example
    budget: the most tokens of the counted side in a row (default: the last side). The other sides
        get budgets in proportion to their share of the corpus, so that all are full together.
    share: the fraction of the examples to use; these are chosen at random, always the same ones
    """

    def __init__(
        self,
        lengths: Sequence[NDArray[np.int32]],
        budget: int,
        fingerprint: str,
        seed: int,
        share: float = 1.0,
        counted: int = -1,
    ) -> None:
        self.lengths = [np.asarray(side, dtype=np.int64) for side in lengths]
        if not len(self.lengths[0]):
            raise InputError("there is no example to train on: every line was skipped")
        total = [int(side.sum()) for side in self.lengths]
        self.budgets = [max(1, round(budget * t / total[counted])) for t in total]
        for side, limit in zip(self.lengths, self.budgets, strict=True):
            if int(side.max()) > limit:
                raise InputError(
                    f"training.batch_tokens={budget} is less than the longest example needs "
                    f"({int(side.max())} of {limit} tokens): raise it or lower data.max_length"
                )
        self.fingerprint, self.seed = fingerprint, seed
        count = len(self.lengths[0])
        self.chosen = np.arange(count)
        if share < 1:  # the same examples for every seed
            used = max(1, round(share * count))
            self.chosen = np.random.default_rng(1).permutation(count)[:used]
        self._ends: list[int] = []  # the total number of rows at the end of each planned epoch
        self._epoch = lru_cache(maxsize=2)(self._plan)

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        """The numbers of a row's examples in the corpus."""
        epoch = self.epoch_of(row)
        order, bounds = self._epoch(epoch)
        first = row - (self._ends[epoch - 1] if epoch else 0)
        return order[bounds[first] : bounds[first + 1]]

    def epoch_of(self, row: int) -> int:
        """The epoch, from 0, that a row belongs to."""
        while not self._ends or row >= self._ends[-1]:
            _, bounds = self._epoch(len(self._ends))
            self._ends.append((self._ends[-1] if self._ends else 0) + len(bounds) - 1)
        return int(np.searchsorted(self._ends, row, side="right"))

    def epoch_size(self) -> int:
        """The number of rows of the first epoch; that of other epochs differs by a few rows."""
        self.epoch_of(0)
        return self._ends[0]

    def _plan(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The order of the examples in an epoch, and the bounds of its rows in this order."""
        name = f"{self.fingerprint} {self.seed} {epoch}".encode()
        random = np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(name).digest())))
        waiting = random.permutation(self.chosen)
        sizes = np.stack([side[waiting] for side in self.lengths], axis=1)  # [examples, sides]
        return fill(waiting, sizes, np.array(self.budgets))


def fill(
    waiting: NDArray[np.int64], sizes: NDArray[np.int64], limit: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Fill rows up to limit[sides] tokens with the examples waiting[n] of sizes[n, sides], roughly
    in their order. Returns the examples in the order of the rows, and the bounds of the rows."""
    order: list[NDArray[np.int64]] = []
    bounds = [0]
    ahead = POOL + int((limit / np.maximum(sizes.mean(0), 1)).max()) * 2  # enough for a row
    queue, front = np.arange(0), 0  # skipped examples in order; the others start at `front`
    while len(queue) or front < len(waiting):
        more = np.arange(front, min(front + max(0, ahead - len(queue)), len(waiting)))
        queue, front = np.concatenate([queue, more]), front + len(more)
        # Most of a row is the next examples, as many as leave a little room on all sides.
        used = sizes[queue].cumsum(0)  # [queue, sides]
        run = int((used <= OPEN * limit).all(1).sum())
        chosen = list(range(run))
        left = limit - (used[run - 1] if run else 0)
        # The rest is chosen one by one: the example after which all sides together are as nearly
        # full as possible.
        view = np.arange(run, min(run + POOL, len(queue)))
        while len(view):
            after = left - sizes[queue[view]]  # [view, sides]
            fits = (after >= 0).all(1)
            view, after = view[fits], after[fits]
            if len(view):
                best = int(((after / limit) ** 2).sum(1).argmin())
                chosen.append(int(view[best]))
                left, view = after[best], np.delete(view, best)
        order.append(waiting[queue[chosen]])
        bounds.append(bounds[-1] + len(chosen))
        queue = np.delete(queue, chosen)
    return np.concatenate(order), np.array(bounds)
