"""Sentence pairs of uneven length, and the floor that no implementation can be under."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from regard import ModelConfig, Packed

MEAN, LONGEST = 26, 100  # tokens of a sentence, log-normal
POOL = 40  # batches to choose from: the more, the more alike the sentences of a sorted batch


def batches(
    config: ModelConfig, tokens: int, number: int, sort: bool, seed: int = 0
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """`number` batches of about `tokens` real target tokens, as (sources, targets).

    sort: a batch holds sentences of similar length, as every toolkit that pads does it;
    otherwise they come as they come.
    """
    random = torch.Generator().manual_seed(seed)
    count = max(number, POOL) * tokens // MEAN
    spread = 0.6
    size = torch.empty(count).log_normal_(math.log(MEAN) - spread**2 / 2, spread, generator=random)
    target = size.round().clamp(1, LONGEST).long()
    noise = torch.empty(count).normal_(1, 0.15, generator=random)
    source = (target * noise).round().clamp(1, LONGEST).long()
    order = target.argsort() if sort else torch.arange(count)
    made: list[tuple[list[Tensor], list[Tensor]]] = []
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
            made.append((sides[0], sides[1]))
            chosen, total = [], 0
    # spread over the whole range of lengths, not only the shortest
    step = max(1, len(made) // number)
    return made[step // 2 :: step][:number]


def operations(config: ModelConfig, source: Packed, target: Packed) -> float:
    """Floating-point operations of forward and backward: 6 for each weight and token, and
    attention's 12 H K for each pair of a query and a key that sees it."""
    d, width = config.d_model, config.heads * config.head_size
    gates = 3 if config.activation == "swiglu" else 2
    attention, feed_forward = 4 * d * width, gates * d * config.d_ff
    encoder, decoder = config.encoder_layers, config.decoder_layers
    n, m = len(target.tokens), len(source.tokens)
    weights = encoder * m * (attention + feed_forward)
    weights += decoder * (n * (attention + feed_forward) + n * 2 * d * width + m * 2 * d * width)
    weights += n * config.vocabulary_size * d
    pairs = encoder * sum(length**2 for length in source.lengths)
    pairs += decoder * sum(length * (length + 1) // 2 for length in target.lengths)
    pairs += decoder * sum(s * t for s, t in zip(source.lengths, target.lengths, strict=True))
    return 6.0 * weights + 12.0 * pairs * width


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product: what the machine can do, measured here."""
    size = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = math.inf
    for _ in range(6):
        synchronise(device)
        start = time.perf_counter()
        a @ b
        synchronise(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
