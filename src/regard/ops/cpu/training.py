"""A training step on a CPU, with what lies between the products fused (training.cpp).

The counterpart of ops/cuda/training.py: each function computes what the plain code beside
its call computes, forward and backward, and tests hold it to that. What stands between products
is in the format of their results (bfloat16 under autocast); weights, their gradients, and all
arithmetic and sums are float32.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.ops.cpu import build as native

TYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def can_ever(x: Tensor) -> bool:
    """Whether there is code for x."""
    known = x.device.type == "cpu" and x.dtype in TYPES
    return known and native.library("training") is not None


def can(x: Tensor) -> bool:
    """Whether x is part of a training step that these functions know."""
    return torch.is_grad_enabled() and can_ever(x)


def can_multiply(x: Tensor) -> bool:
    """Whether that step has its products in a shorter format than its weights."""
    return torch.is_autocast_enabled("cpu") and x.dim() == 2 and can(x)


def shorter(x: Tensor) -> torch.dtype:
    """What a product gives."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


class Dropout(ctypes.Structure):
    """Which numbers are dropped: a function of a key and their place, so the way back finds the
    same. The key comes from PyTorch's generator, which the loop sets for every row."""

    _fields_ = [("key", ctypes.c_uint64), ("least", ctypes.c_uint32), ("factor", ctypes.c_float)]

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


def add_and_norm(x: Tensor, y: Tensor | None, norm: nn.Module | None, dropout: float) -> Tensor:
    """norm(x + dropout(y)), all [N, D]; without y nothing is added, without norm it stays a sum."""
    x = x.to(shorter(x)).contiguous()
    y = None if y is None else y.to(x.dtype).contiguous()
    out: Tensor
    if norm is None:
        out = Add.apply(x, y, dropout)
        return out
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    centred, epsilon = isinstance(norm, nn.LayerNorm), norm.eps or 0.0
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    out = AddAndNorm.apply(x, y, norm.weight, bias, epsilon, centred, dropout)
    return out


class Add(torch.autograd.Function):
    """x + dropout(y)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, fraction: float) -> Tensor:
        ctx.dropout = Dropout.of(fraction)
        out = torch.empty_like(x)
        call("add", x.dtype, ctx.dropout, x, y, out, x.numel())
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        slope = slope.contiguous()
        if not ctx.dropout.least:
            return slope, slope, None
        y_slope = torch.empty_like(slope)
        call("add", slope.dtype, ctx.dropout, None, slope, y_slope, slope.numel())
        return slope, y_slope, None


class AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        centred: bool,
        fraction: float,
    ) -> Tensor:
        ctx.dropout, ctx.biased = Dropout.of(fraction), bias is not None
        ctx.norm = Norm(weight.data_ptr(), bias.data_ptr() if bias is not None else 0, epsilon,
                        centred)  # fmt: skip
        out, statistics = torch.empty_like(x), x.new_empty((len(x), 2), dtype=torch.float32)
        call("add_and_norm", x.dtype, ctx.dropout, ctx.norm, x, y, out, statistics, *x.shape)
        ctx.save_for_backward(x, y, statistics, weight)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, y, statistics, weight = ctx.saved_tensors
        x_slope, y_slope = torch.empty_like(x), None if y is None else torch.empty_like(y)
        sums = weight.new_empty((2, *weight.shape))
        call("add_and_norm_backward", x.dtype, ctx.dropout, ctx.norm, x, y, statistics,
             slope.contiguous(), x_slope, y_slope, sums, *x.shape)  # fmt: skip
        return x_slope, y_slope, sums[0], sums[1] if ctx.biased else None, None, None, None


# ---- products -------------------------------------------------------------------------------


def product(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    """x Wᵀ + b in the shorter format: x[N, D], weight[V, D], bias[V] -> [N, V], or ReLU of it."""
    out: Tensor = Product.apply(x, weight, bias, relu)
    return out


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        dtype = shorter(x)
        with torch.autocast("cpu", enabled=False):
            given, matrix = x.to(dtype), weight.to(dtype)
            out = F.linear(given, matrix, None if bias is None else bias.to(dtype))
            if relu:
                out.relu_()
        ctx.save_for_backward(given, matrix, out if relu else None)
        ctx.biased, ctx.dtype = bias is not None, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, out = ctx.saved_tensors
        slope, sums = slope.contiguous(), None
        if ctx.biased or out is not None:
            before = slope if out is None else torch.empty_like(slope)
            sums = matrix.new_empty(len(matrix), dtype=torch.float32)
            call("bias_backward", slope.dtype, slope, out, before, sums, *slope.shape)
            slope = before
        x_slope = (slope @ matrix).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        return x_slope, (slope.t() @ x).float(), sums if ctx.biased else None, None


# ---- the embedding --------------------------------------------------------------------------


def embed(
    table: Tensor,
    tokens: Tensor,
    scale: float,
    add: Tensor | None,
    positions: Tensor,
    dropout: float,
) -> Tensor:
    """dropout(table[tokens] * scale + add[positions]): [N, D], in the shorter format."""
    add = None if add is None else add.to(table.dtype).contiguous()
    out: Tensor = Embed.apply(table, tokens, scale, add, positions, dropout, shorter(table))
    return out


class Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        table: Tensor,
        tokens: Tensor,
        scale: float,
        add: Tensor | None,
        positions: Tensor,
        fraction: float,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.dropout, ctx.scale = Dropout.of(fraction), scale
        out = table.new_empty((len(tokens), table.shape[1]), dtype=dtype)
        call("embed", dtype, ctx.dropout, table, tokens, scale, add, positions, out, *out.shape)
        ctx.save_for_backward(tokens, positions)
        ctx.sizes = len(table), 0 if add is None else len(add)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        tokens, positions = ctx.saved_tensors
        slope = slope.contiguous()
        slopes: list[Tensor | None] = []
        for which, ids, scale in ((0, tokens, ctx.scale), (3, positions, 1.0)):
            found = None
            if ctx.needs_input_grad[which]:
                size = ctx.sizes[which == 3]
                found = slope.new_empty((size, slope.shape[1]), dtype=torch.float32)
                call("embed_backward", slope.dtype, ctx.dropout, slope, ids, scale, found,
                     *slope.shape, size)  # fmt: skip
            slopes.append(found)
        return slopes[0], None, None, slopes[1], None, None, None


# ---- the loss -------------------------------------------------------------------------------


def losses(logits: Tensor, labels: Tensor, smoothing: float, needed: bool) -> tuple[Tensor, Tensor]:
    """logits[N, V], labels[N] -> minus the log-probability of each label and its mean over the
    vocabulary, [N] each. If the gradient is needed, it stands where the logits were."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[1]:
        raise IndexError(f"a label is outside the vocabulary of {logits.shape[1]}")
    likelihood, uniform = logits.new_empty((2, len(labels)), dtype=torch.float32)
    call("losses", logits.dtype, logits, labels, smoothing, needed, likelihood, uniform,
         *logits.shape)  # fmt: skip
    return likelihood, uniform


def call(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    library = native.library("training")
    assert library is not None, "can_ever says so"
    library[f"{name}_{TYPES[dtype]}"](*map(argument, arguments))


def argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return None if value is None else ctypes.c_long(value)
