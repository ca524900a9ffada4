"""Add & norm (section 3.1) with dropout on what is added (section 5.4): one pass over memory.

Three operations on [N, D] that cost bytes, not arithmetic. Written one after the other, each reads
and writes everything again, forward and backward.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


def add(x: Tensor, y: Tensor, dropout: float) -> Tensor:
    """x + dropout(y), all [N, D]; dropout: the fraction dropped (0: not training)."""
    return x + F.dropout(y, dropout, dropout > 0)


def add_and_norm(x: Tensor, y: Tensor, norm: nn.Module, dropout: float) -> Tensor:
    """norm(x + dropout(y)), all [N, D]; norm: an nn.LayerNorm or nn.RMSNorm."""
    return norm(add(x, y, dropout))
