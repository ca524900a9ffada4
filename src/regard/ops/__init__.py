"""Every operation that has more than one implementation.

`reference.py` defines each operation in plain PyTorch. `cpu/` (C++) and `cuda/` (Triton) compute
the same values and gradients faster. `backend` chooses between them; callers never do.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.device import is_current
from regard.ops import reference
from regard.ops.attention import BACKENDS as ATTENTION_BACKENDS
from regard.ops.attention import attention_backend, attention_layout
from regard.ops.cpu import few_rows
from regard.ops.cpu import training as cpu
from regard.ops.cpu.build import library
from regard.ops.cuda import training as cuda
from regard.ops.heads import repeat_heads, split_heads
from regard.ops.layout import Layout, visible
from regard.ops.limits import angles, check_device, check_dtype, segment_means
from regard.ops.losses import CrossEntropy
from regard.ops.overrides import must_be_called

__all__ = [
    "ATTENTION_BACKENDS", "Layout", "add_norm", "angles", "attention_backend", "attention_layout",
    "backend", "cache_dtype", "check_device", "check_dtype", "cross_entropy", "disagreement",
    "divergence", "embed", "linear", "must_be_called", "repeat_heads", "segment_means",
    "split_heads", "visible",
]  # fmt: skip


def backend(x: Tensor, training: bool | None = None) -> ModuleType:
    """The module with the fastest implementations for x: `cuda.training` or `cpu.training` in a
    training step, `cpu.few_rows` for inference on a CPU, else `reference`.

    training: whether this is a training step; by default, whether gradients are enabled.
    """
    if torch.compiler.is_compiling():  # torch.compile cannot trace calls of C++ code
        return reference
    if training is None:
        training = torch.is_grad_enabled()
    if not training:
        return few_rows if x.is_cpu else reference
    if x.dtype in (torch.float32, torch.bfloat16):
        if x.is_cuda and cuda.has_triton() and is_current(x.device):
            return cuda
        if x.is_cpu and library("training") is not None:
            return cpu
    return reference


def implementation(name: str, x: Tensor) -> Callable[..., Any]:
    """An operation of the backend for x, or of the reference if the backend lacks it."""
    return getattr(backend(x), name, None) or getattr(reference, name)


def readable(module: Any) -> bool:
    """Whether kernels, which get the address of a module's weight, can read it: the C++ code
    expects float32."""
    weight = module.weight
    known = weight.dtype == torch.float32 or not weight.is_cpu
    return known and weight.is_contiguous()


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """activation(x Wᵀ + b): x[N, D], weight[V, D], bias[V] -> [N, V].

    activation: a key of `regard.ops.reference.ACTIVATIONS`, or none.
    """
    return implementation("linear", x)(x, weight, bias, activation)


def add_norm(x: Tensor, y: Tensor | None, norm: nn.Module | None, dropout: float = 0.0) -> Tensor:
    """norm(x + dropout(y)), all [N, D]: the residual connection and its norm in one pass.

    y: may be None. norm: an nn.LayerNorm or nn.RMSNorm, or any module if it must be called
    (ops/overrides.py); None returns the sum.
    dropout: the fraction of y that is dropped; 0 outside training.
    """
    if norm is not None and (must_be_called(norm) or not readable(norm)):
        return reference.add_norm(x, y, norm, dropout)
    return implementation("add_norm", x)(x, y, norm, dropout)


def embed(
    table: nn.Embedding, tokens: Tensor, scale: float, rows: Tensor | None, positions: Tensor,
    dropout: float = 0.0, norm: nn.Module | None = None,
) -> Tensor:  # fmt: skip
    """dropout(norm(table[tokens] * scale + rows[positions])): tokens[N], positions[N] -> [N, D].

    rows[T, D]: the encoding of each position; may be None.
    """
    arguments = table, tokens, scale, rows, positions, dropout
    # Only the reference has a norm.
    if norm is not None or must_be_called(table) or not readable(table):
        return reference.embed(*arguments, norm)
    return implementation("embed", table.weight)(*arguments)


def cross_entropy(
    hidden: Tensor, matrix: Tensor, labels: Tensor, smoothing: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the logits hidden[N, D] @ matrix[V, D]ᵀ + bias[V] with labels[N].

    Returns the sums over the N tokens of the loss with label smoothing and of the negative
    log-likelihood, float64 scalars. On a GPU tokens with label -1 are ignored.
    """
    module = backend(hidden, training=True)
    return CrossEntropy.apply(module, hidden, matrix, labels, smoothing, bias)


def divergence(
    first: Tensor, second: Tensor, matrix: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    """R-Drop (Liang et al. 2021): the `disagreement` of two passes with different dropout masks
    about the next token; a token with label -1 does not count."""
    logits, others = (F.linear(vectors, matrix, bias) for vectors in (first, second))
    return disagreement(logits, others, labels >= 0)


def disagreement(first: Tensor, second: Tensor, counted: Tensor | None = None) -> Tensor:
    """The mean of both Kullback-Leibler divergences of logits[N, V], summed over rows.

    counted[N]: the rows that are summed, by default all; otherwise the logits may be overwritten.
    """
    return implementation("disagreement", first)(first, second, counted)


def cache_dtype(weight: Tensor) -> torch.dtype:
    """The dtype of cached keys and values. Attention in bfloat16 is several times slower on a CPU
    than in float32."""
    return torch.float32 if weight.is_cpu and weight.dtype == torch.bfloat16 else weight.dtype
