"""The hypotheses of a search, and how they grow by one token: beam search and sampling.

Everything is a tensor that `advance` changes in place without asking the host, for B sentences
with W hypotheses each at once: on a GPU a step of the model and this are captured together. What
happened is written down, one row of candidates a step, and the answers are read off those records
at the end (answers.py).

Beam search (section 6.1): the 2W best candidates of a sentence are looked at, in order. One that
ends among the first W is an answer; the first W that do not end go on. A sentence is done when it
has W answers or reaches its limit. Greedy search is W = 1. Sampling follows W hypotheses that do
not compete.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.config.sections import DecodingConfig

TOKEN, PARENT, LOGPROB, SCORE = range(4)  # of a candidate in the records


class Beams:
    """The state of a search of at most `steps` steps, where at most `before` tokens of an answer
    were there before it; `load` says what is searched for, `restart` begins."""

    def __init__(
        self,
        options: DecodingConfig,
        sentences: int,
        steps: int,
        before: int,
        eos: int,
        device: torch.device,
    ) -> None:
        self.options, self.eos, self.width, self.before = options, eos, options.width, before
        self.samples = options.temperature > 0
        self.candidates = candidates_of(options)  # C
        width = self.width

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.numbers = zeros(3, sentences)  # [3, B]: what `load` brings, in one piece
        self.limits = self.numbers[0]  # steps that each may take
        self.least = self.numbers[1]  # steps before each may end
        self.rank = torch.arange(self.candidates, device=device)
        self.time = zeros(1)
        self.rows = torch.arange(sentences, device=device)  # [B]: their rows in the records
        self.tokens, self.parents = zeros(sentences, width), zeros(sentences, width)
        # Of each hypothesis; minus infinity: there is none. A beam begins with one.
        self.scores = zeros(sentences, width, dtype=torch.float64)
        self.begin = zeros(width, dtype=torch.float64)
        if not self.samples:
            self.begin[1:] = -math.inf
        self.answers, self.done = zeros(sentences), zeros(sentences, dtype=torch.bool)
        self.records = zeros(steps, sentences, self.candidates, 4, dtype=torch.float64)
        self.noise: Tensor | None = None  # uniform in [0, 1)
        if self.samples:
            self.noise = zeros(sentences, width, steps, dtype=torch.float64)
        self.said: Tensor | None = None  # all of each answer so far, -1 around it
        if options.no_repeat:
            self.said = zeros(sentences, width, before + steps)

    def load(
        self,
        newest: Sequence[int],
        limits: Sequence[int],
        given: Sequence[Sequence[int]],
        names: Sequence[bytes],
    ) -> None:
        """For each sentence the newest token that is known of it, the steps it may take, the
        tokens of its answer that are there already, and what its random numbers hang on. There may
        be fewer sentences than room for them: the others are done before they begin."""
        here = len(limits)
        numbers = np.zeros(self.numbers.shape, np.int64)
        least = [self.options.min_length - len(tokens) for tokens in given]
        numbers[:, :here] = limits, least, newest
        self.numbers.copy_(torch.from_numpy(numbers))
        if self.noise is not None:
            steps = self.noise.shape[-1]
            draws = [uniform(self.options.seed, name, self.width, steps) for name in names]
            self.noise[:here] = torch.from_numpy(np.stack(draws)).to(self.noise)
        if self.said is not None:
            self.said.fill_(-1)
            for b, tokens in enumerate(given):
                if tokens:
                    ids = torch.tensor(tokens, device=self.said.device)
                    self.said[b, :, self.before - len(tokens) : self.before] = ids

    def restart(self) -> None:
        """Back to the first step."""
        self.time.zero_()
        self.tokens.copy_(self.numbers[2, :, None].expand_as(self.tokens))
        self.scores.copy_(self.begin.expand_as(self.scores))
        self.parents.zero_()
        self.answers.zero_()
        self.done.copy_(self.limits == 0)

    @property
    def moved(self) -> Tensor | None:
        """The parents, where a hypothesis can have another than itself."""
        return None if self.samples or self.width == 1 else self.parents

    def advance(self, logits: Tensor) -> None:
        """logits[B, W, V] of the next token: choose, write down, go on."""
        logprobs = logits.log_softmax(-1, dtype=torch.float32)
        self._forbid(logprobs)
        choose = self._draw if self.samples else self._best
        token, parent, logprob, score = choose(logprobs)  # [B, C] each
        columns = [token.double(), parent.double(), logprob.double(), score]
        self.records.index_put_((self.time, self.rows), torch.stack(columns, -1))
        end = token == self.eos
        ended = end & (self.rank < self.width) & (score > -math.inf)
        if self.samples:
            self.scores.copy_(score.masked_fill(end, -math.inf))
            self.tokens.copy_(token)
        else:
            # The first W that do not end; there are so many, since a hypothesis ends in one way.
            live = (self.rank + self.candidates * end).argsort(-1)[:, : self.width]  # [B, W]
            self.scores.copy_(score.gather(1, live))
            self.tokens.copy_(token.gather(1, live))
            self.parents.copy_(parent.gather(1, live))
        if self.said is not None:
            self._say(self.said)
        self.time += 1
        self.answers += ended.sum(-1)
        nothing_left = (self.scores == -math.inf).all(-1)
        self.done |= (self.answers >= self.width) | (self.time >= self.limits) | nothing_left

    def per_sentence(self) -> dict[str, Tensor]:
        """What belongs to a sentence and goes where it goes."""
        names = ["rows", "limits", "least", "tokens", "parents", "scores", "answers", "done"]
        names += [name for name in ("noise", "said") if getattr(self, name) is not None]
        return {name: getattr(self, name) for name in names}

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only; the records of the others stay."""
        for name, tensor in self.per_sentence().items():
            setattr(self, name, tensor[rows])

    def _best(self, logprobs: Tensor) -> tuple[Tensor, ...]:
        """The 2W best continuations of each sentence."""
        most = min(self.candidates, logprobs.shape[-1])  # of one hypothesis
        logprob, token = logprobs.topk(most)  # [B, W, most]
        total = (self.scores[..., None] + logprob).flatten(1)
        score, chosen = total.topk(self.candidates)
        parent = chosen.div(most, rounding_mode="floor")
        return (
            token.flatten(1).gather(1, chosen),
            parent,
            logprob.flatten(1).gather(1, chosen),
            score,
        )

    def _draw(self, logprobs: Tensor) -> tuple[Tensor, ...]:
        """One token for each hypothesis, at random."""
        assert self.noise is not None
        noise = self.noise.index_select(2, self.time)  # [B, W, 1]
        token = sample(logprobs, noise, self.options)
        logprob = logprobs.gather(-1, token)[..., 0]
        score = self.scores + logprob
        return token[..., 0], self.rank.expand_as(score), logprob, score

    def _forbid(self, logprobs: Tensor) -> None:
        """Minus infinity for what may not come next. What is left is not made more probable: a
        token's log-probability is the model's."""
        if self.options.min_length:
            early = (self.time < self.least)[:, None]  # [B, 1]
            logprobs[..., self.eos].masked_fill_(early, -math.inf)
        if self.said is not None:
            forbid_repeats(logprobs, self.said, self.time + self.before, self.options.no_repeat)

    def _say(self, said: Tensor) -> None:
        """Hypotheses have other parents now, and one token more."""
        if not self.samples:
            said.copy_(said.gather(1, self.parents[..., None].expand_as(said)))
        said.index_copy_(2, self.time + self.before, self.tokens[..., None])


