"""An encoder's answer: all its tokens at once, in the slots that stand behind its input.

No search and no steps: each slot takes its most probable token, and none knows what the others
took. That is fast, and why an encoder writes badly where there is more than one good answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.config.sections import DecodingConfig
from regard.decoding.answers import Answer, penalty
from regard.decoding.engines.cpu import hidden
from regard.decoding.requests import BATCH_TOKENS, Request, by_size
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.ops import linear
from regard.text.batching import Packed
from regard.text.tokenizer import Tokenizer


@torch.no_grad()
def fill_slots(
    model: Transformer, requests: Sequence[Request], options: DecodingConfig
) -> list[Answer]:
    """The answer to each request, whose source ends with its slots (<mask>)."""
    searched = options.temperature or options.n_best > 1 or any(r.prefix for r in requests)
    if searched or options.min_length or options.no_repeat:
        raise InputError(
            "model.style=encoder fills all places of its answer at once: it cannot sample, give "
            "several answers, begin with a prefix, or mind min_length and no_repeat"
        )
    matrix = model.output_matrix()
    budget = BATCH_TOKENS["cuda" if matrix.is_cuda else "cpu"]
    found: dict[int, Answer] = {}
    for batch in by_size([len(request.source) for request in requests], budget):
        row = Packed.of([requests[i].source for i in batch]).to(matrix.device)
        slots = row.tokens == Tokenizer.mask
        vectors = model.head.words(hidden(model, row)[slots])
        best = linear(vectors, matrix, model.head.bias).log_softmax(-1, dtype=torch.float32).max(1)
        counts = [list(requests[i].source).count(Tokenizer.mask) for i in batch]
        for i, tokens, logprobs in zip(
            batch, best.indices.split(counts), best.values.split(counts), strict=True
        ):
            most = requests[i].most(model.config, options)
            found[i] = read(tokens[:most].tolist(), logprobs.tolist(), requests[i], options)
    return [found[i] for i in range(len(requests))]


def read(
    tokens: list[int], logprobs: list[float], request: Request, options: DecodingConfig
) -> Answer:
    """Up to the first <eos>."""
    ended = Tokenizer.eos in tokens
    count = tokens.index(Tokenizer.eos) + 1 if ended else len(tokens)
    total = sum(logprobs[:count]) / penalty(count, options.length_penalty)
    stopped = "end" if ended else "length"
    return Answer(tokens[:count], logprobs[:count], total, stopped, source=request.source)
