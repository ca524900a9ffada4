"""Attention for training on a GPU: Triton kernels (attention_kernels.py) on the packed row.

A tile is several whole short sequences, or a piece of a long one. Because what a query sees is one
run of keys, and the runs move to the right along the row, the keys that a tile of queries has to
walk over are one range, and so are the queries of a tile of keys: the table of both is a few
vector operations. Queries, keys and values are read where the projection put them, and their
gradients are written where its gradient wants them: nothing is copied.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import InputError
from regard.text.batching import moved

if TYPE_CHECKING:
    from regard.model.attention import Visibility

TILE = 64  # tokens of a tile
COLUMNS = 32  # tokens of one step of a walk
LONG = 128  # tokens of a sequence from which on tiles pass much that all of them see
SMALLEST, LARGEST = 16, 128  # head size: of the hardware's products, and that its memory holds


class TiledLayout:
    """The tiles of one kind of attention of a batch."""

    def __init__(
        self,
        query_lengths: Sequence[int],
        key_lengths: Sequence[int],
        visibility: Visibility,
        device: torch.device,
    ) -> None:
        made = tables(query_lengths, key_lengths, visibility)
        longest = max(*query_lengths, *key_lengths)
        self.hold(longest, *(moved(torch.from_numpy(table), device) for table in made))

    def hold(self, longest: int, runs: Tensor, query_tiles: Tensor, key_tiles: Tensor) -> None:
        self.long = longest > LONG
        self.runs, self.query_tiles, self.key_tiles = runs, query_tiles, key_tiles

    @staticmethod
    def knows(query: Tensor) -> bool:
        return query.dtype in (torch.float32, torch.bfloat16) and query.shape[-1] <= LARGEST

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        assert dropout == 0, "choose_engine excludes it"
        if not (query.is_cuda or os.environ.get("TRITON_INTERPRET")):
            raise InputError("engine=tiled needs a GPU: on a CPU use engine=padded or auto")
        if not self.knows(query):
            raise InputError(
                f"engine=tiled takes float32 and bfloat16 and heads of at most {LARGEST} features, "
                f"not {query.dtype} and {query.shape[-1]}: use engine=padded or auto"
            )
        output: Tensor = Attend.apply(self, *(in_heads(x) for x in (query, key, value)))
        return output


def tables(
    query_lengths: Sequence[int],
    key_lengths: Sequence[int],
    visibility: Visibility,
    room: tuple[int, int] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """The runs [2, N] of keys that queries see, in the packed row, and the tiles of queries and of
    keys, [T, 6] each.

    room: queries and keys that there shall be. Behind the last sequence stand queries that see its
    last key and have no gradient, and keys that nobody sees; and there are as many tiles as so many
    tokens can have at most.
    """
    keys = np.array(key_lengths)
    first, last = (run.numpy() for run in visibility.runs(query_lengths, key_lengths))
    base = (keys.cumsum() - keys).repeat(query_lengths)
    first, last = first + base, last + base
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
    """Of any sequences with so many tokens: two tiles in a row hold more than one could."""
    return 2 * -(-tokens // TILE) + 2


def cut(lengths: Sequence[int], more: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where tiles begin and end; behind the last sequence stand `more` tokens."""
    starts: list[int] = []
    end = 0
    for length in (*lengths, *([more] if more else [])):
        if not starts or end + length - starts[-1] > TILE:
            starts.extend(range(end, end + length, TILE))
        end += length
    return np.array(starts), np.array([*starts[1:], end])


def table(*columns: NDArray[np.int64]) -> NDArray[np.int32]:
    """[T, 6]: begin and end of each tile, of its walk, and of that part of the walk where all of
    the tile meets all it passes; the longest walks come first, so that none is still under way when
    all others are done."""
    rows = np.stack(columns, axis=1).astype(np.int32)
    return rows[np.argsort(rows[:, 2] - rows[:, 3], kind="stable")]


def in_heads(x: Tensor) -> Tensor:
    """[N, H, K] whose heads lie side by side; where rows begin does not matter."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


class Attend(torch.autograd.Function):
    """layout, query[N, H, K], key[M, H, K], value[M, H, K] -> [N, H, K]."""

    @staticmethod
    def forward(ctx: Any, layout: TiledLayout, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
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
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        from regard.ops.cuda.attention_kernels import key_slope_kernel, query_slope_kernel

        query, key, value, out, normal = ctx.saved_tensors
        slope = slope.contiguous()
        count, heads, size = query.shape
        slopes = slopes_like(query, key, value)
        scale = 1 / math.sqrt(size)
        given = (
            query, key, value, scale, math.log2(math.e) * scale, count,
            query.stride(0), key.stride(0), value.stride(0),
        )  # fmt: skip
        delta = torch.empty_like(normal)
        runs, layout = tuple(ctx.layout.runs), ctx.layout
        query_slope_kernel[heads, len(layout.query_tiles)](
            slopes[0], delta, slope, out, normal, *given[:3], layout.query_tiles, *runs,
            *given[3:], slopes[0].stride(0), size, **ctx.shape, num_stages=3,
        )  # fmt: skip
        key_slope_kernel[heads, len(layout.key_tiles)](
            slopes[1], slopes[2], delta, slope, normal, *given[:3], layout.key_tiles, *runs,
            *given[3:], slopes[1].stride(0), slopes[2].stride(0), size, **ctx.shape, num_stages=1,
        )  # fmt: skip
        return None, *slopes


def slopes_like(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Room for the gradients; those of the parts of one product lie side by side."""
    if are_parts((query, key, value)):
        return parts_like(query, 3)
    if are_parts((key, value)):
        return *parts_like(query, 1), *parts_like(key, 2)
    return tuple(part for x in (query, key, value) for part in parts_like(x, 1))


def parts_like(x: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Room for as many tensors like x[N, H, K], side by side."""
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


class Parts(torch.autograd.Function):
    """x[N, P*H*K] -> P tensors [N, H, K]. Gradients that lie side by side become one without a
    copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
        return x.view(len(x), parts, heads, -1).unbind(1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        if are_parts(slopes):
            width = slopes[0].stride(0)
            whole = slopes[0].as_strided((len(slopes[0]), width), (width, 1))
        else:
            whole = torch.stack(slopes, dim=1).flatten(1)
        return whole, None, None
