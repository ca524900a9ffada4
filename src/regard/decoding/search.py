"""One search for all: requests in, answers out, over one step function.

The step function is `Transformer.step`: the newest token of every hypothesis and the cache in,
logits out. On a GPU the same step is captured once and replayed (captured.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from regard.config import DecodingConfig
from regard.decoding.answers import Answer, open_paths, read_answers, unchanged
from regard.decoding.beams import Beams
from regard.decoding.requests import BATCH_TOKENS, Request, by_size
from regard.decoding.score import Scored, score
from regard.model.transformer import Transformer
from regard.text.batching import Packed
from regard.text.tokenizer import Tokenizer

LEAVE = 1 / 8  # of a batch: so many sentences must be done before it is worth moving the others


@dataclass(frozen=True)
class Wanted:
    """What to tell of an answer beside itself; none of it changes the answer."""

    history: bool = False
    alternatives: int = 0
    attention: bool = False


NOTHING = Wanted()


@torch.no_grad()
def decode(
    model: Transformer,
    requests: Sequence[Request],
    options: DecodingConfig,
    wanted: Wanted = NOTHING,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Answer]:
    """The answer to each request, in order."""
    found: dict[int, Answer] = {}
    for batch in batches(model, requests, batch_tokens):
        search = Search(model, [requests[i] for i in batch], options)
        for _ in search:
            pass
        found.update(zip(batch, search.answers(wanted.history), strict=True))
    answers = [found[i] for i in range(len(requests))]
    if wanted.alternatives or wanted.attention:
        look(model, requests, answers, wanted)
    return answers


def batches(
    model: Transformer, requests: Sequence[Request], batch_tokens: int
) -> Iterator[list[int]]:
    """Requests of similar size together. Those for which the decoder has something to read before
    its first step are kept apart from those for which it has nothing."""
    both = model.encoder is not None
    for reads in (False, True):
        chosen = [i for i, r in enumerate(requests) if (len(r.known(both)) > 1) == reads]
        sizes = [len(requests[i].source) + len(requests[i].prefix) for i in chosen]
        for batch in by_size(sizes, batch_tokens):
            yield [chosen[i] for i in batch]


def look(
    model: Transformer, requests: Sequence[Request], answers: list[Answer], wanted: Wanted
) -> None:
    """Add what a full pass over the finished answers shows."""
    tokens = [answer.tokens for answer in answers]
    passes = score(model, requests, tokens, wanted.alternatives, wanted.attention)
    for answer, seen in zip(answers, passes, strict=True):
        answer.alternatives, answer.attention = seen.alternatives, seen.attention


class Search:
    """The search of one batch: an iterator with a turn for each step."""

    def __init__(
        self, model: Transformer, requests: Sequence[Request], options: DecodingConfig
    ) -> None:
        self.model, self.requests, self.options = model, requests, options
        self.given = [self._prefix(request) for request in requests]
        # Those whose prefix leaves nothing to write are answered by it, without a search.
        most = [request.most(model.config, options) for request in requests]
        self.open = [
            i for i, tokens in enumerate(self.given)
            if Tokenizer.eos not in tokens and len(tokens) < most[i]
        ]  # fmt: skip
        self.limits = [most[i] - len(self.given[i]) for i in self.open]
        prefixed = [requests[i] for i, tokens in enumerate(self.given) if tokens]
        scored = iter(score(model, prefixed, [tokens for tokens in self.given if tokens]))
        self.scored = [next(scored) if tokens else Scored() for tokens in self.given]
        self.beams: Beams | None = None

    def _prefix(self, request: Request) -> list[int]:
        """The given beginning, up to its end if it has one."""
        tokens = list(request.prefix)
        end = Tokenizer.eos
        return tokens[: tokens.index(end) + 1] if end in tokens else tokens

    def __iter__(self) -> Iterator[Beams]:
        if not self.open:
            return
        model, device = self.model, self.model.output_matrix().device
        requests = [self.requests[i] for i in self.open]
        given = [self.given[i] for i in self.open]
        names = [request.name for request in requests] if self.options.temperature else []
        beams = Beams(self.options, self.limits, given, names, Tokenizer.eos, device)
        self.beams = beams
        both = model.encoder is not None
        source = Packed.of([request.source for request in requests]).to(device) if both else None
        # The first step reads the last token of what is known; everything before is read at once.
        known = [request.known(both) for request in requests]
        before = [tokens[:-1] for tokens in known]
        read = Packed.of(before).to(device) if before[0] else None
        beams.tokens.copy_(torch.tensor([tokens[-1:] for tokens in known], device=device))
        cache = model.start(
            source, read, sentences=len(requests), width=beams.width, steps=max(self.limits)
        )
        while True:
            parents = beams.parents if beams.width > 1 and not beams.samples else None
            beams.advance(model.step(beams.tokens, parents, cache))
            yield beams
            going = int((~beams.done).sum())
            if not going:
                return
            if going <= (1 - LEAVE) * len(beams.done):
                rows = (~beams.done).nonzero()[:, 0]
                beams.keep(rows)
                cache.keep(rows)

    def settled(self) -> list[int]:
        """The tokens of the first sentence's answer that nothing can change any more: what all
        its hypotheses have in common, those that have ended included."""
        if self.beams is None:
            return list(self.given[0])
        settled = list(self.given[0])
        for tokens in zip(*open_paths(self.beams, self.limits, 0), strict=False):
            if len(set(tokens)) > 1:
                break
            settled.append(tokens[0])
        return settled

    def answers(self, history: bool = False) -> list[Answer]:
        """What was found; of those that were not searched, what was given."""
        given = [
            (tokens, seen.logprobs) for tokens, seen in zip(self.given, self.scored, strict=True)
        ]
        found = [unchanged(*old, self.options.length_penalty, "prefix") for old in given]
        if self.beams is not None:
            read = read_answers(self.beams, self.limits, [given[i] for i in self.open], history)
            for i, answer in zip(self.open, read, strict=True):
                found[i] = answer
        return found
