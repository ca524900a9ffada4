"""Keys and values of what was decoded so far, so that a step costs one token, not the prefix.

Self-attention appends to buffers that are allocated once, [B, H, capacity, K] for each layer;
the memory is projected to keys and values once for a whole answer. `CachedSelf` stands where a
`Plan` stands in the full pass and `CachedMemory` where the memory stands: the block does not
know the difference, and a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.errors import InputError
from regard.model.padded import Rows, attend_rectangles, rectangle, starts

if TYPE_CHECKING:
    from regard.model.attention import Visibility


class Cache:
    """The state of decoding B sequences together, each at a length of its own."""

    def __init__(
        self, sequences: int, capacity: int, visibility: Visibility, device: torch.device
    ) -> None:
        self.sequences, self.capacity, self.visibility = sequences, capacity, visibility
        self.device = device
        self.lengths = [0] * sequences  # tokens of each sequence so far
        self.layers: list[tuple[Tensor, Tensor]] = []  # keys and values, [B, H, capacity, K]
        self.memory: list[tuple[Tensor, Tensor]] = []  # keys and values, [B, H, longest source, K]
        self.memory_visible: Tensor | None = None  # [B, 1, 1, longest source] or None: all of it

    def remember(self, source_lengths: Sequence[int], memory: list[tuple[Tensor, ...]]) -> None:
        """Keep each layer's keys and values of the memory, packed [M, H, K], as rectangles."""
        count = torch.tensor(source_lengths)
        rows, real = rectangle(starts(count), count)  # [B, longest source]
        rows = rows.to(self.device)
        self.memory = [(k[rows].transpose(1, 2), v[rows].transpose(1, 2)) for k, v in memory]
        self.memory_visible = None if bool(real.all()) else real[:, None, None].to(self.device)

    def extend(self, new: Sequence[int]) -> Step:
        """Make room for `new[b]` more tokens of each sequence b and say where they go."""
        if len(new) != self.sequences:
            raise InputError(f"the cache holds {self.sequences} sequences, not {len(new)}")
        total = [length + more for length, more in zip(self.lengths, new, strict=True)]
        if max(total) > self.capacity:
            raise InputError(
                f"sequence {total.index(max(total))} would have {max(total)} tokens, but the cache "
                f"was made for {self.capacity}"
            )
        step = Step(self, new, total)
        self.lengths = total
        return step


class Step:
    """Where the new tokens of one step stand and what they see; shared by all layers."""

    def __init__(self, cache: Cache, new: Sequence[int], total: list[int]) -> None:
        count = torch.tensor(new)
        rows, real = rectangle(starts(count), count)  # [B, most new tokens]
        first, last = cache.visibility.runs(new, total)  # [N] each
        longest = max(total)
        key = torch.arange(longest)
        visible = (first[rows][..., None] <= key) & (key <= last[rows][..., None])
        own = torch.tensor(total) - count  # [B]: where the new tokens of a sequence begin
        sequence = torch.arange(len(new)).repeat_interleave(count)
        position = torch.arange(len(sequence)) - (starts(count) - own)[sequence]

        self.cache, self.longest = cache, longest
        self.queries = Rows([(rows, real)], cache.device)
        self.visible = None if bool(visible.all()) else visible[:, None].to(cache.device)
        self.sequence, self.positions = sequence.to(cache.device), position.to(cache.device)  # [N]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        """query[N, H, K], key and value[B, H, T, K] -> [N, H, K]."""
        padded = self.queries.pad(query).unflatten(0, (self.cache.sequences, -1))  # [B, n, H, K]
        output = attend_rectangles(padded.transpose(1, 2), key, value, visible)
        return self.queries.unpad(output.transpose(1, 2).flatten(0, 1))


class CachedSelf:
    """Self-attention of one layer in one step: append the new keys and values, see them all."""

    def __init__(self, step: Step, layer: int) -> None:
        self.step, self.layer = step, layer

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        step, cache = self.step, self.step.cache
        if self.layer == len(cache.layers):  # the first step of all
            shape = (cache.sequences, query.shape[1], cache.capacity, query.shape[2])
            cache.layers.append((query.new_zeros(shape), query.new_zeros(shape)))
        keys, values = cache.layers[self.layer]
        keys[step.sequence, :, step.positions] = key
        values[step.sequence, :, step.positions] = value
        seen = slice(0, step.longest)
        return step.attend(query, keys[:, :, seen], values[:, :, seen], step.visible)


class CachedMemory:
    """Cross-attention of one layer in one step, to keys and values that never change."""

    def __init__(self, step: Step, layer: int) -> None:
        self.step, self.layer = step, layer

    def attend(self, query: Tensor) -> Tensor:
        cache = self.step.cache
        return self.step.attend(query, *cache.memory[self.layer], cache.memory_visible)
