"""x Wᵀ + b, with the few rows of a decoding step in mind.

A step multiplies one row for each hypothesis with every weight of the decoder: the time is that
of reading the weights. PyTorch's library reads them on one core when there is one row, and badly
when there are a few; asked for W xᵀ instead, it is up to four times as fast on a CPU
(`python -m benchmarks product`). The result is the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.ops.cpu import training as native
from regard.ops.cuda import training as fused

FEW_ROWS = 16  # from about 32 on turning the result over costs what was won
MOST_COLUMNS = 256  # from about here on both ways of a product cost the same

ColumnProduct = Callable[[Tensor], Tensor]  # [D, N] -> [V, N]


def column_product(weight: Tensor, bias: Tensor | None, rows: int) -> ColumnProduct:
    """weight[V, D] times columns [D, N] plus bias, the fastest way that is known for N rows."""
    size, width = weight.shape
    if weight.dtype != torch.float32 or weight.device.type != "cpu" or rows > MOST_COLUMNS:
        return lambda x: F.linear(x.t(), weight, bias).t()
    column = (weight.new_zeros(1).expand(size) if bias is None else bias)[:, None]
    if rows >= 32:
        return lambda x: torch.addmm(column, weight, x)
    # For few columns the library is two to three times as fast if each lies in one piece.
    if rows > 1 or size % 2:
        return lambda x: torch.addmm(column, weight, x.t().contiguous().t())
    # One: the halves of W as a batch, one for each core.
    halves, halved = weight.view(2, size // 2, width), column.view(2, -1, 1)
    return lambda x: torch.baddbmm(halved, halves, x.reshape(1, width).t().expand(2, -1, -1)).view(
        size, 1
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x[N, D], weight[V, D], bias[V] -> [N, V]."""
    if fused.can_multiply(x):
        return fused.product(x, weight, bias)
    if native.can_multiply(x):
        return native.product(x, weight, bias)
    if len(x) > FEW_ROWS or x.dim() != 2 or torch.is_grad_enabled() or x.dtype != weight.dtype:
        return F.linear(x, weight, bias)
    return column_product(weight, bias, len(x))(x.t()).t().contiguous()


class Linear(nn.Linear):
    """nn.Linear that is also fast for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def activated(linear: Linear, x: Tensor, activation: str) -> Tensor:
    """ReLU or GELU of linear(x)."""
    if fused.can_multiply(x):
        return fused.product(x, linear.weight, linear.bias, activation)
    if native.can_multiply(x) and activation == "relu":
        return native.product(x, linear.weight, linear.bias, relu=True)
    return F.relu(linear(x)) if activation == "relu" else F.gelu(linear(x))
