"""The attention backend that runs anywhere: PyTorch's scaled_dot_product_attention.

A packed row is split into segments (its sequences; with a window pieces of them, so that time
stays linear in the length), segments of similar size are padded to rectangles, and each
rectangle is one call. Padding exists only inside this file.

Padding repeats the last row of its own segment and its results are discarded, so that even a
NaN does not spread to another sequence.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regard.ops.layout import Layout, runs


@dataclass(frozen=True)
class Group:
    """Segments of similar size as one rectangle of the padded tensors."""

    segments: int
    queries: int  # of the longest segment
    keys: int
    visible: Tensor | None  # [segments, 1, queries or 1, keys]; None: all keys, or causal
    causal: bool


class PaddedLayout(Layout):
    """The place of each row of a packed tensor in the padded one, and its groups."""

    def __post_init__(self) -> None:
        lengths, window, device = (self.query_lengths, self.key_lengths), self.window, self.device
        first, last = map(torch.from_numpy, runs(*lengths, self.causal, window))
        query_count, key_count = map(torch.tensor, lengths)
        query_start, key_start = starts(query_count), starts(key_count)

        overlap = False  # of the keys of neighbouring segments
        if window is not None:
            cut = max(64, window)  # a piece of a sequence sees the keys of up to 3 pieces
            if overlap := max(self.query_lengths) > 2 * cut:
                query_start, query_count = pieces(query_start, query_count, cut)
                key_start = first[query_start]
                key_count = last[query_start + query_count - 1] - key_start + 1
        # Padding comes last in its segment, so the plain causal kernel needs no mask for it.
        causal = self.causal and window is None and torch.equal(query_count, key_count)

        self.groups: list[Group] = []
        query_slots: list[tuple[Tensor, Tensor]] = []
        key_slots: list[tuple[Tensor, Tensor]] = []
        order, sizes = similar(torch.maximum(query_count, key_count))
        for chosen in order.split(sizes):
            query_row, query_real = rectangle(query_start[chosen], query_count[chosen])
            key_row, key_real = rectangle(key_start[chosen], key_count[chosen])
            visible: Tensor | None = None
            if self.full:
                visible = None if bool(key_real.all()) else key_real[:, None, None]
            elif not causal:
                key = (key_start[chosen, None] + torch.arange(key_real.shape[1]))[:, None]
                seen = (first[query_row][..., None] <= key) & (key <= last[query_row][..., None])
                visible = seen[:, None]
            if visible is not None:
                visible = visible.to(device, non_blocking=True)
            shape = len(chosen), query_real.shape[1], key_real.shape[1]
            self.groups.append(Group(*shape, visible, causal))
            query_slots.append((query_row, query_real))
            key_slots.append((key_row, key_real))
        self.query_rows = Rows(query_slots, device)
        self.key_rows = Rows(key_slots, device, overlap)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = self.query_rows.pad(query)
        key, value = self.key_rows.pad(key), self.key_rows.pad(value)
        outputs, q, k = [], 0, 0
        for group in self.groups:
            q_size, k_size = group.segments * group.queries, group.segments * group.keys

            def heads(x: Tensor, start: int, size: int, segments: int = group.segments) -> Tensor:
                """The group's part of a padded tensor: [S*T, H, K] -> [S, H, T, K]."""
                return x[start : start + size].unflatten(0, (segments, -1)).transpose(1, 2)

            output = attend_rectangles(
                heads(query, q, q_size), heads(key, k, k_size), heads(value, k, k_size),
                group.visible, self.dropout, group.causal,
            )  # [S, H, T, K]  # fmt: skip
            outputs.append(output.transpose(1, 2).flatten(0, 1))  # [S*T, H, K]
            q, k = q + q_size, k + k_size
        return self.query_rows.unpad(torch.cat(outputs) if len(outputs) > 1 else outputs[0])


