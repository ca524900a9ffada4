"""Searches from several threads on a CUDA device: each has a captured program of its own."""

import pytest
import torch

from regard.config import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import decode
from threads import check_concurrent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODES = {
    "greedy": DecodingConfig(beam=1, max_length=20),
    "beam": DecodingConfig(beam=4, n_best=3, max_length=8),
    "samples": DecodingConfig(beam=1, temperature=1.0, n_best=3, max_length=8),
    "long": DecodingConfig(beam=1, min_length=120, max_length=120),
}
REQUESTS = [Request([3 + (5 * i + j) % 9 for j in range(1 + 6 * i)]) for i in range(5)]


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_concurrent_searches_find_what_they_find_alone(style, model):
    net = model(style=style, dtype=torch.float32, d_model=32, positions="rotary").cuda()

    def found(options, requests):
        return [
            (one.tokens, one.logprobs, one.score)
            for answer in decode(net, requests, options) for one in (answer, *answer.others)
        ]  # fmt: skip

    calls = {
        f"{name} {count}": lambda options=options, count=count: found(options, REQUESTS[:count])
        for name, options in MODES.items()
        for count in (1, 5)
    }
    calls["score"] = lambda: [one.logprobs for one in score(net, REQUESTS, [[5, 6, 2]] * 5)]
    assert check_concurrent(calls, threads=6, rounds=4) == 6 * 4 * 9
    assert net.engine == "auto"
