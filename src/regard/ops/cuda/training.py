"""Training operations on a GPU in Triton (training_kernels.py, loss_kernels.py).

Each function computes what the function of the same name in ops/reference.py computes, forward and
backward; tests/gpu compares them. Weights stay float32 and are cast once for each use; the result
of a product is in the autocast dtype, and so is everything between products; all arithmetic inside
a kernel and all sums are float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.ops import reference
from regard.ops.common import ACTIVATION_CODES, autocast_dtype, cast, in_autocast, norm_inputs

PIECE = 1 << 29  # logits that are processed at once; each piece adds to the matrix gradient
ALIGNMENT = 64  # the size of a row of logits is a multiple of this, for fast products
PROGRAMS = 1056  # programs of a sum over rows: 8 for each multiprocessor of an H200
FUSED = ("none", "relu", "gelu")  # activations whose gradient is computed with that of the bias
SUMMED = 64  # rows that one program sums

_seed: ContextVar[Tensor | None] = ContextVar("_seed", default=None)  # set by `seeded_dropout`


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def zero(device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device=device)


@contextmanager
def seeded_dropout(seed: Tensor) -> Iterator[None]:
    """Inside this block seed[1], int64 in device memory, is added to the seed of every dropout
    mask, so that each replay of a CUDA graph can use different masks."""
    token = _seed.set(seed)
    try:
        yield
    finally:
        _seed.reset(token)


class Dropout:
    """The dropout mask of a kernel: a seed from PyTorch's generator on the host, the seed that is
    added to it, the threshold below which random 32 bits mean a dropped number, and the factor of
    the other numbers."""

    def __init__(self, fraction: float, device: torch.device) -> None:
        added = _seed.get()
        self.drops, self.added = fraction > 0, zero(device) if added is None else added
        self.seed = int(torch.randint(2**31 - 1, ())) if self.drops else 0
        self.threshold, self.factor = min(round(fraction * 2**32), 2**32 - 1), 1 / (1 - fraction)

    @property
    def arguments(self) -> tuple[int, Tensor, int, float]:
        return self.seed, self.added, self.threshold, self.factor


def block_of(width: int) -> dict[str, int]:
    """The number of rows that a program processes at once; it always processes all columns."""
    block = 1 << max(4, (width - 1).bit_length())
    rows = max(1, 1024 // block)
    return {"ROWS": rows, "BLOCK": block, "num_warps": min(16, max(2, rows * block // 512))}


def programs_for(rows: int, block: dict[str, int]) -> tuple[int]:
    return (-(-rows // block["ROWS"]),)


# ---- add & norm -----------------------------------------------------------------------------


def add_norm(x: Tensor, y: Tensor | None, norm: nn.Module | None, dropout: float) -> Tensor:
    return AddNorm.apply(*norm_inputs(x, y, norm), Dropout(dropout, x.device))


class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, gain: Tensor | None, shift: Tensor | None, kind: int,
        epsilon: float, dropout: Dropout,
    ) -> Tensor:  # fmt: skip
        from regard.ops.cuda.training_kernels import add_norm_kernel

        rows, width = x.shape
        ctx.dropout, ctx.kind, ctx.epsilon = dropout, kind, epsilon
        ctx.shifted = shift is not None
        block = block_of(width)
        out = torch.empty_like(x)
        add_norm_kernel[programs_for(rows, block)](
            out, x, y, gain, shift, *dropout.arguments, rows, width, epsilon,
            ADD=y is not None, DROP=dropout.drops, NORM=kind, SHIFT=ctx.shifted, **block,
        )  # fmt: skip
        # The backward pass recomputes the sum from its terms, which need less memory.
        ctx.save_for_backward(*((x, y, gain) if kind else (None, None, None)))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from regard.ops.cuda.training_kernels import add_norm_grad_kernel

        x, y, gain = ctx.saved_tensors
        gradient, dropout = gradient.contiguous(), ctx.dropout
        rows, width = gradient.shape
        adds = ctx.needs_input_grad[1]
        x_gradient = torch.empty_like(gradient) if ctx.kind else gradient
        y_gradient = torch.empty_like(gradient) if adds and dropout.drops else x_gradient
        gain_gradient = shift_gradient = None
        if ctx.kind or dropout.drops:
            block = block_of(width)
            programs = min(PROGRAMS, *programs_for(rows, block))
            partial = gradient.new_empty((programs, 2, width), dtype=torch.float32)
            add_norm_grad_kernel[(programs,)](
                x_gradient, y_gradient, partial, gradient, x, y, gain, *dropout.arguments, rows,
                width, ctx.epsilon, ADD=y is not None, DROP=dropout.drops, NORM=ctx.kind, **block,
            )  # fmt: skip
            if ctx.kind:
                gain_gradient, shift_gradient = summed(partial)
        return (
            x_gradient, y_gradient if adds else None, gain_gradient,
            shift_gradient if ctx.shifted else None, None, None, None,
        )  # fmt: skip


# ---- products -------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    if not in_autocast(x) or x.dim() != 2:
        return reference.linear(x, weight, bias, activation)
    if activation not in FUSED:
        out: Tensor = Linear.apply(x, weight, bias, ACTIVATION_CODES["none"])
        return reference.ACTIVATIONS[activation](out)
    return Linear.apply(x, weight, bias, ACTIVATION_CODES[activation])


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: int
    ) -> Tensor:
        dtype = autocast_dtype(x)
        with torch.autocast(x.device.type, enabled=False):
            inputs, matrix = x.to(dtype), cast(weight, dtype)
            shift = None if bias is None else cast(bias, dtype)
            seen = None
            if activation == ACTIVATION_CODES["relu"] and shift is not None:
                out = seen = torch._addmm_activation(shift, inputs, matrix.t())
            else:
                out = F.linear(inputs, matrix, shift)
                if activation == ACTIVATION_CODES["relu"]:
                    out = seen = out.relu_()
                elif activation:
                    seen, out = out, F.gelu(out)
        ctx.save_for_backward(inputs, matrix, seen)
        ctx.activation, ctx.biased, ctx.dtype = activation, bias is not None, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, seen = ctx.saved_tensors
        bias_gradient = None
        if ctx.activation or ctx.biased:
            gradient, bias_gradient = through_bias(gradient.contiguous(), seen, ctx.activation)
        x_gradient = (gradient @ matrix).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        bias_gradient = bias_gradient if ctx.biased else None
        return x_gradient, weight_gradient(gradient, x), bias_gradient, None


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    return torch.mm(gradient.t(), x, out_dtype=torch.float32)


def through_bias(gradient: Tensor, seen: Tensor | None, activation: int) -> tuple[Tensor, Tensor]:
    """The gradient[N, F] before an activation, and its sum over rows, [F], the bias gradient."""
    from regard.ops.cuda.training_kernels import bias_grad_kernel

    rows, width = gradient.shape
    result = torch.empty_like(gradient) if activation else gradient
    block = {"ROWS": 32, "BLOCK": 64}
    programs = -(-rows // SUMMED)
    partial = gradient.new_empty((programs, width), dtype=torch.float32)
    bias_grad_kernel[programs, -(-width // block["BLOCK"])](
        partial, result, gradient, seen, rows, width,
        ACTIVATION=activation, STEPS=SUMMED // block["ROWS"], **block,
    )  # fmt: skip
    return result, summed(partial)


def summed(partial: Tensor) -> Tensor:
    """The sum over the first dimension."""
    from regard.ops.cuda.training_kernels import sum_kernel

    out = torch.empty_like(partial[0])
    sum_kernel[(-(-out.numel() // 32),)](out, partial, len(partial), out.numel(), ROWS=64, BLOCK=32)
    return out


# ---- the embedding --------------------------------------------------------------------------


def embed(
    table: nn.Embedding, tokens: Tensor, scale: float, rows: Tensor | None, positions: Tensor,
    dropout: float,
) -> Tensor:  # fmt: skip
    dropping = Dropout(dropout, tokens.device)
    return Embed.apply(table.weight, tokens, scale, rows, positions, dropping)


class Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: Tensor, tokens: Tensor, scale: float, add: Tensor | None,
        positions: Tensor, dropout: Dropout,
    ) -> Tensor:  # fmt: skip
        from regard.ops.cuda.training_kernels import embed_kernel

        rows, width = len(tokens), table.shape[1]
        out = torch.empty((rows, width), dtype=autocast_dtype(table), device=table.device)
        block = block_of(width)
        embed_kernel[programs_for(rows, block)](
            out, table, tokens, add, positions, scale, *dropout.arguments, rows, width,
            ADD=add is not None, DROP=dropout.drops, **block,
        )  # fmt: skip
        ctx.save_for_backward(tokens, positions)
        ctx.sizes = len(table), 0 if add is None else len(add)
        ctx.dropout, ctx.scale = dropout, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from regard.ops.cuda.training_kernels import embed_grad_kernel

        tokens, positions = ctx.saved_tensors
        rows, width = gradient.shape
        block = block_of(width)
        *random, factor = ctx.dropout.arguments
        scaled = torch.empty_like(gradient, dtype=torch.float32)
        embed_grad_kernel[programs_for(rows, block)](
            scaled, gradient.contiguous(), *random, factor * ctx.scale, rows, width,
            DROP=ctx.dropout.drops, **block,
        )  # fmt: skip
        gather = torch.ops.aten.embedding_dense_backward
        table_gradient = gather(scaled, tokens, ctx.sizes[0], -1, False)
        add_gradient = None
        if ctx.needs_input_grad[3]:
            add_gradient = gather(scaled, positions, ctx.sizes[1], -1, False) / ctx.scale
        return table_gradient, None, None, add_gradient, None, None


# ---- losses ---------------------------------------------------------------------------------


def token_losses(
    logits: Tensor, labels: Tensor, smoothing: float, needs_gradient: bool, vocabulary: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A row of logits may be longer than the vocabulary; tokens with label -1 are ignored."""
    from regard.ops.cuda.loss_kernels import loss_kernel

    losses = torch.empty((len(logits), 2), dtype=torch.float32, device=logits.device)
    loss_kernel[(len(logits),)](
        logits, losses, labels, smoothing, vocabulary, logits.shape[1],
        GRADIENT=needs_gradient, DEPTH=2, LANES=2048, num_warps=8,
    )  # fmt: skip
    return *losses.sum(0, dtype=torch.float64), logits


def disagreement(first: Tensor, second: Tensor, counted: Tensor | None) -> Tensor:
    if counted is None:
        return reference.disagreement(first, second, counted)
    return Disagreement.apply(first, second, counted)


class Disagreement(torch.autograd.Function):
    """The gradients overwrite the logits."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, counted: Tensor) -> Tensor:
        from regard.ops.cuda.loss_kernels import disagreement_kernel

        rows, size = first.shape
        sums = torch.empty(rows, dtype=torch.float32, device=first.device)
        disagreement_kernel[(rows,)](first, second, sums, counted, size, LANES=2048, num_warps=8)
        ctx.save_for_backward(first, second)
        return sums.sum(dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        gradient = gradient.to(first.dtype)
        return first * gradient, second * gradient, None