def candidates_of(options: DecodingConfig) -> int:
    """Candidates that are looked at, and written down, for each sentence and step (C)."""
    return options.width if options.temperature else 2 * options.width


def sample(logprobs: Tensor, noise: Tensor, options: DecodingConfig) -> Tensor:
    """logprobs[..., V], noise[..., 1] uniform in [0, 1) -> tokens[..., 1]: the one in which the
    cumulated probability passes the noise."""
    highest = logprobs.amax(-1, keepdim=True)  # first taken off: no temperature is too low then
    scores = (logprobs - highest).double() / options.temperature
    size = logprobs.shape[-1]
    most = min(options.top_k or size, size)
    sort = options.top_k or options.top_p < 1
    scores, tokens = scores.topk(most) if sort else (scores, None)
    probability = scores.softmax(-1)
    if options.top_p < 1:  # whatever comes after the mass is reached goes; the first never does
        before = probability.cumsum(-1) - probability
        probability = probability.masked_fill(before >= options.top_p, 0.0)
    cumulated = probability.cumsum(-1)
    chosen = torch.searchsorted(cumulated, noise * cumulated[..., -1:], right=True)
    # Rounding may lead behind the last token that is possible, never further.
    last = (probability > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    chosen = torch.minimum(chosen, last)
    return chosen if tokens is None else tokens.gather(-1, chosen)


def forbid_repeats(logprobs: Tensor, said: Tensor, length: Tensor, size: int) -> None:
    """No sequence of `size` tokens twice: forbid what would complete one that is in said[..., :T],
    where `length` (a tensor [1]) tokens count so far."""
    total = said.shape[-1]
    if total < size:
        return
    windows = said.unfold(-1, size, 1)  # [B, W, T-size+1, size]
    places = length - size + 1 + torch.arange(size - 1, device=said.device)
    newest = said.index_select(-1, places.clamp(min=0))  # [B, W, size-1]
    start = torch.arange(windows.shape[2], device=said.device)
    same = (windows[..., :-1] == newest[..., None, :]).all(-1)  # [B, W, T-size+1]
    same &= (start + size <= length) & (windows >= 0).all(-1)
    # Where nothing is forbidden, token 0 is set to what it is already.
    token = windows[..., -1].clamp(min=0)
    value = logprobs.gather(-1, token).masked_fill(same, -math.inf)
    logprobs.scatter_reduce_(-1, token, value, "amin")


def uniform(seed: int, name: bytes, width: int, steps: int) -> NDArray[np.float64]:
    """[W, steps] random numbers that hang on the seed and the sentence alone, not on the batch:
    nor on how many samples or steps there are."""
    rows = []
    for sample_number in range(width):
        key = hashlib.blake2b(f"{seed} {sample_number} ".encode() + name, digest_size=16).digest()
        generator = np.random.Philox(key=int.from_bytes(key, "little"))
        rows.append(np.random.Generator(generator).random(steps))
    return np.stack(rows)
