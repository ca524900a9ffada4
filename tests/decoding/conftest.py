"""Fixtures of the decoding tests: random models, requests and slow reference implementations."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch

from regard import Packed, Transformer
from regard.config.sections import DecodingConfig
from regard.decoding.predictions import Prediction
from regard.decoding.requests import Request

BOS, EOS = 1, 2


@pytest.fixture(scope="session")
def net(model) -> Callable[..., Transformer]:
    """net(seed=3, style="decoder", ...): as `model`, but with weights that depend on the seed.
    The output matrix is not tied and the embeddings are large; otherwise a random model would
    repeat one token for any input."""

    @cache
    def make(seed: int = 2, **changes) -> Transformer:
        torch.manual_seed(seed)
        both = changes.get("style", "encoder-decoder") == "encoder-decoder"
        own = {"tie_embeddings": "source-target" if both else "none", "vocabulary_size": 12}
        transformer = model(**{**own, **changes})
        for table in transformer.embeddings.values():
            table.weight.data *= 2
        return transformer

    return make


@pytest.fixture(scope="session")
def make_requests() -> Callable[..., list[Request]]:
    """make_requests(5): five requests with sources of different length that end with <eos>."""

    def make(count: int, seed: int = 0, vocabulary: int = 12, **more) -> list[Request]:
        random = np.random.default_rng(seed)
        lengths = random.permutation(np.arange(count) % 9)
        return [
            Request([*random.integers(3, vocabulary, n).tolist(), EOS], **more) for n in lengths
        ]

    return make


@pytest.fixture(scope="session")
def following() -> Callable[..., np.ndarray]:
    """following(net, request, answers): log-probabilities [n, V] of the token after each of the
    answers, computed by full passes without regard.decoding."""

    @torch.no_grad()
    def full_pass(net: Transformer, request: Request, answers: Sequence[Sequence[int]]):
        both = net.config.has_encoder
        begin = [BOS] if both else list(request.source)
        target = Packed.of([[*begin, *answer] for answer in answers])
        source = Packed.of([request.source] * len(answers)) if both else None
        logits = net(source, target)[target.offsets[1:] - 1]
        return logits.double().log_softmax(-1).numpy()

    return full_pass


@pytest.fixture(scope="session")
def beam_search(following) -> Callable[..., list[tuple[list[int], float]]]:
    """A short beam search in plain Python: predictions with their scores, the best first."""

    def search(net: Transformer, request: Request, options: DecodingConfig, limit: int):
        width, prefix = options.beam, list(request.prefix)
        live, ended = [(0.0, [])], []
        rows = [prefix[:i] for i in range(len(prefix))]
        prefix_logprobs = following(net, request, rows) if rows else []
        before = sum(float(row[token]) for row, token in zip(prefix_logprobs, prefix, strict=True))
        for step in range(limit - len(prefix)):
            odds = following(net, request, [prefix + tokens for _, tokens in live])
            candidates = []
            for (score, tokens), row in zip(live, odds, strict=True):
                for token, logprob in enumerate(row.tolist()):
                    if token == EOS and len(prefix) + step < options.min_length:
                        continue
                    if completes([*prefix, *tokens, token], options.no_repeat):
                        continue
                    candidates.append((score + logprob, [*tokens, token]))
            candidates.sort(key=lambda candidate: -candidate[0])
            candidates = candidates[: 2 * width]
            ended += [c for rank, c in enumerate(candidates) if c[1][-1] == EOS and rank < width]
            live = [c for c in candidates if c[1][-1] != EOS][:width]
            if len(ended) >= width or not live:
                break
        if step + 1 == limit - len(prefix):
            ended += live
        complete = [
            (prefix + tokens, (before + score) / divisor(len(prefix + tokens), options))
            for score, tokens in ended
        ]
        return sorted(complete, key=lambda answer: -answer[1])[: options.n_best]

    return search


def divisor(tokens: int, options: DecodingConfig) -> float:
    offset = options.length_offset
    return math.pow((offset + tokens) / (offset + 1), options.length_penalty)


def completes(tokens: Sequence[int], size: int) -> bool:
    """Whether the last `size` tokens also occur earlier in the sequence."""
    last = list(tokens[-size:])
    return size > 0 and any(list(tokens[i : i + size]) == last for i in range(len(tokens) - size))


def repeats(tokens: Sequence[int], size: int) -> bool:
    """Whether any n-gram of `size` tokens occurs twice."""
    parts = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return size > 0 and len(set(parts)) < len(parts)


@pytest.fixture(scope="session")
def repeated() -> Callable[[Sequence[int], int], bool]:
    return repeats


@pytest.fixture(scope="session")
def all_of() -> Callable[[Prediction], list[Prediction]]:
    """The n-best list: the best prediction and the others."""
    return lambda answer: [answer, *answer.others]


@pytest.fixture(scope="session")
def same(all_of) -> Callable[..., None]:
    """same(results, expected): check equal tokens and stop reasons, and scores within `atol`."""

    def check(
        results: Sequence[Prediction], expected: Sequence[Prediction], atol: float = 1e-5
    ) -> None:
        assert len(results) == len(expected)
        for result, reference in zip(results, expected, strict=True):
            mine, theirs = all_of(result), all_of(reference)
            assert [a.token_ids for a in mine] == [a.token_ids for a in theirs]
            assert [a.stopped for a in mine] == [a.stopped for a in theirs]
            for a, b in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=atol)
                np.testing.assert_allclose(a.score, b.score, rtol=0, atol=atol)

    return check
