"""Cross-entropy with label smoothing (section 5.4), straight from the last layer's vectors.

The logits of a batch, N x V numbers, are the largest tensor of a training step by far, and
nothing needs them once the loss and its gradient are known. So they are made in pieces, and each
piece is turned into its share of the gradient at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PIECE = 1 << 22  # logits at a time


class SmoothedCrossEntropy(torch.autograd.Function):
    """hidden[N, D], matrix[V, D], labels[N], bias[V] -> the sum over tokens of the smoothed loss,
    and of the plain negative log-likelihood, which has no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        matrix: Tensor,
        labels: Tensor,
        smoothing: float,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        needed = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        with torch.autocast(kind, enabled=False):
            vectors, rows = hidden.to(dtype), matrix.to(dtype)
            vector_gradient = torch.empty_like(vectors) if needed else None
            matrix_gradient = torch.zeros_like(matrix) if needed else None
            bias_gradient = None if bias is None or not needed else torch.zeros_like(bias)
            add = None if bias is None else bias.to(dtype)
            loss = hidden.new_zeros((), dtype=torch.float64)
            likelihood = torch.zeros_like(loss)
            vocabulary = len(matrix)
            for piece in torch.arange(len(hidden)).split(max(1, PIECE // vocabulary)):
                n = slice(int(piece[0]), int(piece[-1]) + 1)
                x = vectors[n]
                slope = F.linear(x, rows, add)  # [n, V]: logits so far
                slope = losses(slope, labels[n], smoothing, needed, loss, likelihood)
                if vector_gradient is not None and matrix_gradient is not None:
                    if bias_gradient is not None:
                        bias_gradient += slope.sum(0)
                    slope = slope.to(dtype)
                    torch.mm(slope, rows, out=vector_gradient[n])
                    if dtype == matrix.dtype:
                        matrix_gradient.addmm_(slope.t(), x)
                    else:
                        matrix_gradient += slope.t() @ x
        ctx.save_for_backward(vector_gradient, matrix_gradient, bias_gradient)
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        vector_gradient, matrix_gradient, bias_gradient = ctx.saved_tensors
        return (
            (vector_gradient * slope).to(ctx.dtype),
            matrix_gradient * slope.to(matrix_gradient.dtype),
            None,
            None,
            None if bias_gradient is None else bias_gradient * slope.to(bias_gradient.dtype),
        )


def losses(
    logits: Tensor, labels: Tensor, smoothing: float, needed: bool, loss: Tensor, likelihood: Tensor
) -> Tensor:
    """Add the sums over logits[n, V] and labels[n] to the two scalars. If the gradient is needed,
    give back d loss / d logits = softmax - smoothed target; it may lie where the logits were."""
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    total = logits.logsumexp(-1)  # [n]
    wanted = labels[:, None]
    negative = total - logits.gather(1, wanted).squeeze(1)
    likelihood += negative.sum(dtype=torch.float64)
    loss += ((1 - smoothing) * negative).sum(dtype=torch.float64)
    if smoothing:
        loss += (smoothing * (total - logits.mean(-1))).sum(dtype=torch.float64)
    if not needed:
        return logits
    slope = logits.sub_(total[:, None]).exp_()
    if smoothing:
        slope.sub_(smoothing / logits.shape[-1])
    return slope.scatter_add_(1, wanted, torch.full_like(slope[:, :1], smoothing - 1))


def cross_entropy(
    hidden: Tensor, matrix: Tensor, labels: Tensor, smoothing: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums over the N tokens: (smoothed loss, negative log-likelihood), float64 scalars."""
    loss, likelihood = SmoothedCrossEntropy.apply(hidden, matrix, labels, smoothing, bias)
    return loss, likelihood


def divergence(first: Tensor, second: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """R-Drop (Liang et al. 2021): how much two passes with other dropouts disagree; the sum over
    tokens of the mean of both Kullback-Leibler divergences."""
    return disagreement(F.linear(first, matrix, bias), F.linear(second, matrix, bias))


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """The same of logits."""
    p, q = (logits.float().log_softmax(-1) for logits in (first, second))
    return 0.5 * ((p.exp() - q.exp()) * (p - q)).sum(dtype=torch.float64)