def attend_rectangles(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """query[S, H, n, K], key and value[S, G, m, K], visible[S, 1, n or 1, m] -> [S, H, n, K].

    With grouped heads, the H / G queries of a key are further rows of one attention, so that keys
    and values are not copied; this cannot be combined with `causal`. cuDNN is not used, because it
    creates a plan for every new shape: steps with sentences of different lengths took ten times as
    long on an H200."""
    heads, groups = query.shape[1], key.shape[1]
    if heads != groups:
        assert not causal
        shared, rows = heads // groups, query.shape[2]
        query = query.unflatten(1, (groups, shared)).flatten(2, 3)  # [S, G, (H / G) n, K]
        if visible is not None and visible.shape[2] > 1:
            visible = visible.repeat(1, 1, shared, 1)
        output = attend_rectangles(query, key, value, visible, dropout)
        return output.unflatten(2, (shared, rows)).flatten(1, 2)
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    eager_gpu = query.is_cuda and not torch.compiler.is_compiling()
    with sdpa_kernel(backends) if eager_gpu else nullcontext():
        return scaled_dot_product_attention(query, key, value, visible, dropout, causal)


class Rows:
    """Packed rows to padded rows and back."""

    def __init__(
        self, slots: list[tuple[Tensor, Tensor]], device: torch.device, overlap: bool = False
    ) -> None:
        """slots: consecutive rectangles, as (packed row of each slot, whether it is real)."""
        padded = torch.cat([row.flatten() for row, _ in slots])
        real = torch.cat([real.flatten() for _, real in slots]).nonzero().flatten()
        self.same = torch.equal(padded, torch.arange(len(padded)))
        self.padded = padded.to(device, non_blocking=True)  # [P]: the packed row in each slot
        self.packed: Tensor | None = None  # [N]: the slot of each packed row, if it has only one
        if not overlap:
            self.packed = torch.empty_like(real)
            self.packed[padded[real]] = real
            self.packed = self.packed.to(device, non_blocking=True)

    def pad(self, x: Tensor) -> Tensor:
        if self.same:
            return x
        if self.packed is None:  # a row is in several segments, whose gradients are added
            return x.index_select(0, self.padded)
        return Gather.apply(x, self.padded, self.packed, False)

    def unpad(self, x: Tensor) -> Tensor:
        return x if self.same else Gather.apply(x, self.packed, self.padded, True)


class Gather(torch.autograd.Function):
    """x[forth], whose gradient is a gather too, because each real row occurs once on both
    sides. On a CPU this is several times faster than the additions of autograd."""

    @staticmethod
    def forward(x: Tensor, forth: Tensor, back: Tensor, holes: bool) -> Tensor:
        return x.index_select(0, forth)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, forth, back, ctx.holes = inputs
        ctx.save_for_backward(forth, back)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        forth, back = ctx.saved_tensors
        if ctx.holes:  # rows of x that are not in the result have gradient 0
            result = gradient.new_zeros((len(back), *gradient.shape[1:]))
            return result.index_copy_(0, forth, gradient), None, None, None
        return gradient.index_select(0, back), None, None, None


def starts(counts: Tensor) -> Tensor:
    return counts.cumsum(0) - counts


def pieces(start: Tensor, count: Tensor, cut: int) -> tuple[Tensor, Tensor]:
    """Cut every segment into pieces of at most `cut` rows: their starts and counts."""
    number = (count + cut - 1) // cut
    index = torch.arange(int(number.sum())) - starts(number).repeat_interleave(number)
    begin = index * cut  # of a piece in its segment
    start, count = start.repeat_interleave(number), count.repeat_interleave(number)
    return start + begin, (count - begin).clamp(max=cut)


def similar(size: Tensor) -> tuple[Tensor, list[int]]:
    """Sort segments by size and return the number of consecutive segments of each group.

    A group ends where a segment is less than three quarters of its longest (and 4 rows shorter):
    at most a quarter of a rectangle is padding, and a batch has about ten groups.
    """
    order = size.argsort(descending=True, stable=True)
    groups: list[int] = []
    longest = 0
    for length in size[order].tolist():
        if not groups or length < 0.75 * longest - 4:
            longest = length
            groups.append(0)
        groups[-1] += 1
    return order, groups


def rectangle(start: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """[S, T] packed rows of S segments padded to the longest, and which of them are real."""
    column = torch.arange(int(count.max()))
    real = column < count[:, None]
    return start[:, None] + torch.minimum(column, count[:, None] - 1), real
