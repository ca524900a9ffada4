"""Add & norm (section 3.1) with dropout on what is added (section 5.4): one pass over memory.

Three operations on [N, D] that cost bytes, not arithmetic. Written one after the other, each reads
and writes everything again, forward and backward; in training fused.py (on a GPU) and
ops/cpu/training.py (on a CPU) do them in one.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from regard.ops.cpu import training as native
from regard.ops.cuda import training as fused


def add(x: Tensor, y: Tensor, dropout: float) -> Tensor:
    """x + dropout(y), all [N, D]; dropout: the fraction dropped (0: not training)."""
    if fused.can(x):
        return fused.add_and_norm(x, y, None, dropout)
    if native.can(x):
        return native.add_and_norm(x, y, None, dropout)
    return x + F.dropout(y, dropout, dropout > 0)


def add_and_norm(x: Tensor, y: Tensor, norm: nn.Module, dropout: float) -> Tensor:
    """norm(x + dropout(y)), all [N, D]; norm: an nn.LayerNorm or nn.RMSNorm."""
    if fused.can(x):
        return fused.add_and_norm(x, y, norm, dropout)
    if native.can(x):
        return native.add_and_norm(x, y, norm, dropout)
    return norm(add(x, y, dropout))


def normalised(x: Tensor, norm: nn.Module) -> Tensor:
    """norm(x), [N, D]."""
    if fused.can(x):
        return fused.add_and_norm(x, None, norm, 0.0)
    if native.can(x):
        return native.add_and_norm(x, None, norm, 0.0)
    normed: Tensor = norm(x)
    return normed
