"""x Wᵀ + b for the few rows of a decoding step on a CPU, in PyTorch.

A decoding step multiplies one row for each hypothesis with every weight of the decoder, so its time
is that of reading the weights. PyTorch reads them on one core when there is one row, and slowly
when there are a few; W xᵀ instead is up to four times as fast (`python -m benchmarks product`). The
results are equal up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops import reference

FEW_ROWS = 16  # with more rows, transposing the result takes longer than the product saves


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """`reference.linear`."""
    known = x.dim() == 2 and x.dtype == weight.dtype == torch.float32
    if not known or len(x) > FEW_ROWS:
        return reference.linear(x, weight, bias, activation)
    size, width = weight.shape
    column = (weight.new_zeros(1).expand(size) if bias is None else bias)[:, None]
    if len(x) > 1 or size % 2:  # the library is two to three times as fast if rows are contiguous
        out = torch.addmm(column, weight, x.contiguous().t())
    else:  # one row: the halves of W as a batch, one for each core
        halves, biases = weight.view(2, size // 2, width), column.view(2, -1, 1)
        out = torch.baddbmm(biases, halves, x.reshape(1, width).t().expand(2, -1, -1)).view(size, 1)
    return reference.ACTIVATIONS[activation](out.t().contiguous())
