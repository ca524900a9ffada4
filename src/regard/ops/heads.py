"""Queries, keys and values are parts of one product, [N, P*H*K]; so are their gradients.

A backend of attention reads the parts where the product wrote them and writes their gradients next
to each other, so that there are no copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class SplitHeads(torch.autograd.Function):
    """x[N, P*H*K] -> P tensors [N, H, K]; adjacent gradients are not copied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
        return x.unflatten(1, (parts, heads, -1)).unbind(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if are_parts(gradients):
            width = gradients[0].stride(0)
            whole = gradients[0].as_strided((len(gradients[0]), width), (width, 1))
        else:
            whole = torch.stack(gradients, dim=1).flatten(1)
        return whole, None, None


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """x[N, P*H*K] -> P tensors [N, H, K]."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return SplitHeads.apply(x, parts, heads)
    return x.unflatten(1, (parts, heads, -1)).unbind(1)


def gradients_like(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Memory for the gradients; the parts of one product are adjacent."""
    if are_parts((query, key, value)):
        return parts_like(query, 3)
    if are_parts((key, value)):
        return *parts_like(query, 1), *parts_like(key, 2)
    return tuple(part for x in (query, key, value) for part in parts_like(x, 1))


def parts_like(x: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Memory for `count` adjacent tensors like x[N, H, K]."""
    rows, heads, size = x.shape
    return torch.empty((rows, parts, heads, size), dtype=x.dtype, device=x.device).unbind(1)


def are_parts(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors [N, H, K] are all the parts x.unbind(1) of one x[N, P, H, K]."""
    first = tensors[0]
    _, heads, size = first.shape
    width = heads * size
    return all(
        x.shape == first.shape
        and x.stride() == (len(tensors) * width, size, 1)
        and x.data_ptr() == first.data_ptr() + i * width * first.element_size()
        and x.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        for i, x in enumerate(tensors)
    )


def repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    """Grouped keys or values for each head of the query; a copy, unless x has all H heads.

    x[M, G, K] for query[N, H, K] -> [M, H, K], or x[B, G, T, K] for query[B, H, W, K] ->
    [B, H, T, K].
    """
    groups, rest = divmod(query.shape[1], x.shape[1])
    return x if groups <= 1 or rest else x.repeat_interleave(groups, dim=1)


def heads_contiguous(x: Tensor) -> Tensor:
    """x[N, H, K] with the heads of a row contiguous; rows may be strided."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
