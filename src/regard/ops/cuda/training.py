"""A training step on a GPU, with what lies between the products fused (training_kernels.py).

Each function here computes what the plain code beside its call computes, forward and backward, and
tests/gpu holds it to that. Weights stay float32 and are rounded once for each use; a product's
result is in the shorter format (bfloat16 under autocast), and so is everything between products;
all arithmetic inside a kernel and all sums are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYER, RMS = 1, 2  # norms
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2}
PROGRAMS = (
    1056  # that share the rows where sums over them are taken: 8 for each processor of a H200
)
SUMMED = 64  # rows whose sum is one program's


@cache
def triton_is_there() -> bool:
    return find_spec("triton") is not None


def can_ever(x: Tensor) -> bool:
    """Whether there are kernels for x."""
    return x.is_cuda and x.dtype in (torch.float32, torch.bfloat16) and triton_is_there()


def can(x: Tensor) -> bool:
    """Whether x is part of a training step that these functions know."""
    return torch.is_grad_enabled() and can_ever(x)


def can_multiply(x: Tensor) -> bool:
    """Whether that step has its products in a shorter format than its weights."""
    return torch.is_autocast_enabled("cuda") and x.dim() == 2 and can(x)


def shorter(x: Tensor) -> torch.dtype:
    """What a product gives."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


@cache
def base(device: torch.device) -> Tensor:
    """A number in device memory that is added to the seed of every dropout mask: 0, unless a CUDA
    graph is replayed and must use a different mask each time (training/cuda_graph.py)."""
    return torch.zeros(1, dtype=torch.int64, device=device)


class Dropout:
    """Which numbers a kernel drops: a seed, its base, the least random 32 bits that are kept, and
    the factor for these. The seed comes from the host's generator."""

    def __init__(self, fraction: float, device: torch.device) -> None:
        self.drops, self.base = fraction > 0, base(device)
        self.seed = int(torch.randint(2**31 - 1, ())) if self.drops else 0
        self.least, self.factor = min(round(fraction * 2**32), 2**32 - 1), 1 / (1 - fraction)

    @property
    def arguments(self) -> tuple[int, Tensor, int, float]:
        return self.seed, self.base, self.least, self.factor


