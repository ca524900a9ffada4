"""Windows: documents in sections of at most data.max_length tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Windows(NamedTuple):
    """Sections of documents: window i is `lengths[i]` tokens of document `documents[i]`."""

    documents: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def shifted(self, chosen: NDArray[np.int64], sizes: NDArray[Any], seed: int) -> Windows:
        """The chosen windows, each moved at random by up to half its length in its document."""
        documents, starts, lengths = (column[chosen] for column in self)
        random = np.random.default_rng(seed)
        half = lengths // 2
        moved = starts + random.integers(-half, half + 1)
        return Windows(documents, np.clip(moved, 0, sizes[documents] - lengths), lengths)


def windows(sizes: NDArray[Any], longest: int) -> Windows:
    """Documents of these sizes, end to end in windows of at most `longest` tokens."""
    sizes = sizes.astype(np.int64)
    counts = -(-sizes // longest)
    documents = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = number * longest
    return Windows(documents, starts, np.minimum(longest, sizes[documents] - starts))
