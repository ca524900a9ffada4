"""Attention with explicit weights, for attention variants and for position biases.

The attention backends (ops/attention.py) never store the weights. A variant computes them itself,
as a function of padded queries, keys and an additive mask, so this module pads a packed row to
rectangles, one for each group of sequences of similar length, and removes the padding again. It
runs on any device, and its speed and memory are those of plain matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.model.visibility import Visibility
from regard.ops.padded import rectangle, similar, starts

# query[B, H, n, K], key[B, H, m, K], mask[B or 1, H or 1, n, m] -> weights[B, H, n, m]
WeightFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
# distance[..., n, m] = key position - query position -> [..., H, n, m], added to the scores
BiasFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Rectangle:
    """Sequences of similar length, padded to the longest of them."""

    queries: Tensor  # [B, n]: row of each query in the packed tensor; padding repeats the last row
    keys: Tensor  # [B, m]
    visible: Tensor  # [B, 1, n, m] booleans
    distance: Tensor  # [B, n, m]: position of the key minus position of the query
    real: Tensor  # [B * n]: places of real queries


class Rectangles:
    """The rectangles of a batch, computed once and used by every layer."""

    def __init__(
        self, query_lengths: Sequence[int], key_lengths: Sequence[int], visibility: Visibility,
        device: torch.device,
    ) -> None:  # fmt: skip
        queries, keys = torch.tensor(query_lengths), torch.tensor(key_lengths)
        query_starts, key_starts = starts(queries), starts(keys)
        self.groups: list[Rectangle] = []
        packed: list[Tensor] = []
        order, sizes = similar(torch.maximum(queries, keys))
        for chosen in order.split(sizes):
            query_rows, query_real = rectangle(query_starts[chosen], queries[chosen])
            key_rows, key_real = rectangle(key_starts[chosen], keys[chosen])
            # The queries of a sequence are at the positions of its last keys.
            position = query_rows + (keys - queries - query_starts)[chosen, None]  # [B, n]
            distance = torch.arange(key_rows.shape[1]) - position[:, :, None]  # [B, n, m]
            visible = key_real[:, None].expand_as(distance)
            if visibility.causal:
                visible = visible & (distance <= 0)
            if visibility.window is not None:
                visible = visible & (distance.abs() <= visibility.window)
            real = query_real.flatten().nonzero()[:, 0]
            packed.append(query_rows.flatten()[real])
            tensors = query_rows, key_rows, visible[:, None], distance, real
            self.groups.append(Rectangle(*(tensor.to(device) for tensor in tensors)))
        self.back = torch.cat(packed).argsort().to(device)  # from the order of groups to the row

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, weigh: WeightFunction,
        bias: BiasFunction | None,
    ) -> Tensor:  # fmt: skip
        """query[N, H, K], key[M, H, K], value[M, H, K] -> [N, H, K]."""
        outputs = []
        for group in self.groups:
            q = query[group.queries].transpose(1, 2)  # [B, H, n, K]
            k, v = key[group.keys].transpose(1, 2), value[group.keys].transpose(1, 2)
            weights = weigh(q, k, score_mask(group.visible, group.distance, bias, q.dtype))
            output = (weights.to(v.dtype) @ v).transpose(1, 2).flatten(0, 1)  # [B * n, H, K]
            outputs.append(output[group.real])
        return torch.cat(outputs)[self.back]


def score_mask(
    visible: Tensor, distance: Tensor | None, bias: BiasFunction | None, dtype: torch.dtype
) -> Tensor:
    """What is added to the scores: the bias of visible keys, minus infinity for the others.

    visible[B, 1, n, m], distance[B, n, m] -> [B, H or 1, n, m].
    """
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    if bias is not None:
        assert distance is not None
        mask = bias(distance).to(dtype)
    return mask.masked_fill(~visible, -math.inf)
