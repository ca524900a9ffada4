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

from regard.config import DecodingConfig

TOKEN, PARENT, LOGPROB, SCORE = range(4)  # of a candidate in the records


class Beams:
    """State of the search. `limits[b]`: steps that sentence b may take; `given[b]`: the tokens of
    its answer that were there before the search; `names[b]`: what its random numbers hang on."""

    def __init__(
        self,
        options: DecodingConfig,
        limits: Sequence[int],
        given: Sequence[Sequence[int]],
        names: Sequence[bytes],
        eos: int,
        device: torch.device,
    ) -> None:
        self.options, self.eos, self.width = options, eos, options.width
        self.samples = options.temperature > 0
        sentences, steps, width = len(limits), max(limits), options.width
        self.candidates = width if self.samples else 2 * width  # C
        self.limits = torch.tensor(limits, device=device)  # [B]
        self.least = options.min_length - torch.tensor([len(g) for g in given], device=device)
        self.rank = torch.arange(self.candidates, device=device)
        self.time = torch.zeros(1, dtype=torch.long, device=device)
        self.rows = torch.arange(sentences, device=device)  # [B]: their rows in the records
        self.tokens = torch.zeros(sentences, width, dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        # Of each hypothesis; minus infinity: there is none. A beam begins with one.
        self.scores = torch.zeros(sentences, width, dtype=torch.float64, device=device)
        if not self.samples:
            self.scores[:, 1:] = -math.inf
        self.answers = torch.zeros(sentences, dtype=torch.long, device=device)
        self.done = torch.zeros(sentences, dtype=torch.bool, device=device)
        shape = (steps, sentences, self.candidates, 4)
        self.records = torch.zeros(shape, dtype=torch.float64, device=device)
        self.noise: Tensor | None = None  # [B, W, steps], uniform in [0, 1)
        if self.samples:
            draws = [uniform(options.seed, name, width, steps) for name in names]
            self.noise = torch.from_numpy(np.stack(draws)).to(device)
        self.said: Tensor | None = None  # [B, W, tokens]: all of each answer so far, -1 around it
        if options.no_repeat:
            before = max(len(g) for g in given)
            padded = [[-1] * (before - len(g)) + list(g) + [-1] * steps for g in given]
            said = torch.tensor(padded, dtype=torch.long, device=device)
            self.said = said[:, None].repeat(1, width, 1)
            self.before = before

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

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only; the records of the others stay."""
        for name in ("rows", "limits", "least", "tokens", "parents", "scores", "answers", "done"):
            setattr(self, name, getattr(self, name)[rows])
        if self.noise is not None:
            self.noise = self.noise[rows]
        if self.said is not None:
            self.said = self.said[rows]

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


def sample(logprobs: Tensor, noise: Tensor, options: DecodingConfig) -> Tensor:
    """logprobs[..., V], noise[..., 1] uniform in [0, 1) -> tokens[..., 1]: the one in which the
    cumulated probability passes the noise."""
    scores = logprobs.double() / options.temperature
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