def block_of(width: int) -> dict[str, int]:
    """How many rows a program takes at once, and how many columns: all of them."""
    block = 1 << max(4, (width - 1).bit_length())
    rows = max(1, 1024 // block)
    return {"ROWS": rows, "BLOCK": block, "num_warps": min(16, max(2, rows * block // 512))}


def programs_for(rows: int, block: dict[str, int]) -> tuple[int]:
    return (-(-rows // block["ROWS"]),)


# ---- add & norm -----------------------------------------------------------------------------


def add_and_norm(x: Tensor, y: Tensor | None, norm: nn.Module | None, dropout: float) -> Tensor:
    """norm(x + dropout(y)), all [N, D]; without y nothing is added, without norm it stays a sum."""
    kind, gain, shift, epsilon = 0, None, None, 0.0
    if isinstance(norm, nn.LayerNorm):
        kind, gain, shift, epsilon = LAYER, norm.weight, norm.bias, norm.eps
    elif isinstance(norm, nn.RMSNorm):
        kind, gain, epsilon = RMS, norm.weight, norm.eps or 0.0
    x = x.to(shorter(x))
    y = None if y is None else y.to(x.dtype).contiguous()
    out: Tensor = AddNorm.apply(
        x.contiguous(), y, gain, shift, Dropout(dropout, x.device), kind, epsilon
    )
    return out


class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor | None,
        gain: Tensor | None,
        shift: Tensor | None,
        dropout: Dropout,
        kind: int,
        epsilon: float,
    ) -> Tensor:
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
        # The sum is made again from its terms, which others keep anyway or are smaller than it.
        ctx.save_for_backward(*((x, y, gain) if kind else (None, None, None)))
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        from regard.ops.cuda.training_kernels import add_norm_slope_kernel

        x, y, gain = ctx.saved_tensors
        slope, dropout = slope.contiguous(), ctx.dropout
        rows, width = slope.shape
        adds = ctx.needs_input_grad[1]
        x_slope = torch.empty_like(slope) if ctx.kind else slope
        y_slope = torch.empty_like(slope) if adds and dropout.drops else x_slope
        if not ctx.kind and not dropout.drops:
            return slope, slope if adds else None, None, None, None, None, None
        block = block_of(width)
        programs = min(PROGRAMS, *programs_for(rows, block))
        partial = slope.new_empty((programs, 3, width), dtype=torch.float32)
        add_norm_slope_kernel[(programs,)](
            x_slope, y_slope, partial, slope, x, y, gain, *dropout.arguments, rows, width,
            ctx.epsilon, ADD=y is not None, DROP=dropout.drops, NORM=ctx.kind, **block,
        )  # fmt: skip
        gain_slope, shift_slope, bias_slope = summed(partial)
        if adds:
            # for the product that y comes from, if nobody changes the slope on the way
            y_slope.sums = bias_slope, y_slope._version  # type: ignore[attr-defined]
        if not ctx.kind:
            gain_slope = shift_slope = None
        return (
            x_slope, y_slope if adds else None, gain_slope, shift_slope if ctx.shifted else None,
            None, None, None,
        )  # fmt: skip


# ---- weights --------------------------------------------------------------------------------

_copies: dict[int, Tensor] = {}  # of parameters, by their id


@contextmanager
def rounded_once(parameters: Sequence[Tensor], dtype: torch.dtype) -> Iterator[None]:
    """While this lasts all parameters have a copy in the shorter format, made at once."""
    copies = [torch.empty_like(p, dtype=dtype) for p in parameters]
    if copies:
        torch._foreach_copy_(copies, [p.detach() for p in parameters])
    _copies.update({id(p): copy for p, copy in zip(parameters, copies, strict=True)})
    try:
        yield
    finally:
        _copies.clear()


def rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter, or a part of one, in the shorter format."""
    copy = _copies.get(id(weight if weight._base is None else weight._base))
    if copy is None or copy.dtype != dtype:
        return weight.to(dtype)
    return copy.as_strided(weight.shape, weight.stride(), weight.storage_offset())


# ---- products -------------------------------------------------------------------------------


def product(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
    """activation(x Wᵀ + b) in the shorter format: x[N, D], weight[V, D], bias[V] -> [N, V]."""
    out: Tensor = Product.apply(x, weight, bias, ACTIVATIONS[activation])
    return out


class Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, activation: int
    ) -> Tensor:
        dtype = shorter(x)
        with torch.autocast("cuda", enabled=False):
            given, matrix = x.to(dtype), rounded(weight, dtype)
            add = None if bias is None else rounded(bias, dtype)
            seen = None
            if activation == ACTIVATIONS["relu"] and add is not None:
                out = seen = torch._addmm_activation(add, given, matrix.t())
            else:
                out = F.linear(given, matrix, add)
                if activation == ACTIVATIONS["relu"]:
                    out = seen = out.relu_()
                elif activation:
                    seen, out = out, F.gelu(out)
        ctx.save_for_backward(given, matrix, seen)
        ctx.activation, ctx.biased, ctx.dtype = activation, bias is not None, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, seen = ctx.saved_tensors
        bias_slope: Tensor | None = None
        known, version = getattr(slope, "sums", (None, 0))  # add & norm takes them
        if known is not None and version == slope._version and not ctx.activation:
            bias_slope = known
        elif ctx.activation or ctx.biased:
            slope, bias_slope = through_bias(slope.contiguous(), seen, ctx.activation)
        x_slope = (slope @ matrix).to(ctx.dtype) if ctx.needs_input_grad[0] else None
        weight_slope = torch.mm(slope.t(), x, out_dtype=torch.float32)
        return x_slope, weight_slope, bias_slope if ctx.biased else None, None


def through_bias(slope: Tensor, seen: Tensor | None, activation: int) -> tuple[Tensor, Tensor]:
    """The slope[N, F] before an activation, and its sum over rows [F]."""
    from regard.ops.cuda.training_kernels import bias_slope_kernel

    rows, width = slope.shape
    result = torch.empty_like(slope) if activation else slope
    block = {"ROWS": 32, "BLOCK": 64}
    programs = -(-rows // SUMMED)
    partial = slope.new_empty((programs, width), dtype=torch.float32)
    bias_slope_kernel[programs, -(-width // block["BLOCK"])](
        partial, result, slope, seen, rows, width,
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
    table: Tensor,
    tokens: Tensor,
    scale: float,
    add: Tensor | None,
    positions: Tensor,
    dropout: float,
) -> Tensor:
    """dropout(table[tokens] * scale + add[positions]): [N, D], in the shorter format."""
    dropping = Dropout(dropout, table.device)
    out: Tensor = Embed.apply(table, tokens, scale, add, positions, dropping, shorter(table))
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
        dropout: Dropout,
        dtype: torch.dtype,
    ) -> Tensor:
        from regard.ops.cuda.training_kernels import embed_kernel

        rows, width = len(tokens), table.shape[1]
        out = torch.empty((rows, width), dtype=dtype, device=table.device)
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
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        from regard.ops.cuda.training_kernels import embed_slope_kernel

        tokens, positions = ctx.saved_tensors
        rows, width = slope.shape
        block = block_of(width)
        *random, factor = ctx.dropout.arguments
        scaled = torch.empty_like(slope, dtype=torch.float32)
        embed_slope_kernel[programs_for(rows, block)](
            scaled, slope.contiguous(), *random, factor * ctx.scale, rows, width,
            DROP=ctx.dropout.drops, **block,
        )  # fmt: skip
        gather = torch.ops.aten.embedding_dense_backward
        table_slope = gather(scaled, tokens, ctx.sizes[0], -1, False)
        add_slope = None
        if ctx.needs_input_grad[3]:
            add_slope = gather(scaled, positions, ctx.sizes[1], -1, False) / ctx.scale
        return table_slope, None, None, add_slope, None, None, None
