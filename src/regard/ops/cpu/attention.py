"""The engine for a CPU: attention in C++ on the packed row as it is, forward and backward.

PyTorch's kernel wants rectangles, so short sentences had to be gathered, padded, masked and put
back, and its bfloat16 backward is many times slower than its float32. Here each head of each
sequence is one small piece of work (ops/cpu/attention.cpp).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.ops.cpu import build as native
from regard.ops.cuda.attention import slopes_like

if TYPE_CHECKING:
    from regard.model.attention import Visibility

TYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}


class Shape(ctypes.Structure):
    """The struct of the same name in attention.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query_offsets", "key_offsets")),
        *((name, ctypes.c_long) for name in ("sequences", "heads", "size", "query_stride",
          "key_stride", "value_stride", "causal", "window")),
    ]  # fmt: skip


class NativeLayout:
    """Where the sequences begin, and what is visible."""

    def __init__(
        self,
        query_lengths: Sequence[int],
        key_lengths: Sequence[int],
        visibility: Visibility,
        device: torch.device,
    ) -> None:
        self.query_offsets, self.key_offsets = (
            torch.tensor([0, *lengths]).cumsum(0) for lengths in (query_lengths, key_lengths)
        )
        self.causal = int(visibility.causal)
        self.window = -1 if visibility.window is None else visibility.window

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        assert dropout == 0, "choose_engine excludes it"
        output, _ = Attention.apply(*map(in_rows, (query, key, value)), self)
        return output

    def shape(self, query: Tensor, key: Tensor, value: Tensor) -> Shape:
        return Shape(
            self.query_offsets.data_ptr(), self.key_offsets.data_ptr(),
            len(self.query_offsets) - 1, *query.shape[1:],
            query.stride(0), key.stride(0), value.stride(0), self.causal, self.window,
        )  # fmt: skip


def in_rows(x: Tensor) -> Tensor:
    """[N, H, K] in which a row lies in one piece; rows may be far apart."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


class Attention(torch.autograd.Function):
    """query[N, H, K], key[M, H, K], value[M, H, K] -> [N, H, K], and the logarithm of each
    query's sum of exponentials, [N, H], which the way back starts from."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: NativeLayout
    ) -> tuple[Tensor, Tensor]:
        output = query.new_empty(query.shape)
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        totals = query.new_empty(query.shape[:2], dtype=wide)
        shape = layout.shape(query, key, value)
        call("attend", query.dtype, [shape], query, key, value, output, totals)
        ctx.save_for_backward(query, key, value, output, totals)
        ctx.layout = layout
        ctx.mark_non_differentiable(totals)
        return output, totals

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        slopes = slopes_like(*inputs[:3])
        shapes = ctx.layout.shape(*inputs[:3]), ctx.layout.shape(*slopes)
        call("attend_backward", slope.dtype, shapes, *inputs, slope.contiguous(), *slopes)
        return *slopes, None


def call(name: str, dtype: torch.dtype, shapes: Sequence[Shape], *tensors: Tensor) -> None:
    library = native.library("attention")
    assert library is not None, "choose_engine asked for it"
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    library[f"{name}_{TYPES[dtype]}"](*map(ctypes.byref, shapes), *pointers)
