"""The output of a search: `Prediction`, and how it is computed from the records of `Beams`.

All functions work on whole batches in NumPy, because records are large and Python loops are slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.sections import DecodingConfig
from regard.decoding.beams import LOGPROB, PARENT, SCORE, TOKEN, candidates_of
from regard.text.tokenizer import Tokenizer

Numbers = NDArray[Any]


@dataclass
class Candidate:
    """One candidate in the history of a search."""

    token: int
    parent: int  # index of the kept hypothesis of the step before that it continues
    logprob: float  # of the token
    score: float  # sum of the log-probabilities since the start of the search
    fate: str  # kept, ended, pruned


STOPS = (
    "empty",  # the input was empty
    "given",  # the output was given and only scored
    "end",  # the output ended with <eos>
    "until",  # the output reached the text at which it had to stop
    "prefix",  # the prefix was already complete
    "blocked",  # every next token was forbidden
    "length",  # the output reached its limit
)


@dataclass
class Prediction:
    """One output of a model that writes text.

    `token_ids`, `tokens` and `logprobs` have the same length and include the prefix and a final
    <eos>. The log-probabilities are those of the model, before any token was forbidden or filtered.

    Attributes:
        token_ids: the token ids of the output.
        logprobs: the log-probability of each token.
        score: the sum of `logprobs`, divided by the length penalty (`DecodingConfig.divisor`).
        stopped: why the output ended, one of STOPS.
        text: the output as text.
        source_ids: the token ids that the model read.
        others: the n-best list without this prediction, best first.
        history: the candidates of each step of the search, on request.
        alternatives: the most probable tokens at each position, as (token id, log-probability), on
            request.
        attention: the attention weights, on request: `attention["cross"][layer]` is [H, n, m].
        pieces: the predictions for the pieces of a text that was decoded in pieces.
        sentences: the predictions for the sentences of a text that was split into sentences.
        tokenizers: the tokenizers of source and target, for `tokens` and `source_tokens`.
    """

    token_ids: list[int]
    logprobs: list[float]
    score: float
    stopped: str
    text: str = ""
    source_ids: Sequence[int] = ()
    others: list[Prediction] = field(default_factory=list)
    history: list[list[Candidate]] = field(default_factory=list)
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list)
    attention: dict[str, list[Any]] = field(default_factory=dict)
    pieces: list[Prediction] = field(default_factory=list)
    sentences: list[Prediction] = field(default_factory=list)
    tokenizers: tuple[Tokenizer, Tokenizer] | None = field(default=None, compare=False)

    @property
    def logprob(self) -> float:
        """The log-probability of the whole output: the sum of `logprobs`."""
        return sum(self.logprobs)

    @property
    def tokens(self) -> list[str]:
        """The tokens of the output in readable form, as `Tokenizer.tokens` writes them."""
        return self.tokenizers[1].tokens(self.token_ids) if self.tokenizers else []

    @property
    def source_tokens(self) -> list[str]:
        """The tokens that the model read, in readable form."""
        return self.tokenizers[0].tokens(self.source_ids) if self.tokenizers else []

    @property
    def n_best(self) -> list[Prediction]:
        """The n-best list, best first: this prediction and `others`."""
        return [self, *self.others]

    def __repr__(self) -> str:
        more = f", {len(self.others)} others" if self.others else ""
        return (
            f"Prediction({self.text!r}, score={self.score:.4f}, {len(self.token_ids)} tokens, "
            f"stopped={self.stopped!r}{more})"
        )


def scored_prediction(
    tokens: Sequence[int], logprobs: Sequence[float], options: DecodingConfig, stopped: str
) -> Prediction:
    """A prediction with these tokens; `options` determine the length penalty of its score."""
    total = sum(logprobs) / options.divisor(max(1, len(tokens)))
    return Prediction(list(tokens), list(logprobs), total, stopped)


def spell(
    prediction: Prediction,
    tokenizers: tuple[Tokenizer, Tokenizer],
    n_best: int,
    clean: Callable[[str], str] = str,
    continues: bool = False,
) -> Prediction:
    """Add the text to a prediction and to the rest of its n-best list; see `drop_duplicates`.

    Args:
        prediction: the prediction, which is changed.
        tokenizers: the tokenizers of source and target.
        n_best: the largest number of predictions to keep.
        clean: a function that is applied to each text, such as `str.strip`.
        continues: whether the output continues the text of its source.

    Returns:
        The same prediction.
    """
    before = prediction.source_ids if continues else ()
    for output in prediction.n_best:
        output.text = clean(tokenizers[1].decode_after(before, output.token_ids))
        output.tokenizers, output.source_ids = tokenizers, prediction.source_ids
    return drop_duplicates(prediction, n_best)


def drop_duplicates(prediction: Prediction, n_best: int) -> Prediction:
    """Keep at most `n_best` predictions in an n-best list, each with a different text.

    Different tokens can have the same text. Of several such predictions the one with the best score
    remains, and the next best finished hypotheses of the search take the place of the others. If
    the search has no more of them, the list is shorter.
    """
    distinct: dict[str, Prediction] = {}
    for output in prediction.n_best:  # best first
        distinct.setdefault(output.text, output)
    prediction.others = list(distinct.values())[1:n_best]
    return prediction


class Records:
    """The records of a search (`Beams.records`) on the host, and what follows from them."""

    def __init__(
        self, options: DecodingConfig, records: Numbers, limits: Sequence[int],
        eos: int = Tokenizer.eos,
    ) -> None:  # fmt: skip
        self.options, width = options, options.width
        # Candidates come first in memory, so that sums over them run along long rows.
        columns = np.ascontiguousarray(np.transpose(records, (3, 2, 0, 1)))  # [4, C, T, B]
        columns = np.moveaxis(columns, 1, -1)  # [4, T, B, C]
        self.logprob, self.score = columns[LOGPROB], columns[SCORE]
        self.token, self.parent = columns[TOKEN].astype(np.int32), columns[PARENT].astype(np.int16)
        alive = self.score > -np.inf
        goes_on = self.token != eos
        rank = np.arange(candidates_of(options), dtype=np.int16)
        self.ended = ~goes_on & alive & (rank < width)  # [T, B, C]: finished hypotheses
        # [T, B, C]: how many candidates continue, up to and including each one.
        self.going = np.broadcast_to(rank + 1, self.token.shape)
        if not options.temperature:
            self.going = goes_on.astype(np.int16)
            for c in rank[1:]:
                self.going[..., c] += self.going[..., c - 1]
        self.kept = goes_on & alive & (self.going <= width)  # [T, B, C]: go to the next step
        # The last step of each sentence, by the rule of Beams.advance.
        step = np.arange(len(records))[:, None]
        self.limit = np.asarray(limits)
        finished = self.ended.sum(-1).cumsum(0)
        done = (finished >= width) | (step + 1 >= self.limit) | ~self.kept.any(-1)
        self.last = np.where(done.any(0), done.argmax(0), len(records) - 1)  # [B]
        now = step == self.last
        # Unfinished hypotheses at the limit are outputs, too.
        self.cut = self.kept & (now & (step + 1 == self.limit))[..., None]
        # Where every next token is forbidden, the output is the hypothesis so far: in sampling for
        # each hypothesis; in beam search only if no hypothesis can continue and none is finished.
        self.blocked = np.zeros_like(alive)
        if not alive.all():
            dead = ~alive[1:] if options.temperature else ~alive[1:].any(-1, keepdims=True)
            self.blocked[:-1] = self.kept[:-1] & dead & (step < self.last)[:-1, :, None]
            if not options.temperature:
                self.blocked &= ~self.ended.any((0, 2))[:, None]

    def best(
        self, lengths: Numbers, before: Numbers, count: int
    ) -> tuple[Numbers, Numbers, Numbers]:
        """The `count` best outputs of each sentence: last step, candidate and score, [B, count]
        each. Where there are fewer, the score is minus infinity.

        lengths[B], before[B]: the length of each prefix, and its log-probability.
        """
        step = np.arange(len(self.token))[:, None]
        final = (self.ended & (step <= self.last)[..., None]) | self.cut | self.blocked
        c, t, b = np.moveaxis(final, -1, 0).nonzero()
        score = self.score[t, b, c] + before[b]
        score /= self.options.divisor(t + 1 + lengths[b])
        order = np.lexsort((c, t, -score, b))
        t, b, c, score = t[order], b[order], c[order], score[order]
        place = np.arange(len(b)) - np.searchsorted(b, b)  # rank within its sentence
        shape = len(lengths), count
        steps, candidates = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        scores = np.full(shape, -np.inf)
        chosen = place < count
        where = b[chosen], place[chosen]
        steps[where], candidates[where], scores[where] = t[chosen], c[chosen], score[chosen]
        return steps, candidates, scores

    def trace(self, step: Numbers, candidate: Numbers) -> tuple[Numbers, Numbers]:
        """Follow parents back from [B, n] candidates: tokens and log-probabilities [B, n, T], valid
        up to `step`."""
        # The previous candidate of each: the number of candidates before its parent hypothesis.
        older = np.zeros_like(self.parent)
        for c in range(older.shape[-1]):
            older[1:] += self.going[:-1, :, c, None] <= self.parent[1:]
        np.minimum(older, older.shape[-1] - 1, out=older)  # a candidate that does not exist has any
        row, ends = np.arange(len(step))[:, None], set(step.flat)
        path = np.zeros((len(self.token), *step.shape), np.int64)  # [T, B, n]
        at = candidate
        for t in range(max(ends), -1, -1):
            if t in ends:
                at = np.where(step == t, candidate, at)
            path[t] = at
            at = older[t][row, at]
        time = np.arange(len(path))[:, None, None]
        on_path = (numbers[time, row, path] for numbers in (self.token, self.logprob))
        tokens, logprobs = (np.moveaxis(numbers, 0, -1) for numbers in on_path)
        return tokens, logprobs

    def history(self, row: int) -> list[list[Candidate]]:
        """All candidates of one sentence, step by step."""
        steps = []
        for t in range(int(self.last[row]) + 1):
            candidates = []
            for c in range(self.token.shape[-1]):
                if self.score[t, row, c] == -np.inf:
                    continue
                kept, ended = self.kept[t, row, c], self.ended[t, row, c]
                parent = int(self.parent[t, row, c])
                if self.options.temperature and t:  # the parent's index among the kept samples
                    parent = int(self.kept[t - 1, row, :parent].sum())
                candidates.append(Candidate(
                    int(self.token[t, row, c]), parent,
                    float(self.logprob[t, row, c]), float(self.score[t, row, c]),
                    "ended" if ended else "kept" if kept else "pruned",
                ))  # fmt: skip
            steps.append(candidates)
        return steps


def read_predictions(
    options: DecodingConfig, recorded: Numbers, limits: Sequence[int],
    prefixes: Sequence[tuple[Sequence[int], Sequence[float]]], history: bool = False,
    spares: bool = False, eos: int = Tokenizer.eos,
) -> list[Prediction]:  # fmt: skip
    """The best prediction of each sentence, with the rest of the n-best list in `others`.

    recorded: Beams.records, [T, B, C, 4]. limits: the largest number of steps of each sentence.
    prefixes: of the outputs, with their log-probabilities. history: add all candidates.
    spares: if there is an n-best list, add up to decoding.beam further outputs to it, from which
    `spell` replaces duplicates. eos: the token that ends an output.
    """
    if options.width == 1 and len(limits) == 1 and not history:
        only = read_hypothesis(options, recorded[:, 0, 0], limits[0], prefixes[0], eos)
        if only is not None:
            return [only]
    records = Records(options, recorded, limits, eos)
    lengths = np.array([len(tokens) for tokens, _ in prefixes])
    scores = np.array([sum(logprobs) for _, logprobs in prefixes])
    count = options.width if spares and options.n_best > 1 else options.n_best
    step, candidate, score = records.best(lengths, scores, count)
    tokens, logprobs = records.trace(step, candidate)
    row = np.arange(len(step))[:, None]
    ended, cut = records.ended[step, row, candidate], records.cut[step, row, candidate]
    stopped = np.where(ended, "end", np.where(cut, "length", "blocked"))
    # Convert to lists in one call: reading single elements of an array is slow.
    arrays = step, tokens, logprobs, score, stopped
    columns = (x.reshape(-1, *x.shape[2:]).tolist() for x in arrays)
    all_predictions = [
        Prediction(its_tokens[: last + 1], its[: last + 1], total, why)
        for last, its_tokens, its, total, why in zip(*columns, strict=True)
    ]
    best_predictions, group_size = [], step.shape[1]
    for b, (old_tokens, old_logprobs) in enumerate(prefixes):
        group = all_predictions[b * group_size : (b + 1) * group_size]
        predictions = [prediction for prediction in group if prediction.score > -np.inf]
        if not predictions:  # not even a first token was allowed
            predictions = [scored_prediction(old_tokens, old_logprobs, options, "blocked")]
        elif old_tokens:
            for prediction in predictions:
                prediction.token_ids = [*old_tokens, *prediction.token_ids]
                prediction.logprobs = [*old_logprobs, *prediction.logprobs]
        predictions[0].others = predictions[1:]
        if history:
            predictions[0].history = records.history(b)
        best_predictions.append(predictions[0])
    return best_predictions


def read_hypothesis(
    options: DecodingConfig, recorded: Numbers, limit: int,
    prefix: tuple[Sequence[int], Sequence[float]], eos: int,
) -> Prediction | None:  # fmt: skip
    """`read_predictions` for one sentence with one hypothesis, without the cost of general arrays.
    recorded: [T, 4], its first candidates. None: it has not ended, or it has no token."""
    columns = recorded.T.tolist()
    tokens, scores = [int(token) for token in columns[TOKEN]], columns[SCORE]
    for last, (token, score) in enumerate(zip(tokens, scores, strict=True)):
        stopped = "end" if token == eos else "length" if last + 1 == limit else ""
        if not score > -math.inf:  # every token was forbidden
            last, stopped = last - 1, "blocked"
        if stopped:
            break
    if last < 0 or not stopped:
        return None
    old_tokens, old_logprobs = prefix
    size = options.divisor(np.array([last + 1 + len(old_tokens)]))
    total = (np.array([scores[last]]) + sum(old_logprobs)) / size
    logprobs = [*old_logprobs, *columns[LOGPROB][: last + 1]]
    return Prediction([*old_tokens, *tokens[: last + 1]], logprobs, float(total[0]), stopped)


def open_paths(
    options: DecodingConfig, recorded: Numbers, limit: int, eos: int = Tokenizer.eos
) -> list[list[int]]:
    """The tokens of every hypothesis of one sentence that can still become its prediction, or the
    beginning of it."""
    records = Records(options, recorded, [limit], eos)
    last = int(records.last[0])
    now = np.arange(len(recorded))[:, None] == last
    possible = (records.ended | records.blocked | (records.kept & now[..., None]))[: last + 1, 0]
    ends = [(int(t), int(c)) for t, c in zip(*possible.nonzero(), strict=True)]
    if not ends:
        return [[]]
    at = np.array(ends)
    tokens, _ = records.trace(at[None, :, 0], at[None, :, 1])
    return [tokens[0, i, : t + 1].tolist() for i, (t, _) in enumerate(ends)]
