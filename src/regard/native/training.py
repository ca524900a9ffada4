"""What a training step on a CPU does between its products (training.cpp), for autograd.

Each function computes what the plain code beside its call computes, and tests hold it to that.
Everything between products is in the format of their results (bfloat16 under autocast);
statistics, sums and the gradients of weights are float32.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from regard import native

TYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def can(*tensors: Tensor) -> bool:
    """Whether these are part of a training step that the functions here know."""
    return torch.is_grad_enabled() and knows(*tensors)


def knows(*tensors: Tensor) -> bool:
    """Whether there is code for tensors of these types, on this machine."""
    known = all(x.device.type == "cpu" and x.dtype in TYPES for x in tensors)
    known = known and tensors[0].dtype in (torch.float32, tensors[-1].dtype)
    return known and native.library("training") is not None


class Dropout(ctypes.Structure):
    """Which numbers are dropped, a function of a key and their place. The key comes from PyTorch's
    generator, which the loop sets for every row; the way back drops the same again."""

    _fields_ = [("key", ctypes.c_uint64), ("least", ctypes.c_uint32), ("factor", ctypes.c_float)]

    @classmethod
    def of(cls, fraction: float) -> Dropout:
        key = int(torch.randint(2**63 - 1, ())) if fraction else 0
        return cls(key, round(fraction * 2**32), 1 / (1 - fraction))


class Norm(ctypes.Structure):
    _fields_ = [
        ("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("epsilon", ctypes.c_float),
        ("centred", ctypes.c_long),
    ]  # fmt: skip


class Add(torch.autograd.Function):
    """x + dropout(y), or dropout(y) without x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor | None, y: Tensor, fraction: float) -> Tensor:
        ctx.dropout, ctx.dtype = Dropout.of(fraction), y.dtype
        output = torch.empty_like(y if x is None else x)
        call("add", (output, y), ctx.dropout, x, y, output, y.numel())
        return output

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        slope = slope.contiguous()
        dropped = torch.empty_like(slope)
        call("add", (slope, slope), ctx.dropout, None, slope, dropped, slope.numel())
        return slope if ctx.needs_input_grad[0] else None, dropped.to(ctx.dtype), None


class AddAndNorm(torch.autograd.Function):
    """norm(x + dropout(y)), all [N, D], in the format of y."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float,
        centred: bool, fraction: float,
    ) -> Tensor:  # fmt: skip
        ctx.dropout = Dropout.of(fraction)
        ctx.norm = Norm(weight.data_ptr(), bias.data_ptr() if bias is not None else None, epsilon,
                        centred)  # fmt: skip
        output, statistics = torch.empty_like(y), x.new_empty(len(x), 2, dtype=torch.float32)
        call("add_and_norm", (x, y), ctx.dropout, ctx.norm, x, y, output, statistics, *x.shape)
        ctx.save_for_backward(x, y, statistics, weight, bias)
        return output

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, y, statistics, weight, bias = ctx.saved_tensors
        x_slope, y_slope = torch.empty_like(x), torch.empty_like(y)
        norm_slope = weight.new_empty(2, *weight.shape)
        call("add_and_norm_backward", (x, y), ctx.dropout, ctx.norm, x, y, statistics,
             slope.contiguous(), x_slope, y_slope, norm_slope, *x.shape)  # fmt: skip
        return (
            x_slope, y_slope, norm_slope[0], None if bias is None else norm_slope[1],
            None, None, None,
        )  # fmt: skip


def add_and_norm(x: Tensor, y: Tensor, norm: nn.Module, dropout: float) -> Tensor:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    centred = isinstance(norm, nn.LayerNorm)
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    epsilon = norm.eps
    assert epsilon is not None
    arguments = x.contiguous(), y.contiguous(), norm.weight, bias, epsilon, centred, dropout
    output: Tensor = AddAndNorm.apply(*arguments)
    return output


def add(x: Tensor | None, y: Tensor, dropout: float) -> Tensor:
    output: Tensor = Add.apply(None if x is None else x.contiguous(), y.contiguous(), dropout)
    return output


def losses(logits: Tensor, labels: Tensor, smoothing: float, needed: bool) -> tuple[Tensor, Tensor]:
    """logits[N, V], labels[N] -> what each row adds to the likelihood and to the loss of the even
    distribution, [N] each. If the gradient is needed, it stands where the logits were."""
    likelihood, uniform = logits.new_empty(2, len(labels), dtype=torch.float32)
    call("losses", (logits,), logits, labels, ctypes.c_float(smoothing), int(needed), likelihood,
         uniform, *logits.shape)  # fmt: skip
    return likelihood, uniform


def call(name: str, typed: tuple[Tensor, ...], *arguments: Any) -> None:
    library = native.library("training")
    assert library is not None, "`can` says so"
    function = library["_".join([name, *(TYPES[x.dtype] for x in typed)])]
    function(*map(argument, arguments))


def argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    return ctypes.c_long(value) if isinstance(value, int) else value
