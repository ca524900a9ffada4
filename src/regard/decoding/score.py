"""The log-probability of given outputs: one full pass with teacher forcing, no search.

The same pass gives the alternatives at each place and the attention weights. They are computed
after a search, so that they cannot change its result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.decoding.engines.eager import attention_backend
from regard.decoding.requests import SCORED_TOKENS, Request, by_size
from regard.model.transformer import Capture, Transformer
from regard.ops import linear
from regard.text.batching import Packed

PIECE = 2**24  # logits in memory at once


@torch.no_grad()
def score(
    model: Transformer,
    requests: Sequence[Request],
    outputs: Sequence[Sequence[int]],
    alternatives: int = 0,
    attention: bool = False,
) -> list[Scored]:
    """Score one output per request, in order.

    Args:
        model: the model.
        requests: their sources; prefixes and limits are ignored.
        outputs: token ids, including <eos> where an output ends.
        alternatives: the number of most probable tokens to return at each place.
        attention: whether to return attention weights.
    """
    scored = [Scored() for _ in requests]
    nonempty = [i for i, output in enumerate(outputs) if len(output)]
    sizes = [len(requests[i].source) + len(outputs[i]) for i in nonempty]
    for batch in by_size(sizes, SCORED_TOKENS):
        chosen = [nonempty[i] for i in batch]
        _score_batch(
            model, [requests[i] for i in chosen], [outputs[i] for i in chosen],
            alternatives, attention, [scored[i] for i in chosen],
        )  # fmt: skip
    return scored


class Scored:
    """The result of the full pass over one output."""

    def __init__(self) -> None:
        self.logprobs: list[float] = []  # of each token
        self.alternatives: list[list[tuple[int, float]]] = []  # tokens and log-probabilities
        self.attention: dict[str, list[torch.Tensor]] = {}  # part -> layer -> [H, n, m]


def _score_batch(
    model: Transformer,
    requests: list[Request],
    outputs: list[Sequence[int]],
    alternatives: int,
    attention: bool,
    scored: list[Scored],
) -> None:
    device = model.output_matrix().device
    both = model.encoder is not None
    source = Packed.of([request.source for request in requests]).to(device) if both else None
    begins = [request.begin(both) for request in requests]
    rows = Packed.of(
        [[*begin, *output[:-1]] for begin, output in zip(begins, outputs, strict=True)]
    )
    capture = Capture() if attention else None
    hidden = model.hidden(source, rows.to(device), capture, attention_backend(model))
    # The rows that predict the tokens of an output: from the last one before it on.
    parts = [
        part[len(begin) - 1 :]
        for part, begin in zip(rows.split(torch.arange(len(rows.tokens))), begins, strict=True)
    ]
    targets = torch.tensor([token for output in outputs for token in output], device=device)
    hidden = hidden[torch.cat(parts).to(device)]  # [N, D]
    matrix = model.output_matrix()
    logprobs, tops = [], []
    size = max(1, PIECE // len(matrix))
    for some, labels in zip(hidden.split(size), targets.split(size), strict=True):
        all_logprobs = linear(some, matrix).log_softmax(-1, dtype=torch.float32)
        logprobs += all_logprobs.gather(1, labels[:, None])[:, 0].tolist()
        if alternatives:
            top = all_logprobs.topk(min(alternatives, all_logprobs.shape[1]))
            tops += [
                list(zip(tokens, values, strict=True))
                for tokens, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
            ]
    start = 0
    for b, output in enumerate(outputs):
        end = start + len(output)
        scored[b].logprobs = logprobs[start:end]
        scored[b].alternatives = tops[start:end]
        if capture is not None:
            for part, layers in vars(capture).items():
                if layers:
                    scored[b].attention[part] = [layer[b] for layer in layers]
        start = end
