"""Decoding with an encoder-only model: one pass fills all <mask> tokens at the end of the source.

There is no search and there are no steps. Each slot gets its most probable token, independently of
the other slots. This is fast, but the text is poor where several outputs are about equally good.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.config.sections import DecodingConfig
from regard.decoding.engines import hidden
from regard.decoding.predictions import Prediction, scored_prediction
from regard.decoding.requests import BATCH_TOKENS, Request, by_size, until_eos
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.text.batching import Packed


@torch.no_grad()
def fill_slots(
    model: Transformer, requests: Sequence[Request], options: DecodingConfig
) -> list[Prediction]:
    """Fill the slots of each request, whose source ends with them (<mask>)."""
    searched = options.temperature or options.n_best > 1 or any(r.prefix for r in requests)
    if searched or options.min_length or options.no_repeat:
        raise InputError(
            "model.style=encoder fills all places of its output at once: it does not support "
            "sampling, n_best, a prefix, min_length or no_repeat"
        )
    matrix = model.output_matrix()
    by_index: dict[int, Prediction] = {}
    sizes = [len(request.source) for request in requests]
    for batch in by_size(sizes, BATCH_TOKENS["cuda" if matrix.is_cuda else "cpu"]):
        row = Packed.of([requests[i].source for i in batch])
        masks = torch.tensor([requests[i].mask for i in batch])
        filled = row.tokens == masks.repeat_interleave(torch.tensor(row.lengths))  # [N]
        slots = filled.nonzero()[:, 0].to(matrix.device)
        logits = model.head(hidden(model, row.to(matrix.device))[slots], None, matrix)
        best = logits.log_softmax(-1, dtype=torch.float32).max(1)
        counts = [int(part.sum()) for part in row.split(filled)]
        parts = best.indices.split(counts), best.values.split(counts)
        for i, tokens, logprobs in zip(batch, *parts, strict=True):
            max_tokens = requests[i].max_tokens(model.config, options)
            by_index[i] = read(
                tokens[:max_tokens].tolist(), logprobs.tolist(), requests[i], options
            )
    return [by_index[i] for i in range(len(requests))]


def read(
    tokens: list[int], logprobs: list[float], request: Request, options: DecodingConfig
) -> Prediction:
    """The prediction from the tokens of all slots: it ends with the first <eos>."""
    tokens = until_eos(tokens, request.eos)
    stopped = "end" if request.eos in tokens else "length"
    prediction = scored_prediction(tokens, logprobs[: len(tokens)], options, stopped)
    prediction.source_ids = request.source
    return prediction
