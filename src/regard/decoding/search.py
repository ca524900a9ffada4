"""Decode requests: the entry point of decoding, used by every task that writes text.

`decode` groups requests into batches, runs one `Search` for each, and adds the details that the
caller asks for. A `Search` iterates over a decoding engine (engines/), which runs the steps.
With the eager engine one step is `EagerSearch._step`: `Transformer.step` computes logits from the
newest token of every hypothesis and the cache, and `Beams.advance` chooses the next tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from regard.config.sections import DecodingConfig
from regard.decoding.engines import Engine, choose_engine
from regard.decoding.predictions import (
    Prediction,
    open_paths,
    read_predictions,
    scored_prediction,
    spell,
)
from regard.decoding.requests import BATCH_TOKENS, Job, Request, by_size, until_eos
from regard.decoding.score import Scored, score
from regard.decoding.slots import fill_slots
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.text.batching import Packed
from regard.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Details:
    """What to add to each prediction. No detail changes the tokens or the score of a prediction."""

    history: bool = False  # the candidates of every step
    alternatives: int = 0  # the number of most probable tokens at each place
    attention: bool = False  # the attention weights

    def __post_init__(self) -> None:
        if not isinstance(self.alternatives, int) or self.alternatives < 0:
            raise InputError(f"alternatives must be at least 0, not {self.alternatives}")


NO_DETAILS = Details()


@torch.no_grad()
def decode(
    model: Transformer, requests: Sequence[Request], options: DecodingConfig,
    details: Details = NO_DETAILS, batch_tokens: int | None = None,
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None, clean: Callable[[str], str] = str,
    continues: bool = False,
) -> list[Prediction]:  # fmt: skip
    """Decode requests. Returns one prediction per request, in order.

    Args:
        model: a model in evaluation mode.
        requests: the requests, in any order of lengths.
        options: beam search or sampling, and their settings.
        details: what to add to each prediction.
        batch_tokens: the size of a batch (default: BATCH_TOKENS of the device).
        tokenizers: the tokenizers of source and target. With them, predictions get texts, and an
            n-best list has no two predictions with the same text (`drop_duplicates`).
        clean: a function that is applied to each text, such as `str.strip`.
        continues: whether an output continues the text of its source.

    Raises:
        InputError: the model cannot decode a request or does not support an option.
    """
    if model.decoder is None:
        if details != NO_DETAILS:
            raise InputError(
                "model.style=encoder has no search: it gives no history, alternatives or attention"
            )
        predictions = fill_slots(model, requests, options)
        if tokenizers is not None:
            for prediction in predictions:
                spell(prediction, tokenizers, options.n_best, clean)
        return predictions
    if batch_tokens is None:
        batch_tokens = BATCH_TOKENS["cuda" if model.output_matrix().is_cuda else "cpu"]
    by_index: dict[int, Prediction] = {}
    for batch in batches(model, requests, options, batch_tokens):
        search = Search(model, [requests[i] for i in batch], options)
        for _ in search:
            pass
        spares = tokenizers is not None
        by_index.update(zip(batch, search.predictions(details.history, spares), strict=True))
    predictions = [by_index[i] for i in range(len(requests))]
    for prediction, request in zip(predictions, requests, strict=True):
        prediction.source_ids = request.source
        if tokenizers is not None:
            spell(prediction, tokenizers, options.n_best, clean, continues)
    return describe(model, requests, predictions, details)


def describe(
    model: Transformer, requests: Sequence[Request], predictions: list[Prediction], details: Details
) -> list[Prediction]:
    """Add alternatives and attention weights to predictions, which one more pass computes."""
    if details.alternatives or details.attention:
        tokens = [prediction.token_ids for prediction in predictions]
        passes = score(model, requests, tokens, details.alternatives, details.attention)
        for prediction, scored in zip(predictions, passes, strict=True):
            prediction.alternatives, prediction.attention = scored.alternatives, scored.attention
    return predictions


@dataclass(frozen=True)
class DecodingPlan:
    """The requests that a task decodes for some inputs, and how the predictions for them become the
    predictions for the inputs.

    `run` decodes the requests at once. A service decodes them together with those of other plans,
    and calls `finish` with the predictions.
    """

    requests: Sequence[Request]
    options: DecodingConfig
    tokenizers: tuple[Tokenizer, Tokenizer]
    finish: Callable[[list[Prediction]], list[Prediction]]  # one prediction for each input
    details: Details = NO_DETAILS
    clean: Callable[[str], str] = str
    continues: bool = False  # whether an output continues the text of its source

    def run(self, model: Transformer) -> list[Prediction]:
        """Decode the requests with a model; returns one prediction for each input."""
        return self.finish(decode(
            model, self.requests, self.options, self.details,
            tokenizers=self.tokenizers, clean=self.clean, continues=self.continues,
        ))  # fmt: skip

    def spell(self, i: int, prediction: Prediction) -> Prediction:
        """Add the text to the prediction for the request with index i; see `decode`."""
        prediction.source_ids = self.requests[i].source
        spell(prediction, self.tokenizers, self.options.n_best, self.clean, self.continues)
        return prediction


def batches(
    model: Transformer, requests: Sequence[Request], options: DecodingConfig, batch_tokens: int
) -> Iterator[list[int]]:
    """Batches of requests of similar size, as indices. Requests for which the decoder reads
    something before its first step are not mixed with the others."""
    both = model.encoder is not None
    reads_first = [len(request.known(both)) > 1 for request in requests]
    for reads in (False, True):
        chosen = [i for i in range(len(requests)) if reads_first[i] == reads]
        sizes = [
            len(requests[i].source) + options.width * requests[i].max_tokens(model.config, options)
            for i in chosen
        ]
        for batch in by_size(sizes, batch_tokens):
            yield [chosen[i] for i in batch]


def check_request(model: Transformer, request: Request) -> None:
    """Raise InputError if the model cannot decode a request."""
    if model.training:
        raise InputError(
            "the model is in training mode, where dropout is random: call model.eval() first"
        )
    request.check(model.config)
    if model.encoder is not None:
        size = model.table("source").num_embeddings
        limit = model.config.max_length if model.config.positions == "learned" else None
        long = limit is not None and len(request.source) > limit
        if long or min(request.source) < 0 or max(request.source) >= size:
            Packed.of([request.source]).check(size, limit, "source")  # raises the error


class Search:
    """The search for one batch of requests. Iterating over it runs the search and yields after each
    step; `settled` and `predictions` can be called in between and afterwards.

    scored: the scores of the prefixes; None: they are computed here.
    """

    def __init__(
        self, model: Transformer, requests: Sequence[Request], options: DecodingConfig,
        scored: list[Scored] | None = None,
    ) -> None:  # fmt: skip
        for request in requests:
            check_request(model, request)
        self.model, self.requests, self.options = model, requests, options
        self.eos = requests[0].eos if requests else Tokenizer.eos
        if any(request.eos != self.eos for request in requests):
            raise InputError("all requests of one search must have the same eos")
        self.prefixes = [until_eos(request.prefix, self.eos) for request in requests]
        # Requests whose prefix is already a complete output need no search.
        max_tokens = [request.max_tokens(model.config, options) for request in requests]
        self.searched = [
            i for i, prefix in enumerate(self.prefixes)
            if self.eos not in prefix and len(prefix) < max_tokens[i]
        ]  # fmt: skip
        self.limits = [max_tokens[i] - len(self.prefixes[i]) for i in self.searched]
        if scored is None:
            scored = score(model, requests, self.prefixes, alone=True)
        self.scored = scored  # nothing for an empty prefix
        self.engine: Engine | None = None
        self._settled: list[int] = []  # of a search with one hypothesis, after the prefix

    def job(self) -> Job | None:
        """The job for a decoding engine; None if no request needs a search."""
        if not self.searched:
            return None
        requests = [self.requests[i] for i in self.searched]
        both = self.model.encoder is not None
        known = [request.known(both) for request in requests]
        sampling = self.options.temperature > 0
        job = Job(
            options=self.options,
            limits=self.limits,
            prefixes=[self.prefixes[i] for i in self.searched],
            noise_keys=[request.noise_key for request in requests] if sampling else [],
            sources=[request.source for request in requests] if both else None,
            read=[tokens[:-1] for tokens in known],
            newest=[tokens[-1] for tokens in known],
            eos=self.eos,
        )
        if len({bool(tokens) for tokens in job.read}) > 1:
            raise InputError(
                "one Search cannot mix requests with and without tokens to read before the first "
                "step: use decode, which separates them"
            )
        return job

    def __iter__(self) -> Iterator[None]:
        """Run the search; yield after each step."""
        if (job := self.job()) is None:
            return
        self.engine = choose_engine(self.model, job)
        yield from self.engine

    def settled(self) -> list[int]:
        """The tokens of the first prediction that cannot change any more: the common beginning of
        all its hypotheses, including the finished ones."""
        settled = list(self.prefixes[0])
        if self.engine is None or self.searched[0] != 0:
            return settled
        records = self.engine.records()[:, :1]
        if self.options.width == 1 and len(self.limits) == 1:
            known = self._settled
            for token, _, _, score in records[len(known) : self.limits[0], 0, 0].tolist():
                if token == self.eos or not score > -math.inf:
                    break
                known.append(int(token))
            else:  # the only hypothesis has not ended
                return settled + known
        paths = open_paths(self.options, records, self.limits[0], self.eos)
        for tokens in zip(*paths, strict=False):
            if len(set(tokens)) > 1:
                break
            settled.append(tokens[0])
        return settled

    def predictions(self, history: bool = False, spares: bool = False) -> list[Prediction]:
        """The best predictions so far, one for each request; `history` adds the candidates of each
        step. spares: see `read_predictions`."""
        logprobs = [scored.logprobs for scored in self.scored]
        prefixes = list(zip(self.prefixes, logprobs, strict=True))
        predictions = [scored_prediction(*prefix, self.options, "prefix") for prefix in prefixes]
        if self.engine is not None:
            old = [prefixes[i] for i in self.searched]
            records = self.engine.records()
            best = read_predictions(
                self.options, records, self.limits, old, history, spares, self.eos
            )
            for i, prediction in zip(self.searched, best, strict=True):
                predictions[i] = prediction
        return predictions
