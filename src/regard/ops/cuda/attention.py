"""The attention backend for training on a GPU: Triton kernels (attention_kernels.py).

A tile is several whole short sequences, or a piece of a long one. Because what a query sees is one
run of keys, and the runs move to the right along the row, the keys that a tile of queries has to
process are one range, and so are the queries of a tile of keys: the table of both takes a few
vector operations. Queries, keys and values are read where the projection wrote them, and their
gradients are written where its gradient needs them: there are no copies.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import InputError
from regard.ops.heads import gradients_like, heads_contiguous
from regard.ops.layout import Layout, runs, to_device

TILE = 64  # tokens of a tile
COLUMNS = 32  # tokens of one step of the loop
LONG = 128  # sequences of this length or more have many steps in which all keys are visible
SMALLEST, LARGEST = (
    16,
    128,
)  # head sizes: the smallest for tensor cores, the largest for shared memory


class CudaLayout(Layout):
    """The tiles of one kind of attention of a batch."""

    fallback: Callable[[], Layout] | None = None  # for queries that the kernels do not support

    def __post_init__(self) -> None:
        arrays = tables(self.query_lengths, self.key_lengths, self.causal, self.window)
        longest = max(*self.query_lengths, *self.key_lengths)
        self.hold(longest, *(to_device(torch.from_numpy(table), self.device) for table in arrays))

    def hold(self, longest: int, runs: Tensor, query_tiles: Tensor, key_tiles: Tensor) -> None:
        """Use these tables, whose contents can change later."""
        self.long = longest > LONG
        self.runs, self.query_tiles, self.key_tiles = runs, query_tiles, key_tiles

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        supported = query.dtype in (torch.float32, torch.bfloat16) and query.shape[-1] <= LARGEST
        if not supported and self.fallback is not None:
            return self.fallback().attend(query, key, value)
        if not (query.is_cuda or os.environ.get("TRITON_INTERPRET")):
            raise InputError("backend=cuda needs a GPU: on a CPU use backend=padded or auto")
        if not supported:
            raise InputError(
                f"backend=cuda takes float32 and bfloat16 and heads of at most {LARGEST} features, "
                f"not {query.dtype} and {query.shape[-1]}: use backend=padded or auto"
            )
        return Attend.apply(self, *map(heads_contiguous, (query, key, value)))


def tables(
    query_lengths: Sequence[int], key_lengths: Sequence[int], causal: bool, window: int | None,
    room: tuple[int, int] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:  # fmt: skip
    """The runs [2, N] of keys of each query in the packed row, and the tiles of queries and of
    keys, [T, 6] each.

    room: pad to so many queries and keys. Queries after the last sequence see its last key and have
    no gradient, keys after it are seen by no query; and there are as many tiles as so many tokens
    can have at most.
    """
    keys = np.array(key_lengths)
    first, last = runs(query_lengths, key_lengths, causal, window)
    more = [0, 0]
    if room is not None:
        more = [room[0] - len(first), room[1] - int(keys.sum())]
        first, last = (np.pad(run, (0, more[0]), constant_values=last[-1]) for run in (first, last))
    start, end = cut(query_lengths, more[0])
    query_tiles = table(
        start, end, first[start], last[end - 1] + 1, first[end - 1], last[start] + 1
    )
    start, end = cut(key_lengths, more[1])
    low, high = np.searchsorted(last, start), np.searchsorted(first, end - 1, "right")
    by_all = np.searchsorted(last, end - 1), np.searchsorted(first, start, "right")
    key_tiles = table(start, end, low, np.maximum(low, high), *by_all)
    if room is not None:
        query_tiles, key_tiles = (
            np.pad(tiles, ((0, most_tiles(n) - len(tiles)), (0, 0)))
            for tiles, n in zip((query_tiles, key_tiles), room, strict=True)
        )
    return np.stack((first, last)).astype(np.int32), query_tiles, key_tiles


def most_tiles(tokens: int) -> int:
    """An upper bound for sequences with so many tokens: two successive tiles hold more than one."""
    return 2 * -(-tokens // TILE) + 2


def cut(lengths: Sequence[int], more: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where tiles begin and end, with `more` tokens after the last sequence."""
    starts: list[int] = []
    end = 0
    for length in (*lengths, *([more] if more else [])):
        if not starts or end + length - starts[-1] > TILE:
            starts.extend(range(end, end + length, TILE))
        end += length
    return np.array(starts), np.array([*starts[1:], end])


def table(*columns: NDArray[np.int64]) -> NDArray[np.int32]:
    """[T, 6]: begin and end of each tile, of the range it processes, and of the part of that range
    where every query sees every key; the longest ranges come first, so that none is still running
    when all others are done."""
    rows = np.stack(columns, axis=1).astype(np.int32)
    return rows[np.argsort(rows[:, 2] - rows[:, 3], kind="stable")]


class Attend(torch.autograd.Function):
    """layout, query[N, H, K], key[M, H, K], value[M, H, K] -> [N, H, K]."""

    @staticmethod
    def forward(ctx: Any, layout: CudaLayout, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from regard.ops.cuda.attention_kernels import attend_kernel

        count, heads, size = query.shape
        ctx.layout = layout
        ctx.shape = {
            "ROWS": TILE, "COLUMNS": COLUMNS, "LONG": layout.long, "num_warps": 4,
            "SIZE": max(SMALLEST, 1 << (size - 1).bit_length()),
            "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
        }  # fmt: skip
        out = torch.empty((count, heads, size), dtype=query.dtype, device=query.device)
        normal = torch.empty((heads, count), dtype=torch.float32, device=query.device)
        attend_kernel[heads, len(layout.query_tiles)](
            out, normal, query, key, value, layout.query_tiles, *layout.runs,
            math.log2(math.e) / math.sqrt(size), count,
            query.stride(0), key.stride(0), value.stride(0), size, **ctx.shape, num_stages=3,
        )  # fmt: skip
        ctx.save_for_backward(query, key, value, out, normal)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from regard.ops.cuda.attention_kernels import key_grad_kernel, query_grad_kernel

        query, key, value, out, normal = ctx.saved_tensors
        grad = grad.contiguous()
        count, heads, size = query.shape
        grads = gradients_like(query, key, value)
        scale = 1 / math.sqrt(size)
        inputs = (
            query, key, value, scale, math.log2(math.e) * scale, count,
            query.stride(0), key.stride(0), value.stride(0),
        )  # fmt: skip
        delta = torch.empty_like(normal)
        runs, layout = tuple(ctx.layout.runs), ctx.layout
        query_grad_kernel[heads, len(layout.query_tiles)](
            grads[0], delta, grad, out, normal, *inputs[:3], layout.query_tiles, *runs,
            *inputs[3:], grads[0].stride(0), size, **ctx.shape, num_stages=3,
        )  # fmt: skip
        key_grad_kernel[heads, len(layout.key_tiles)](
            grads[1], grads[2], delta, grad, normal, *inputs[:3], layout.key_tiles, *runs,
            *inputs[3:], grads[1].stride(0), grads[2].stride(0), size, **ctx.shape, num_stages=1,
        )  # fmt: skip
        return None, *grads
