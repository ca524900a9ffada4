"""How probable a given answer is: one full pass, teacher forcing, no search.

The same pass says what else would have been likely at each place and where every head looked, so
that asking for these after a search cannot change what the search finds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.decoding.engines.eager import attention_backend
from regard.decoding.requests import SCORED_TOKENS, Request, by_size
from regard.model.transformer import Capture, Transformer
from regard.ops import linear
from regard.text.batching import Packed

PIECE = 2**24  # logits held at once


@torch.no_grad()
def score(
    model: Transformer,
    requests: Sequence[Request],
    answers: Sequence[Sequence[int]],
    alternatives: int = 0,
    attention: bool = False,
) -> list[Scored]:
    """The log-probability of each token of the answers (ids, <eos> where they end), in order."""
    scored = [Scored() for _ in requests]
    asked = [i for i, answer in enumerate(answers) if len(answer)]
    sizes = [len(requests[i].source) + len(answers[i]) for i in asked]
    for batch in by_size(sizes, SCORED_TOKENS):
        chosen = [asked[i] for i in batch]
        _score_batch(
            model, [requests[i] for i in chosen], [answers[i] for i in chosen],
            alternatives, attention, [scored[i] for i in chosen],
        )  # fmt: skip
    return scored


class Scored:
    """What the full pass says of one answer."""

    def __init__(self) -> None:
        self.logprobs: list[float] = []
        self.alternatives: list[list[tuple[int, float]]] = []
        self.attention: dict[str, list[torch.Tensor]] = {}


def _score_batch(
    model: Transformer,
    requests: list[Request],
    answers: list[Sequence[int]],
    alternatives: int,
    attention: bool,
    scored: list[Scored],
) -> None:
    device = model.output_matrix().device
    both = model.encoder is not None
    source = Packed.of([request.source for request in requests]).to(device) if both else None
    begins = [request.begin(both) for request in requests]
    rows = Packed.of(
        [[*begin, *answer[:-1]] for begin, answer in zip(begins, answers, strict=True)]
    )
    capture = Capture() if attention else None
    hidden = model.hidden(source, rows.to(device), capture, attention_backend(model))
    # The rows from whose output an answer's tokens are told: all but those of the beginning.
    parts = [
        part[len(begin) - 1 :]
        for part, begin in zip(rows.split(torch.arange(len(rows.tokens))), begins, strict=True)
    ]
    wanted = torch.tensor([token for answer in answers for token in answer], device=device)
    hidden = hidden[torch.cat(parts).to(device)]  # [N, D]
    matrix = model.output_matrix()
    logprobs, tops = [], []
    size = max(1, PIECE // len(matrix))
    for some, labels in zip(hidden.split(size), wanted.split(size), strict=True):
        all_logprobs = linear(some, matrix).log_softmax(-1, dtype=torch.float32)
        logprobs += all_logprobs.gather(1, labels[:, None])[:, 0].tolist()
        if alternatives:
            top = all_logprobs.topk(min(alternatives, all_logprobs.shape[1]))
            tops += [
                list(zip(tokens, values, strict=True))
                for tokens, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
            ]
    start = 0
    for b, answer in enumerate(answers):
        end = start + len(answer)
        scored[b].logprobs = logprobs[start:end]
        scored[b].alternatives = tops[start:end]
        if capture is not None:
            for part, layers in vars(capture).items():
                if layers:
                    scored[b].attention[part] = [layer[b] for layer in layers]
        start = end
