"""Beam search and sampling: the hypotheses of a search, and how one step extends them.

`Beams` is the specification. `ops/cpu/choose.h` (C++) and `ops/cuda/search_kernels.py` (Triton)
implement `advance` for beam search on the same tensors; tests/decoding/test_steps.py compares them.

The state of B sentences with W hypotheses each is a set of tensors, which `advance` changes in
place without synchronising with the host, so that a CUDA graph can contain a step. Each step also
writes its candidates to `records`; the predictions are computed from the records after the search
(predictions.py).

Beam search (section 6.1 of the paper): a step ranks the 2W best candidates of a sentence. A
candidate among the first W that ends with <eos> is a finished hypothesis. The first W candidates
that do not end are the hypotheses of the next step. A sentence is done when it has W finished
hypotheses or reaches its limit. Greedy search is W = 1. Sampling follows W hypotheses that are
independent of each other.
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

TOKEN, PARENT, LOGPROB, SCORE = range(4)  # the fields of a candidate in the records


class Beams:
    """The hypotheses of B sentences. Call `load`, then `restart`, then `advance` once per step.

    steps, prefix: the largest number of steps of a sentence, and of tokens that an output has
    before the search. eos: the token that ends an output.
    """

    def __init__(
        self, options: DecodingConfig, sentences: int, steps: int, prefix: int, eos: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.options, self.eos, self.width, self.prefix = options, eos, options.width, prefix
        self.sampling = options.temperature > 0
        self.candidates = candidates_of(options)  # C
        width = self.width

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.inputs = zeros(3, sentences)  # limits, min_steps and first tokens, copied in one piece
        self.limits = self.inputs[0]  # [B]: the largest number of steps
        self.min_steps = self.inputs[1]  # [B]: steps before <eos> is allowed
        self.rank = torch.arange(self.candidates, device=device)
        self.time = zeros(1)
        self.rows = torch.arange(sentences, device=device)  # [B]: index of a sentence in `records`
        self.tokens, self.parents = zeros(sentences, width), zeros(sentences, width)
        # Sums of log-probabilities. Minus infinity: there is no such hypothesis. Beam search
        # starts with one hypothesis.
        self.scores = zeros(sentences, width, dtype=torch.float64)
        self.initial_scores = zeros(width, dtype=torch.float64)
        if not self.sampling:
            self.initial_scores[1:] = -math.inf
        self.finished = zeros(sentences)  # [B]: the number of finished hypotheses
        self.done = zeros(sentences, dtype=torch.bool)
        self.records = zeros(steps, sentences, self.candidates, 4, dtype=torch.float64)
        self.noise: Tensor | None = None  # [B, W, steps]: uniform in [0, 1)
        if self.sampling:
            self.noise = zeros(sentences, width, steps, dtype=torch.float64)
        # [B, W, prefix + steps]: all tokens of each hypothesis; -1 before and after them.
        self.sequences: Tensor | None = None
        if options.no_repeat:
            self.sequences = zeros(sentences, width, prefix + steps)

    def load(
        self, newest: Sequence[int], limits: Sequence[int], prefixes: Sequence[Sequence[int]],
        noise_keys: Sequence[bytes],
    ) -> None:  # fmt: skip
        """Set the inputs of a search, which are those of the `Job` with the same names. There may
        be fewer than B sentences; the others are done before the first step."""
        count = len(limits)
        inputs = np.zeros(self.inputs.shape, np.int64)
        min_steps = [self.options.min_length - len(tokens) for tokens in prefixes]
        inputs[:, :count] = limits, min_steps, newest
        self.inputs.copy_(torch.from_numpy(inputs))
        if self.noise is not None:
            steps = self.noise.shape[-1]
            draws = [uniform(self.options.seed, key, self.width, steps) for key in noise_keys]
            self.noise[:count] = torch.from_numpy(np.stack(draws)).to(self.noise)
        if self.sequences is not None:
            self.sequences.fill_(-1)
            for b, tokens in enumerate(prefixes):
                if tokens:
                    ids = torch.tensor(tokens, device=self.sequences.device)
                    self.sequences[b, :, self.prefix - len(tokens) : self.prefix] = ids

    def restart(self) -> None:
        """Go back to the first step."""
        self.time.zero_()
        self.tokens.copy_(self.inputs[2, :, None].expand_as(self.tokens))
        self.scores.copy_(self.initial_scores.expand_as(self.scores))
        self.parents.zero_()
        self.finished.zero_()
        self.done.copy_(self.limits == 0)

    @property
    def reordering(self) -> Tensor | None:
        """The parents[B, W]; None if every hypothesis always continues itself."""
        return None if self.sampling or self.width == 1 else self.parents

    def advance(self, logits: Tensor) -> None:
        """One step: logits[B, W, V] of the next token choose the next hypotheses."""
        logprobs = logits.log_softmax(-1, dtype=torch.float32)
        self._forbid(logprobs)
        choose = self._draw if self.sampling else self._best
        token, parent, logprob, score = choose(logprobs)  # [B, C] each
        columns = [token.double(), parent.double(), logprob.double(), score]
        self.records.index_put_((self.time, self.rows), torch.stack(columns, -1))
        end = token == self.eos
        ended = end & (self.rank < self.width) & (score > -math.inf)
        if self.sampling:
            self.scores.copy_(score.masked_fill(end, -math.inf))
            self.tokens.copy_(token)
        else:
            # The first W candidates that do not end. At most W of the 2W candidates end, because
            # each hypothesis has one continuation that does.
            live = (self.rank + self.candidates * end).argsort(-1)[:, : self.width]  # [B, W]
            self.scores.copy_(score.gather(1, live))
            self.tokens.copy_(token.gather(1, live))
            self.parents.copy_(parent.gather(1, live))
        if self.sequences is not None:
            self._extend(self.sequences)
        self.time += 1
        self.finished += ended.sum(-1)
        nothing_left = (self.scores == -math.inf).all(-1)
        self.done |= (self.finished >= self.width) | (self.time >= self.limits) | nothing_left

    def per_sentence(self) -> dict[str, Tensor]:
        """The tensors whose first dimension is the sentence."""
        names = ["rows", "limits", "min_steps", "tokens", "parents", "scores", "finished", "done"]
        names += [name for name in ("noise", "sequences") if getattr(self, name) is not None]
        return {name: getattr(self, name) for name in names}

    def keep(self, rows: Tensor) -> None:
        """Continue with these sentences only; the records of the others stay."""
        for name, tensor in self.per_sentence().items():
            setattr(self, name, tensor[rows])

    def _best(self, logprobs: Tensor) -> tuple[Tensor, ...]:
        """The 2W best candidates of each sentence: token, parent, log-probability, score."""
        top_count = min(self.candidates, logprobs.shape[-1])  # candidates of one hypothesis
        logprob, token = logprobs.topk(top_count)  # [B, W, top_count]
        total = (self.scores[..., None] + logprob).flatten(1)
        score, chosen = total.topk(self.candidates)
        parent = chosen.div(top_count, rounding_mode="floor")
        token, logprob = (x.flatten(1).gather(1, chosen) for x in (token, logprob))
        return token, parent, logprob, score

    def _draw(self, logprobs: Tensor) -> tuple[Tensor, ...]:
        """One sampled token for each hypothesis: token, parent, log-probability, score."""
        assert self.noise is not None
        noise = self.noise.index_select(2, self.time)  # [B, W, 1]
        token = sample(logprobs, noise, self.options)
        logprob = logprobs.gather(-1, token)[..., 0]
        score = self.scores + logprob
        return token[..., 0], self.rank.expand_as(score), logprob, score

    def _forbid(self, logprobs: Tensor) -> None:
        """Set forbidden tokens to minus infinity. The others keep the model's log-probability:
        there is no renormalisation."""
        if self.options.min_length and self.eos >= 0:
            early = (self.time < self.min_steps)[:, None]  # [B, 1]
            logprobs[..., self.eos].masked_fill_(early, -math.inf)
        if self.sequences is not None:
            length = self.time + self.prefix
            forbid_repeats(logprobs, self.sequences, length, self.options.no_repeat)

    def _extend(self, sequences: Tensor) -> None:
        """Replace each sequence by that of its parent with the new token."""
        if not self.sampling:
            parents = self.parents[..., None].expand_as(sequences)
            sequences.copy_(sequences.gather(1, parents))
        sequences.index_copy_(2, self.time + self.prefix, self.tokens[..., None])


def candidates_of(options: DecodingConfig) -> int:
    """C, the number of candidates that are ranked and recorded for each sentence and step."""
    return options.width if options.temperature else 2 * options.width


def sample(logprobs: Tensor, noise: Tensor, options: DecodingConfig) -> Tensor:
    """Sample by inverting the cumulative distribution, after temperature, top-k and top-p.

    logprobs[..., V], noise[..., 1] uniform in [0, 1) -> tokens[..., 1].
    """
    highest = logprobs.amax(-1, keepdim=True)  # subtracted, so that no temperature overflows
    scores = (logprobs - highest).double() / options.temperature
    size = logprobs.shape[-1]
    top_count = min(options.top_k or size, size)
    sort = options.top_k or options.top_p < 1
    scores, tokens = scores.topk(top_count) if sort else (scores, None)
    probability = scores.softmax(-1)
    if options.top_p < 1:  # drop the tokens after the mass is reached, never the first
        before = probability.cumsum(-1) - probability
        probability = probability.masked_fill(before >= options.top_p, 0.0)
    cumulative = probability.cumsum(-1)
    chosen = torch.searchsorted(cumulative, noise * cumulative[..., -1:], right=True)
    # Rounding can lead one place behind the last possible token.
    last = (probability > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    chosen = torch.minimum(chosen, last)
    return chosen if tokens is None else tokens.gather(-1, chosen)


def forbid_repeats(logprobs: Tensor, sequences: Tensor, length: Tensor, size: int) -> None:
    """Forbid every token that would repeat an n-gram of `size` tokens.

    sequences[B, W, T] contains the hypotheses so far in its first `length` (a tensor [1]) places.
    """
    total = sequences.shape[-1]
    if total < size:
        return
    windows = sequences.unfold(-1, size, 1)  # [B, W, T-size+1, size]
    places = length - size + 1 + torch.arange(size - 1, device=sequences.device)
    newest = sequences.index_select(-1, places.clamp(min=0))  # [B, W, size-1]
    start = torch.arange(windows.shape[2], device=sequences.device)
    same = (windows[..., :-1] == newest[..., None, :]).all(-1)  # [B, W, T-size+1]
    same &= (start + size <= length) & (windows >= 0).all(-1)
    # A window that matches nothing writes back the value that its token has already.
    token = windows[..., -1].clamp(min=0)
    value = logprobs.gather(-1, token).masked_fill(same, -math.inf)
    logprobs.scatter_reduce_(-1, token, value, "amin")


def uniform(seed: int, key: bytes, width: int, steps: int) -> NDArray[np.float64]:
    """Random numbers [W, steps] that depend only on the seed and the key of the sentence. They do
    not depend on the batch; more samples or steps append numbers and change none."""
    rows = []
    for sample_number in range(width):
        text = f"{seed} {sample_number} ".encode() + key
        digest = hashlib.blake2b(text, digest_size=16).digest()
        generator = np.random.Philox(key=int.from_bytes(digest, "little"))
        rows.append(np.random.Generator(generator).random(steps))
    return np.stack(rows)
