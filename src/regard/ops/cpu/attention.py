"""The attention backend for a CPU: C++ on the packed row, forward and backward.

PyTorch's kernel needs rectangles, so short sentences must be gathered, padded, masked and
scattered, and its bfloat16 backward is many times slower than its float32. Here each head of each
sequence is one small piece of work (attention.cpp).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.ops.cpu import build
from regard.ops.heads import gradients_like, heads_contiguous
from regard.ops.layout import Layout

TYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}


class Shape(ctypes.Structure):
    """The struct of the same name in attention.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query_offsets", "key_offsets")),
        *((name, ctypes.c_long) for name in ("sequences", "heads", "size", "query_stride",
          "key_stride", "value_stride", "causal", "window")),
    ]  # fmt: skip


class CpuLayout(Layout):
    """The offsets of the sequences."""

    def __post_init__(self) -> None:
        self.query_offsets, self.key_offsets = (
            torch.tensor([0, *lengths]).cumsum(0)
            for lengths in (self.query_lengths, self.key_lengths)
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, _ = Attention.apply(*map(heads_contiguous, (query, key, value)), self)
        return output

    def shape(self, query: Tensor, key: Tensor, value: Tensor) -> Shape:
        return Shape(
            self.query_offsets.data_ptr(), self.key_offsets.data_ptr(),
            len(self.query_offsets) - 1, *query.shape[1:],
            query.stride(0), key.stride(0), value.stride(0), self.causal,
            -1 if self.window is None else self.window,
        )  # fmt: skip


class Attention(torch.autograd.Function):
    """query[N, H, K], key[M, H, K], value[M, H, K] -> [N, H, K], and the log-sum-exp of each
    query's scores, [N, H], which the backward pass needs."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: CpuLayout
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
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        gradients = gradients_like(*inputs[:3])
        shapes = ctx.layout.shape(*inputs[:3]), ctx.layout.shape(*gradients)
        call("attend_backward", gradient.dtype, shapes, *inputs, gradient.contiguous(), *gradients)
        return *gradients, None


def call(name: str, dtype: torch.dtype, shapes: Sequence[Shape], *tensors: Tensor) -> None:
    library = build.library("attention")
    assert library is not None, "attention_backend checks it"
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    library[f"{name}_{TYPES[dtype]}"](*map(ctypes.byref, shapes), *pointers)
