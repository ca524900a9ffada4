"""Cross-entropy with label smoothing (section 5.4), straight from the last layer's vectors.

The logits of a batch, N x V numbers, are the largest tensor of a training step by far, and
nothing needs them once the loss and its gradient are known. So they are made in pieces, and each
piece is turned into its share of the gradient at once; on a GPU in place and in bfloat16, by a
kernel that reads a piece once or twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.ops.cpu import training as native
from regard.ops.cuda import training as fused

PIECE = 1 << 22  # logits at a time
NATIVE_PIECE = 1 << 26  # in C++, which needs no copies of them: larger products are faster
FUSED_PIECE = 1 << 29  # on a GPU, where every piece costs a pass over the matrix's gradient
ALIGNED = 64  # on a GPU rows of logits have a multiple of so many: else products are slow


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
        fuses = fused.can_ever(hidden)
        vocabulary = len(matrix)
        holes = -vocabulary % ALIGNED if fuses else 0
        piece = NATIVE_PIECE if native.can_ever(hidden) else FUSED_PIECE if fuses else PIECE
        size = max(1, piece // (vocabulary + holes))
        with torch.autocast(kind, enabled=False):
            vectors, rows = hidden.to(dtype), fused.rounded(matrix, dtype)
            add = None if bias is None else bias.to(dtype)
            if holes:
                rows = F.pad(rows, (0, 0, 0, holes))
                add = None if add is None else F.pad(add, (0, holes))
            vector_gradient = torch.empty_like(vectors) if needed else None
            matrix_gradient = torch.zeros_like(rows, dtype=matrix.dtype) if needed else None
            bias_gradient = None if add is None else torch.zeros_like(add, dtype=matrix.dtype)
            loss = hidden.new_zeros((), dtype=torch.float64)
            likelihood = torch.zeros_like(loss)
            for start in range(0, len(hidden), size):
                n = slice(start, start + size)
                x = vectors[n]
                slope = F.linear(x, rows, add)  # [n, V]: logits so far
                rest = labels[n], smoothing, needed, loss, likelihood
                slope = fused_losses(slope, *rest, vocabulary) if fuses else losses(slope, *rest)
                if vector_gradient is not None and matrix_gradient is not None:
                    if bias_gradient is not None:
                        bias_gradient += slope.sum(0, dtype=bias_gradient.dtype)
                    slope = slope.to(dtype)
                    torch.mm(slope, rows, out=vector_gradient[n])
                    if dtype == matrix.dtype:
                        matrix_gradient.addmm_(slope.t(), x)
                    elif fuses:
                        more = torch.mm(slope.t(), x, out_dtype=matrix.dtype)
                        matrix_gradient = matrix_gradient.add_(more) if start else more
                    else:
                        matrix_gradient += slope.t() @ x
        real = (None if x is None else x[:vocabulary] for x in (matrix_gradient, bias_gradient))
        ctx.save_for_backward(vector_gradient, *real)
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
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    needed: bool,
    loss: Tensor,
    likelihood: Tensor,
) -> Tensor:
    """Add the sums over logits[n, V] and labels[n] to the two scalars. If the gradient is needed,
    give back d loss / d logits = softmax - smoothed target; it may lie where the logits were."""
    if native.can_ever(logits):
        negative, uniform = native.losses(logits, labels, smoothing, needed)
        likelihood += negative.sum(dtype=torch.float64)
        loss += ((1 - smoothing) * negative + smoothing * uniform).sum(dtype=torch.float64)
        return logits
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


def fused_losses(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    needed: bool,
    loss: Tensor,
    likelihood: Tensor,
    vocabulary: int,
) -> Tensor:
    """The same on a GPU, where a row of logits may be longer than the vocabulary, and a token whose
    label is -1 is not asked."""
    from regard.ops.cuda.loss_kernels import loss_kernel

    found = torch.empty((len(logits), 2), dtype=torch.float32, device=logits.device)
    loss_kernel[(len(logits),)](
        logits, found, labels, smoothing, vocabulary, logits.shape[1],
        SLOPE=needed, DEPTH=2, LANES=2048, num_warps=8,
    )  # fmt: skip
    sums = found.sum(0, dtype=torch.float64)
    loss += sums[0]
    likelihood += sums[1]
    return logits


def cross_entropy(
    hidden: Tensor, matrix: Tensor, labels: Tensor, smoothing: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sums over the N tokens: (smoothed loss, negative log-likelihood), float64 scalars."""
    loss, likelihood = SmoothedCrossEntropy.apply(hidden, matrix, labels, smoothing, bias)
    return loss, likelihood


def divergence(
    first: Tensor, second: Tensor, matrix: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    """R-Drop (Liang et al. 2021): how much two passes with other dropouts disagree about words; a
    token whose label is -1 is not asked."""
    logits, others = (F.linear(vectors, matrix, bias) for vectors in (first, second))
    return disagreement(logits, others, labels >= 0)


def disagreement(first: Tensor, second: Tensor, asked: Tensor | None = None) -> Tensor:
    """Of logits[N, V]: the sum over rows of the mean of both Kullback-Leibler divergences."""
    if fused.can(first) and asked is not None:
        found: Tensor = FusedDisagreement.apply(first, second, asked)
        return found
    p, q = (logits.float().log_softmax(-1) for logits in (first, second))
    rows = ((p.exp() - q.exp()) * (p - q)).sum(-1, dtype=torch.float64)  # [N]
    return 0.5 * (rows if asked is None else rows * asked).sum()


class FusedDisagreement(torch.autograd.Function):
    """The same on a GPU: the gradients take the place of the logits, which nobody else needs."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, asked: Tensor) -> Tensor:
        from regard.ops.cuda.loss_kernels import disagreement_kernel

        rows, vocabulary = first.shape
        found = torch.empty(rows, dtype=torch.float32, device=first.device)
        disagreement_kernel[(rows,)](
            first, second, found, asked, vocabulary, LANES=2048, num_warps=8
        )
        ctx.save_for_backward(first, second)
        return found.sum(dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        first, second = ctx.saved_tensors
        slope = slope.to(first.dtype)
        return first * slope, second * slope, None
