"""Cross-entropy with label smoothing (section 5.4), computed from the last layer's vectors.

The logits of a batch, N x V numbers, are by far the largest tensor of a training step. They are
only needed for the loss and its gradient, so they are computed in pieces, and the gradient of each
piece is computed immediately.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.device import wide_dtype
from regard.ops.common import autocast_dtype, cast


class CrossEntropy(torch.autograd.Function):
    """`reference.cross_entropy` in pieces; the negative log-likelihood has no gradient.

    backend: the module whose `token_losses` and `weight_gradient` process a piece.
    """

    @staticmethod
    def forward(
        ctx: Any, backend: ModuleType, hidden: Tensor, matrix: Tensor, labels: Tensor,
        smoothing: float, bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        dtype = autocast_dtype(hidden)
        needs_gradient = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        vocabulary = len(matrix)
        holes = -vocabulary % backend.ALIGNMENT
        size = max(1, backend.PIECE // (vocabulary + holes))
        with torch.autocast(hidden.device.type, enabled=False):
            vectors, weight = hidden.to(dtype), cast(matrix, dtype)
            shift = None if bias is None else bias.to(dtype)
            if holes:
                weight = F.pad(weight, (0, 0, 0, holes))
                shift = None if shift is None else F.pad(shift, (0, holes))
            vector_gradient = matrix_gradient = None
            if needs_gradient:
                vector_gradient = torch.empty_like(vectors)
                matrix_gradient = torch.zeros_like(weight, dtype=matrix.dtype)
            bias_gradient = None if shift is None else torch.zeros_like(shift, dtype=matrix.dtype)
            loss = hidden.new_zeros((), dtype=wide_dtype(hidden.device))
            likelihood = torch.zeros_like(loss)
            for start in range(0, len(hidden), size):
                n = slice(start, start + size)
                x = vectors[n]
                more_loss, more_likelihood, gradient = backend.token_losses(
                    F.linear(x, weight, shift), labels[n], smoothing, needs_gradient, vocabulary
                )
                loss += more_loss
                likelihood += more_likelihood
                if vector_gradient is None or matrix_gradient is None:
                    continue
                if bias_gradient is not None:
                    bias_gradient += gradient.sum(0, dtype=bias_gradient.dtype)
                gradient = gradient.to(dtype)
                torch.mm(gradient, weight, out=vector_gradient[n])
                if dtype == matrix.dtype:
                    matrix_gradient.addmm_(gradient.t(), x)
                else:
                    more = backend.weight_gradient(gradient, x)
                    matrix_gradient = matrix_gradient.add_(more) if start else more
        real = (None if x is None else x[:vocabulary] for x in (matrix_gradient, bias_gradient))
        ctx.save_for_backward(vector_gradient, *real)
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        vector_gradient, matrix_gradient, bias_gradient = ctx.saved_tensors
        if bias_gradient is not None:
            bias_gradient = bias_gradient * gradient.to(bias_gradient.dtype)
        vector_gradient = (vector_gradient * gradient).to(ctx.dtype)
        matrix_gradient = matrix_gradient * gradient.to(matrix_gradient.dtype)
        return None, vector_gradient, matrix_gradient, None, None, bias_gradient
