"""Searches from several threads on a CUDA device: each has its own CUDA graphs and buffers."""

from functools import partial

import pytest
import torch

from regard.config.sections import DecodingConfig
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
def test_concurrent_searches_equal_sequential_searches(style, model):
    net = model(style=style, dtype=torch.float32, d_model=32, positions="rotary").cuda()

    alone = {}

    def close(name, rows):
        """Compare log-probabilities with a tolerance: the moment at which a sentence moves to smaller
        buffers depends on the speed of the host, and rounding depends on the buffer size."""
        numbers = torch.tensor([x for row in rows for x in row])
        torch.testing.assert_close(numbers, alone.setdefault(name, numbers), rtol=0, atol=1e-4)

    def decoded(name, count):
        answers = decode(net, REQUESTS[:count], MODES[name])
        every = [prediction for answer in answers for prediction in (answer, *answer.others)]
        close((name, count), [prediction.logprobs for prediction in every])
        return [prediction.token_ids for prediction in every]

    calls = {f"{name} {count}": partial(decoded, name, count) for name in MODES for count in (1, 5)}
    calls["score"] = lambda: close(
        "score", [prediction.logprobs for prediction in score(net, REQUESTS, [[5, 6, 2]] * 5)]
    )
    assert check_concurrent(calls, threads=6, rounds=4) == 6 * 4 * 9
    assert net.backend == "auto"
