"""The batches that a training step reads, and the losses of all tasks.

A loss is a function `loss(model, batch, smoothing, r_drop)` (see `Loss`) that returns sums over the
predictions of a batch. The trainer adds up the sums of all rows and processes and divides once, so
that every prediction of a step has the same weight. A task names its loss: `token_loss` for
predictions that are tokens, `classification_loss` for classes, `similarity_loss` for vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.device import wide_dtype
from regard.errors import InputError
from regard.model.overrides import calls_head
from regard.model.stack import Plans
from regard.model.transformer import Transformer
from regard.ops import cross_entropy, disagreement, divergence
from regard.text.batching import Packed


@dataclass(frozen=True)
class Batch:
    """The examples of one packed row: the inputs of the stacks, and the labels of the head."""

    source: Packed | None  # input of the encoder
    target: Packed | None  # input of the decoder
    labels: Tensor  # [T]: token ids or classes
    where: Tensor | None = None  # [T]: the tokens whose vectors are used; None: all tokens
    plans: Plans | None = None  # of attention, if they were made in advance

    @property
    def tokens(self) -> int:
        """The number T of predictions, which the sums of the loss are divided by."""
        return len(self.labels)


@dataclass(frozen=True)
class Pairs:
    """The sentences of B pairs in one packed row: all first sentences, then all second ones, then
    all negative examples, if each pair has one."""

    source: Packed | None  # input of the encoder
    target: Packed | None  # input of the decoder
    scores: Tensor | None  # [B]: how similar the sentences of each pair are
    same: Tensor  # [B, B]: where two pairs share a sentence, so that neither is a negative example
    same_negative: Tensor | None = None  # [B, B]: where pair i has the negative example of pair j

    @property
    def tokens(self) -> int:
        """The number B of pairs, which the sums of the loss are divided by."""
        return len(self.same)


class Loss(Protocol):
    def __call__(
        self, model: Transformer, batch: Any, smoothing: float = 0.0, r_drop: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The loss to minimise, and the negative log-likelihood of the labels without gradient:
        two scalars, sums over the predictions of the batch."""
        ...


