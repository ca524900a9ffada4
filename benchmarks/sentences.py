"""Random sentence pairs of different lengths."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import ModelConfig

MEAN, LONGEST = 26, 100  # tokens of a sentence, log-normal
POOL = 40  # batches to choose from; with more, the lengths in a sorted batch are more similar


def batches(
    config: ModelConfig, tokens: int, number: int, sort: bool, seed: int = 0
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """`number` batches of about `tokens` real target tokens, as (sources, targets).

    Args:
        sort: batches contain sentences of similar length, as in every toolkit that pads; otherwise
            the order is random.
    """
    random = torch.Generator().manual_seed(seed)
    count = max(number, POOL) * tokens // MEAN
    spread = 0.6
    size = torch.empty(count).log_normal_(math.log(MEAN) - spread**2 / 2, spread, generator=random)
    target = size.round().clamp(1, LONGEST).long()
    noise = torch.empty(count).normal_(1, 0.15, generator=random)
    source = (target * noise).round().clamp(1, LONGEST).long()
    order = target.argsort() if sort else torch.arange(count)
    candidates: list[tuple[list[Tensor], list[Tensor]]] = []
    chosen: list[int] = []
    total = 0
    for i in order.tolist():
        chosen.append(i)
        total += int(target[i])
        if total >= tokens:
            sides = [
                [torch.randint(vocabulary, (int(length[j]),), generator=random) for j in chosen]
                for length, vocabulary in (
                    (source, config.source_vocabulary_size),
                    (target, config.vocabulary_size),
                )
            ]
            candidates.append((sides[0], sides[1]))
            chosen, total = [], 0
    # spread over the whole range of lengths, not only the shortest
    step = max(1, len(candidates) // number)
    return candidates[step // 2 :: step][:number]
