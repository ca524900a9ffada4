"""Training operations on a CPU in C++ (training.cpp).

Each function computes what the function of the same name in ops/reference.py computes, forward and
backward; tests/ops compares them. Everything between products is in the dtype of their results
(bfloat16 under autocast); weights, their gradients, and all arithmetic and sums are float32.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.ops import reference
from regard.ops.common import LAYER, autocast_dtype, in_autocast, norm_inputs
from regard.ops.cpu import build
from regard.ops.reference import weight_gradient

PIECE = 1 << 26  # logits that are processed at once; larger products are faster
ALIGNMENT = 1  # the size of a row of logits is a multiple of this
TYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


class Dropout(ctypes.Structure):
    """A dropout mask as a function of a key and the index of a number, so that the backward pass
    uses the same mask. The key comes from PyTorch's generator, which the trainer seeds per row."""

    _fields_ = [
        ("key", ctypes.c_uint64),
        ("threshold", ctypes.c_uint32),
        ("factor", ctypes.c_float),
    ]

    @classmethod
    def of(cls, fraction: float) -> Dropout:
        key = int(torch.randint(2**63 - 1, ())) if fraction else 0
        return cls(key, round(fraction * 2**32), 1 / (1 - fraction))


# ---- add & norm -----------------------------------------------------------------------------


class Norm(ctypes.Structure):
    _fields_ = [
        ("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("epsilon", ctypes.c_float),
        ("centred", ctypes.c_long),
    ]  # fmt: skip


def add_norm(x: Tensor, y: Tensor | None, norm: nn.Module | None, dropout: float) -> Tensor:
    x, y, *rest = norm_inputs(x, y, norm)
    return Add.apply(x, y, dropout) if norm is None else AddNorm.apply(x, y, *rest, dropout)


class Add(torch.autograd.Function):
    """x + dropout(y)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, fraction: float) -> Tensor:
        ctx.dropout = Dropout.of(fraction)
        out = torch.empty_like(x)
        call("add", x.dtype, ctx.dropout, x, y, out, x.numel())
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradient.contiguous()
        if not ctx.dropout.threshold:
            return gradient, gradient, None
        y_gradient = torch.empty_like(gradient)
        call("add", gradient.dtype, ctx.dropout, None, gradient, y_gradient, gradient.numel())
        return gradient, y_gradient, None


class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor | None, kind: int,
        epsilon: float, fraction: float,
    ) -> Tensor:  # fmt: skip
        ctx.dropout, ctx.biased = Dropout.of(fraction), bias is not None
        ctx.norm = Norm(weight.data_ptr(), bias.data_ptr() if bias is not None else 0, epsilon,
                        kind == LAYER)  # fmt: skip
        out, statistics = torch.empty_like(x), x.new_empty((len(x), 2), dtype=torch.float32)
        call("add_and_norm", x.dtype, ctx.dropout, ctx.norm, x, y, out, statistics, *x.shape)
        ctx.save_for_backward(x, y, statistics, weight)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, y, statistics, weight = ctx.saved_tensors
        x_gradient, y_gradient = torch.empty_like(x), None if y is None else torch.empty_like(y)
        sums = weight.new_empty((2, *weight.shape))
        call("add_and_norm_backward", x.dtype, ctx.dropout, ctx.norm, x, y, statistics,
             gradient.contiguous(), x_gradient, y_gradient, sums, *x.shape)  # fmt: skip
        return x_gradient, y_gradient, sums[0], sums[1] if ctx.biased else None, None, None, None


# ---- products -------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    if not in_autocast(x) or x.dim() != 2:
        return reference.linear(x, weight, bias, activation)
    out: Tensor = Linear.apply(x, weight, bias, activation == "relu")
    return out if activation == "relu" else reference.ACTIVATIONS[activation](out)


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        dtype = autocast_dtype(x)
        with torch.autocast("cpu", enabled=False):
            inputs, matrix = x.to(dtype), weight.to(dtype)
            out = F.linear(inputs, matrix, None if bias is None else bias.to(dtype))
            if relu:
                out.relu_()
        ctx.save_for_backward(inputs, matrix, out if relu else None)
        ctx.biased, ctx.dtype = bias is not None, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, out = ctx.saved_tensors
        gradient, sums = gradient.contiguous(), None
        if ctx.biased or out is not None:
            before = gradient if out is None else torch.empty_like(gradient)
            sums = matrix.new_empty(len(matrix), dtype=torch.float32)
            call("bias_backward", gradient.dtype, gradient, out, before, sums, *gradient.shape)
            gradient = before
        x_gradient = (gradient @ matrix).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return x_gradient, weight_gradient(gradient, x), sums if ctx.biased else None, None


# ---- the embedding --------------------------------------------------------------------------


def embed(
    table: nn.Embedding, tokens: Tensor, scale: float, rows: Tensor | None, positions: Tensor,
    dropout: float,
) -> Tensor:  # fmt: skip
    rows = None if rows is None else rows.to(table.weight.dtype).contiguous()
    return Embed.apply(table.weight, tokens, scale, rows, positions, dropout)


class Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, tokens: Tensor, scale: float, add: Tensor | None,
        positions: Tensor, fraction: float,
    ) -> Tensor:  # fmt: skip
        dtype = autocast_dtype(table)
        ctx.dropout, ctx.scale = Dropout.of(fraction), scale
        out = table.new_empty((len(tokens), table.shape[1]), dtype=dtype)
        call("embed", dtype, ctx.dropout, table, tokens, scale, add, positions, out, *out.shape)
        ctx.save_for_backward(tokens, positions)
        ctx.sizes = len(table), 0 if add is None else len(add)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tokens, positions = ctx.saved_tensors
        gradient = gradient.contiguous()
        gradients: list[Tensor | None] = []
        for which, ids, scale in ((0, tokens, ctx.scale), (3, positions, 1.0)):
            result = None
            if ctx.needs_input_grad[which]:
                size = ctx.sizes[which == 3]
                result = gradient.new_empty((size, gradient.shape[1]), dtype=torch.float32)
                call("embed_backward", gradient.dtype, ctx.dropout, gradient, ids, scale, result,
                     *gradient.shape, size)  # fmt: skip
            gradients.append(result)
        return gradients[0], None, None, gradients[1], None, None


# ---- losses ---------------------------------------------------------------------------------


def token_losses(
    logits: Tensor, labels: Tensor, smoothing: float, needs_gradient: bool, vocabulary: int
) -> tuple[Tensor, Tensor, Tensor]:
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < vocabulary:
        raise IndexError(f"a label is outside the vocabulary of {vocabulary}")
    negative, uniform = logits.new_empty((2, len(labels)), dtype=torch.float32)
    call("losses", logits.dtype, logits, labels, smoothing, needs_gradient, negative, uniform,
         *logits.shape)  # fmt: skip
    loss = (1 - smoothing) * negative + smoothing * uniform
    return loss.sum(dtype=torch.float64), negative.sum(dtype=torch.float64), logits


def call(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    library = build.library("training")
    assert library is not None, "ops.backend checks it"
    library[f"{name}_{TYPES[dtype]}"](*map(argument, arguments))


def argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return None if value is None else ctypes.c_long(value)