def token_loss(
    model: Transformer, batch: Batch, smoothing: float = 0.0, r_drop: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the T tokens of a batch (section 5.4 of the paper).

    The logits [T, V] are never stored as a whole (ops/losses.py). On a GPU, a token whose
    label is -1 does not count.

    Args:
        model: a model with a language-model or masked-language-model head.
        batch: `labels` [T] are token ids, and `where` [T] the positions that predict them.
        smoothing: label smoothing, the probability that is spread over the vocabulary.
        r_drop: the weight of R-Drop; 0: without it.

    Returns:
        Two float64 scalars, sums over the T tokens: the loss and the negative log-likelihood.
    """
    if calls_head(model):
        return logit_loss(model, batch, smoothing, r_drop)
    matrix, bias = model.output_matrix(), model.head.bias

    def vectors() -> Tensor:
        hidden = model.hidden(batch.source, batch.target, plans=batch.plans)  # [N, D]
        return model.head.words(hidden if batch.where is None else hidden[batch.where])

    def criterion(vectors: Tensor) -> tuple[Tensor, Tensor]:
        return cross_entropy(vectors, matrix, batch.labels, smoothing, bias)

    def distance(first: Tensor, second: Tensor) -> Tensor:
        return divergence(first, second, matrix, bias, batch.labels)

    return with_r_drop(vectors, criterion, distance, r_drop)


def logit_loss(
    model: Transformer, batch: Batch, smoothing: float, r_drop: float
) -> tuple[Tensor, Tensor]:
    """`token_loss` from the logits [T, V] of a call of the model, which are stored as a whole. It
    is used if a user has changed the head, for example by a hook.

    Args:
        model: as in `token_loss`.
        batch: as in `token_loss`.
        smoothing: as in `token_loss`.
        r_drop: as in `token_loss`.

    Returns:
        As `token_loss`.
    """

    def logits() -> Tensor:
        logits = model(batch.source, batch.target).float()
        return logits if batch.where is None else logits[batch.where]

    def criterion(logits: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing)
        likelihood = F.cross_entropy(logits.detach(), batch.labels, reduction="sum")
        wide = wide_dtype(logits.device)
        return loss.to(wide), likelihood.to(wide)

    return with_r_drop(logits, criterion, disagreement, r_drop)


def classification_loss(
    model: Transformer, batch: Batch, smoothing: float = 0.0, r_drop: float = 0.0,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Cross-entropy of the classes of B texts.

    Args:
        model: a model with a classifier head.
        batch: `labels` [B] are the numbers of the classes.
        smoothing: label smoothing, the probability that is spread over the classes.
        r_drop: the weight of R-Drop; 0: without it.
        weights: [classes]: a factor for the loss of each class; None: 1 for all classes.

    Returns:
        Two scalars, sums over the B texts: the weighted loss and the negative log-likelihood,
        which is not weighted.
    """
    labels = batch.labels
    weights = None if weights is None else weights.to(labels.device)

    def logits() -> Tensor:
        return model(batch.source).float()  # [B, classes]

    def criterion(logits: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(logits, labels, weights, reduction="sum", label_smoothing=smoothing)
        return loss, F.cross_entropy(logits.detach(), labels, reduction="sum")

    return with_r_drop(logits, criterion, disagreement, r_drop)


def similarity_loss(
    model: Transformer, batch: Pairs, smoothing: float = 0.0, r_drop: float = 0.0,
    scale: float = 20.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Contrastive loss of B pairs of sentences, or the CoSENT loss of pairs with scores.

    Without scores, the sentences of a pair belong together, and all other sentences of the batch
    are negative examples. If each pair has a further negative example, the first sentence of every
    pair is also compared with all of these. With scores, only their order counts: a pair with a
    higher score should have a higher cosine (Su 2022).

    Args:
        model: a model with a pooling head.
        batch: the pairs, with scores or without; without scores, maybe with negative examples.
        smoothing: label smoothing, the probability that is spread over the batch; without scores
            only.
        r_drop: must be 0, because this loss has no probabilities that R-Drop could compare.
        scale: a factor for the cosines before the softmax.

    Returns:
        Two equal scalars, the second without gradient: the mean over the pairs times B, so that
        every pair of a training step has the same weight.
    """
    if r_drop:
        raise InputError("the similarity loss has no R-Drop: set training.r_drop=0")
    vectors = F.normalize(model(batch.source, batch.target).float(), dim=-1)  # [2B or 3B, D]
    a, b, *negatives = vectors.split(batch.tokens)
    if batch.scores is None:
        similarity = scale * a @ b.t()  # [B, B]
        out = batch.same & ~torch.eye(len(a), dtype=torch.bool, device=a.device)
        forward, left_out = similarity, out
        if batch.same_negative is not None:  # each a among all b and all negative examples
            forward = torch.cat([similarity, scale * a @ negatives[0].t()], dim=1)  # [B, 2B]
            left_out = torch.cat([out, batch.same_negative], dim=1)
        loss = similarity.new_zeros(())
        # Each a among all b, then each b among all a.
        for each, masked in ((forward, left_out), (similarity.t(), out)):
            logprobs = each.masked_fill(masked, -torch.inf).log_softmax(-1)
            # Not F.cross_entropy, because smoothing must ignore the masked entries as well.
            uniform = logprobs.masked_fill(masked, 0).sum(-1) / (~masked).sum(-1)
            smoothed = (1 - smoothing) * logprobs.diagonal() + smoothing * uniform
            loss = loss - 0.5 * smoothed.sum()
    else:
        cosine = scale * (a * b).sum(-1)  # [B]
        higher = batch.scores[:, None] > batch.scores  # [B, B]: pair i has a higher score than j
        excess = (cosine - cosine[:, None])[higher]
        loss = len(a) * torch.cat([excess.new_zeros(1), excess]).logsumexp(0)
    return loss, loss.detach()


def with_r_drop(
    forward: Callable[[], Tensor], criterion: Callable[[Tensor], tuple[Tensor, Tensor]],
    distance: Callable[[Tensor, Tensor], Tensor], weight: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss of one forward pass or, if `weight` is not 0, of R-Drop (Liang et al. 2021): the
    mean loss of two passes with different dropout, plus `weight` times their divergence.

    Args:
        forward: computes the output of a forward pass.
        criterion: computes the loss and the negative log-likelihood of an output.
        distance: computes the divergence of two outputs.
        weight: the weight of the divergence.

    Returns:
        The loss, and the negative log-likelihood of the first pass.
    """
    first = forward()
    loss, likelihood = criterion(first)
    if weight:
        second = forward()
        loss = 0.5 * (loss + criterion(second)[0]) + weight * distance(first, second)
    return loss, likelihood
