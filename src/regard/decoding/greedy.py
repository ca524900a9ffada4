"""The most probable token, again and again, for many sentences at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.model.transformer import Transformer
from regard.text.batching import Packed


@torch.no_grad()
def greedy(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    bos: int,
    eos: int,
    more: int,
    batch_tokens: int = 4096,
) -> list[list[int]]:
    """Token ids of the answers, in the order of the sources; each has at most `more` tokens more
    than its source."""
    device = model.table("target").weight.device
    answers: list[list[int]] = [[] for _ in sources]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]), reverse=True)
    while order:
        size = max(1, batch_tokens // len(sources[order[0]]))
        batch, order = order[:size], order[size:]
        source = Packed.of([sources[i] for i in batch]).to(device)
        limits = [len(sources[i]) + more for i in batch]
        cache = model.start(max(limits), source)
        newest = [bos] * len(batch)
        open_ = set(range(len(batch)))
        while open_:
            row = Packed.of([[token] for token in newest]).to(device)
            newest = model.step(row, cache).argmax(-1).tolist()
            for b in list(open_):
                if newest[b] == eos:
                    open_.discard(b)
                    continue
                answers[batch[b]].append(newest[b])
                if len(answers[batch[b]]) >= limits[b]:
                    open_.discard(b)
    return answers
