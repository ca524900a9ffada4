"""The definition of every operation in plain PyTorch.

The other backends (`cpu`, `cuda`, and `padded` for attention) compute the same functions faster;
tests/ops compares each of them with this file, forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.device import wide_dtype

PIECE = 1 << 22  # logits that `losses` processes at once
ALIGNMENT = 1  # the size of a row of logits is a multiple of this
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x Wᵀ + b): x[N, D], weight[V, D], bias[V] -> [N, V]."""
    return ACTIVATIONS[activation](F.linear(x, weight, bias))


def add_norm(x: Tensor, y: Tensor | None, norm: nn.Module | None, dropout: float) -> Tensor:
    """norm(x + dropout(y)), all [N, D] (sections 3.1 and 5.4)."""
    if y is not None:
        x = x + F.dropout(y, dropout, dropout > 0)
    return x if norm is None else norm(x)


def embed(
    table: nn.Embedding, tokens: Tensor, scale: float, rows: Tensor | None, positions: Tensor,
    dropout: float, norm: nn.Module | None = None,
) -> Tensor:  # fmt: skip
    """dropout(norm(table[tokens] * scale + rows[positions])): [N, D] (sections 3.4 and 3.5)."""
    x: Tensor = table(tokens)
    if scale != 1:
        x = x * scale
    if rows is not None:
        x = x + F.embedding(positions, rows.to(x.dtype))
    if norm is not None:
        x = norm(x)
    return F.dropout(x, dropout, dropout > 0)


# ---- attention ------------------------------------------------------------------------------


def scaled_scores(query: Tensor, key: Tensor) -> Tensor:
    """Q K^T / sqrt(K) of one sequence: [n, H, K], [m, H, K] -> [H, n, m]."""
    scores = query.transpose(0, 1) @ key.permute(1, 2, 0)  # [H, n, m]
    return scores / math.sqrt(query.shape[-1])


def attention_weights(query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
    """The weight of each key of one sequence for each query: [H, n, m]; rows sum to 1.

    visible[n, m]: True where a query may attend to a key.
    """
    return scaled_scores(query, key).masked_fill(~visible, -math.inf).softmax(dim=-1)


def attention(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, dropout: float = 0.0
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V of one sequence (section 3.2): [n, H, K], [m, H, K] twice ->
    [n, H, K]."""
    weights = F.dropout(attention_weights(query, key, visible), dropout)  # [H, n, m]
    return (weights @ value.transpose(0, 1)).transpose(0, 1)  # [H, n, K] -> [n, H, K]


# ---- losses ---------------------------------------------------------------------------------


def cross_entropy(
    hidden: Tensor, matrix: Tensor, labels: Tensor, smoothing: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """hidden[N, D], matrix[V, D], labels[N], bias[V] -> sums over tokens of the cross-entropy with
    label smoothing (section 5.4), and of the negative log-likelihood."""
    logarithms, wide = F.linear(hidden, matrix, bias).log_softmax(-1), wide_dtype(hidden.device)
    likelihood = -logarithms.gather(1, labels[:, None]).sum(dtype=wide)
    uniform = -logarithms.mean(-1).sum(dtype=wide)
    return (1 - smoothing) * likelihood + smoothing * uniform, likelihood.detach()


def token_losses(
    logits: Tensor, labels: Tensor, smoothing: float, needs_gradient: bool, vocabulary: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The two sums of `cross_entropy` for logits[n, V], and the gradient of the first.

    The gradient, softmax - smoothed target, is [n, V] and may overwrite the logits.
    """
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    total, wide = logits.logsumexp(-1), wide_dtype(logits.device)  # [n]
    label = labels[:, None]
    negative = total - logits.gather(1, label).squeeze(1)
    loss = ((1 - smoothing) * negative).sum(dtype=wide)
    if smoothing:
        loss += (smoothing * (total - logits.mean(-1))).sum(dtype=wide)
    if needs_gradient:
        logits.sub_(total[:, None]).exp_()
        if smoothing:
            logits.sub_(smoothing / vocabulary)
        logits.scatter_add_(1, label, torch.full_like(logits[:, :1], smoothing - 1))
    return loss, negative.sum(dtype=wide), logits


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of the weights of a product: gradient[N, V], x[N, D] -> [V, D], float32."""
    return (gradient.t() @ x).float()


def disagreement(first: Tensor, second: Tensor, counted: Tensor | None) -> Tensor:
    """R-Drop (Liang et al. 2021): the mean of both Kullback-Leibler divergences of logits[N, V].

    counted[N]: the rows that are summed, by default all.
    """
    p, q = (logits.float().log_softmax(-1) for logits in (first, second))
    rows = ((p.exp() - q.exp()) * (p - q)).sum(-1, dtype=wide_dtype(first.device))  # [N]
    return 0.5 * (rows if counted is None else rows * counted).sum()
