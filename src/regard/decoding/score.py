"""The log-probability of given outputs: one full pass with teacher forcing, no search.

The same pass gives the alternatives at each place and the attention weights. They are computed
after a search, so that they cannot change its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from regard.decoding.engines.cpu import CpuModel, cpu_model
from regard.decoding.engines.eager import attention_backend
from regard.decoding.requests import SCORED_TOKENS, Request, by_size
from regard.model.overrides import is_overridden
from regard.model.transformer import AttentionCapture, Transformer
from regard.text.batching import Packed

PIECE = 2**24  # logits in memory at once


@dataclass
class Scored:
    """The result of the full pass over one output."""

    logprobs: list[float] = field(default_factory=list)  # of each token
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list)  # token, logprob
    attention: dict[str, list[Tensor]] = field(default_factory=dict)  # part -> layer -> [H, n, m]


@torch.no_grad()
def score(
    model: Transformer, requests: Sequence[Request], outputs: Sequence[Sequence[int]],
    alternatives: int = 0, attention: bool = False, alone: bool = False,
) -> list[Scored]:  # fmt: skip
    """Score one output per request, in order. Prefixes and limits of requests are ignored.

    With the CPU engine a result does not depend on the other requests. PyTorch's products can
    depend on the number of rows; `alone` makes it read one request at a time.

    outputs: token ids, including <eos> where an output ends. alternatives: the number of most
    probable tokens to return at each place. attention: whether to return attention weights.
    """
    scored = [Scored() for _ in requests]
    nonempty = [i for i, output in enumerate(outputs) if len(output)]
    compiled = None
    if nonempty and not (attention or is_overridden(model)):
        compiled = cpu_model(model)
    sizes = [len(requests[i].source) + len(outputs[i]) for i in nonempty]
    for batch in by_size(sizes, SCORED_TOKENS if compiled or not alone else 1):
        chosen = [nonempty[i] for i in batch]
        pairs = [(requests[i], outputs[i]) for i in chosen]
        results = _score(model, pairs, alternatives, attention, compiled)
        for i, result in zip(chosen, results, strict=True):
            scored[i] = result
    return scored


def _score(
    model: Transformer, pairs: list[tuple[Request, Sequence[int]]], alternatives: int,
    attention: bool, compiled: CpuModel | None,
) -> list[Scored]:  # fmt: skip
    """Score one batch of requests and their outputs. compiled: the engine that computes the logits,
    instead of PyTorch."""
    requests, outputs = zip(*pairs, strict=True)
    is_overridden(model)  # every module is called here, but some hooks must be refused
    matrix, both = model.output_matrix(), model.encoder is not None
    device = matrix.device
    source = Packed.of([request.source for request in requests]).to(device) if both else None
    begins = [request.begin(both) for request in requests]
    rows = Packed.of([[*begin, *out[:-1]] for begin, out in zip(begins, outputs, strict=True)])
    capture = AttentionCapture() if attention else None
    # The rows that predict the tokens of an output: from the last one before it on.
    places = rows.split(torch.arange(len(rows.tokens)))
    parts = [place[len(begin) - 1 :] for place, begin in zip(places, begins, strict=True)]
    targets = torch.tensor([token for output in outputs for token in output], device=device)
    chosen = torch.cat(parts).to(device)
    size = max(1, PIECE // len(matrix))
    if compiled is not None:
        hidden = compiled.hidden_after(model, source, rows)[chosen]
        pieces = (compiled.logits(some) for some in hidden.split(size))
    else:
        rows = rows.to(device)
        hidden = model.hidden(source, rows, capture, attention_backend(model))[chosen]  # [N, D]
        pieces = (model.head(some, None, matrix) for some in hidden.split(size))
    logprobs, tops = [], []
    for logits, labels in zip(pieces, targets.split(size), strict=True):
        all_logprobs = logits.log_softmax(-1, dtype=torch.float32)
        logprobs += all_logprobs.gather(1, labels[:, None])[:, 0].tolist()
        if alternatives:
            top = all_logprobs.topk(min(alternatives, all_logprobs.shape[1]))
            lists = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            tops += [list(zip(tokens, values, strict=True)) for tokens, values in lists]
    scored = []
    for b, (start, end) in enumerate(pairwise(accumulate(map(len, outputs), initial=0))):
        result = Scored(logprobs[start:end], tops[start:end])
        for part, layers in vars(capture).items() if capture else ():
            if layers:
                result.attention[part] = [layer[b] for layer in layers]
        scored.append(result)
    return scored
