"""Helpers of the `cpu` and `cuda` backends: dtypes, codes in kernels, and copies of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

# Codes of norms (0: none) and of activations in the C++ code and in the Triton kernels.
LAYER, RMS = 1, 2
ACTIVATION_CODES = {"none": 0, "relu": 1, "gelu": 2, "swiglu": 3, "gelu-tanh": 4, "silu": 5}

# Copies of parameters in the autocast dtype, by the id of the parameter; set by `cast_once`.
_copies: ContextVar[Mapping[int, Tensor] | None] = ContextVar("_copies", default=None)


def in_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of x."""
    return torch.is_autocast_enabled(x.device.type)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype of products with x: the autocast dtype, or the dtype of x."""
    return torch.get_autocast_dtype(x.device.type) if in_autocast(x) else x.dtype


def norm_inputs(
    x: Tensor, y: Tensor | None, norm: nn.Module | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, int, float]:
    """x and y in the autocast dtype, then gain, shift, kind and epsilon of the norm."""
    x = x.to(autocast_dtype(x)).contiguous()
    y = None if y is None else y.to(x.dtype).contiguous()
    if norm is None:
        return x, y, None, None, 0, 0.0
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    if isinstance(norm, nn.LayerNorm):
        return x, y, norm.weight, norm.bias, LAYER, norm.eps
    return x, y, norm.weight, None, RMS, norm.eps or 0.0


@contextmanager
def cast_once(parameters: Sequence[Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Copy all parameters at once; inside this block `cast` uses the copies."""
    copies = [torch.empty_like(p, dtype=dtype) for p in parameters]
    if copies:
        torch._foreach_copy_(copies, [p.detach() for p in parameters])
    token = _copies.set({id(p): copy for p, copy in zip(parameters, copies, strict=True)})
    try:
        yield
    finally:
        _copies.reset(token)


def cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A parameter, or a part of one, in another dtype."""
    base = weight if weight._base is None else weight._base
    copy = (_copies.get() or {}).get(id(base))
    if copy is None or copy.dtype != dtype:
        return weight.to(dtype)
    return copy.as_strided(weight.shape, weight.stride(), weight.storage_offset())
