"""Common to all attention backends: the keys of a packed row that each query may attend to.

In a packed row these keys are always one run, from `first[n]` to `last[n]`. Full, causal, windowed,
cross and cached attention differ only in these two numbers, so no function has a mask argument,
and each query has at least one key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int64]


@dataclass
class Layout(ABC):
    """The lengths of B sequences on both sides, and what a query may attend to.

    causal: only to keys up to its own position; window: the largest distance of positions.
    """

    query_lengths: Sequence[int]
    key_lengths: Sequence[int]
    causal: bool
    window: int | None
    device: torch.device
    dropout: float = 0.0

    def __post_init__(self) -> None:  # noqa: B027
        """Compute what is shared by all layers of a batch."""

    @property
    def full(self) -> bool:
        return not self.causal and self.window is None

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query[N, H, K], key[M, H, K], value[M, H, K] -> [N, H, K]."""


def runs(
    query_lengths: Sequence[int], key_lengths: Sequence[int], causal: bool, window: int | None
) -> tuple[Ids, Ids]:
    """The run of keys of each query in the packed row: first[N] and last[N], both inclusive. The
    queries of a sequence are at the positions of its last keys."""
    queries, keys = np.array(query_lengths), np.array(key_lengths)
    base = (keys.cumsum() - keys).repeat(queries)  # [N]: the first key of the sequence
    end = (keys - 1).repeat(queries)  # [N]: its last key, counted from the first
    if not causal and window is None:
        return base, base + end
    own = positions_array(query_lengths) + (keys - queries).repeat(queries)
    reach = window if window is not None else int(keys.max())
    last = own if causal else np.minimum(own + reach, end)
    return base + np.maximum(own - reach, 0), base + last


def visible(queries: int, keys: int, causal: bool, window: int | None) -> Tensor:
    """[queries, keys] of one sequence: True where a query may attend to a key."""
    first, last = map(torch.from_numpy, runs([queries], [keys], causal, window))
    key = torch.arange(keys)
    return (first[:, None] <= key) & (key <= last[:, None])


def positions_array(lengths: Sequence[int]) -> Ids:
    """[N]: 0, 1, ... within each sequence of a packed row. In NumPy, since PyTorch would share such
    small work among all cores, which takes milliseconds where there are many."""
    counts = np.array(lengths)
    return np.arange(counts.sum()) - (counts.cumsum() - counts).repeat(counts)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device without waiting: a copy from pinned memory is asynchronous, any
    other begins only when the GPU has finished all work before it."""
    from_host = tensor.device.type == "cpu" and torch.device(device).type == "cuda"
    if from_host and not torch.compiler.is_compiling():  # torch.compile cannot pin memory
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
