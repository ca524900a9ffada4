"""One search for all: requests in, answers out, over one step function.

The step function is `Transformer.step`: the newest token of every hypothesis and the cache in,
logits out. Who calls it is an engine: `Eager` anywhere, `Captured` on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from regard.config.sections import DecodingConfig
from regard.decoding.answers import Answer, open_paths, read_answers, unchanged
from regard.decoding.engines.cuda_graph import Captured
from regard.decoding.engines.eager import Eager, Job
from regard.decoding.requests import BATCH_TOKENS, Request, by_size
from regard.decoding.score import Scored, score
from regard.decoding.slots import fill_slots
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Wanted:
    """What to tell of an answer beside itself; none of it changes the answer."""

    history: bool = False
    alternatives: int = 0
    attention: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.alternatives, int) or self.alternatives < 0:
            raise InputError(f"alternatives must be at least 0, not {self.alternatives}")


NOTHING = Wanted()


@torch.no_grad()
def decode(
    model: Transformer,
    requests: Sequence[Request],
    options: DecodingConfig,
    wanted: Wanted = NOTHING,
    batch_tokens: int | None = None,
) -> list[Answer]:
    """The answer to each request, in order."""
    if model.decoder is None:
        if wanted != NOTHING:
            raise InputError("model.style=encoder does not search: there is nothing to tell of it")
        return fill_slots(model, requests, options)
    if batch_tokens is None:
        batch_tokens = BATCH_TOKENS["cuda" if model.output_matrix().is_cuda else "cpu"]
    found: dict[int, Answer] = {}
    for batch in batches(model, requests, options, batch_tokens):
        search = Search(model, [requests[i] for i in batch], options)
        for _ in search:
            pass
        found.update(zip(batch, search.answers(wanted.history), strict=True))
    answers = [found[i] for i in range(len(requests))]
    for answer, request in zip(answers, requests, strict=True):
        answer.source = request.source
    if wanted.alternatives or wanted.attention:
        look(model, requests, answers, wanted)
    return answers


def batches(
    model: Transformer, requests: Sequence[Request], options: DecodingConfig, batch_tokens: int
) -> Iterator[list[int]]:
    """Requests of similar size together. Those for which the decoder has something to read before
    its first step are kept apart from those for which it has nothing."""
    both = model.encoder is not None
    known = [len(r.prefix) + (1 if both else len(r.source)) for r in requests]
    for reads in (False, True):
        chosen = [i for i in range(len(requests)) if (known[i] > 1) == reads]
        sizes = [
            len(requests[i].source) + options.width * requests[i].most(model.config, options)
            for i in chosen
        ]
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
        if model.training:
            raise InputError("a model in training drops things at random: call model.eval() first")
        for request in requests:
            request.check(model.config)
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
        self.engine: Eager | Captured | None = None

    def _prefix(self, request: Request) -> list[int]:
        """The given beginning, up to its end if it has one."""
        tokens = list(request.prefix)
        end = Tokenizer.eos
        return tokens[: tokens.index(end) + 1] if end in tokens else tokens

    def __iter__(self) -> Iterator[None]:
        """Search: one turn for each step."""
        if not self.open:
            return
        requests = [self.requests[i] for i in self.open]
        both = self.model.encoder is not None
        known = [request.known(both) for request in requests]
        job = Job(
            self.options, self.limits, [self.given[i] for i in self.open],
            [request.name for request in requests] if self.options.temperature else [],
            [request.source for request in requests] if both else None,
            # The first step reads the newest token; everything before it is read at once.
            [tokens[:-1] for tokens in known], [tokens[-1] for tokens in known],
        )  # fmt: skip
        if len({bool(tokens) for tokens in job.read}) > 1:
            raise InputError(
                "a search reads something before its first step for all its sentences or for none: "
                "use decode, which keeps them apart"
            )
        # A captured program encodes a rectangle; only attention knows how to ignore its padding.
        captured = self.model.output_matrix().is_cuda and self.model.config.mixer == "attention"
        engine = Captured if captured else Eager
        self.engine = engine(self.model, job)
        yield from self.engine

    def settled(self) -> list[int]:
        """The tokens of the first sentence's answer that nothing can change any more: what all
        its hypotheses have in common, those that have ended included."""
        settled = list(self.given[0])
        if self.engine is None or self.open[0] != 0:
            return settled
        paths = open_paths(self.options, self.engine.records()[:, :1], self.limits[0])
        for tokens in zip(*paths, strict=False):
            if len(set(tokens)) > 1:
                break
            settled.append(tokens[0])
        return settled

    def answers(self, history: bool = False) -> list[Answer]:
        """What was found; of those that were not searched, what was given."""
        given = [
            (tokens, seen.logprobs) for tokens, seen in zip(self.given, self.scored, strict=True)
        ]
        searched: dict[int, Answer] = {}
        if self.engine is not None:
            old = [given[i] for i in self.open]
            records = self.engine.records()
            answers = read_answers(self.options, records, self.limits, old, history)
            searched = dict(zip(self.open, answers, strict=True))
        return [
            searched[i] if i in searched
            else unchanged(*given[i], self.options.length_penalty, "prefix")
            for i in range(len(given))
        ]  # fmt: skip
