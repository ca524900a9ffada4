"""A request has the same prediction on a GPU in float32, bit for bit, in any continuous batch."""

import random

import pytest
import torch

from regard.config.sections import DecodingConfig
from regard.decoding.continuous import ContinuousBatch
from regard.decoding.requests import Request

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EOS = 2
VOCABULARY = 1200
MODES = [
    {"beam": 1},
    {"beam": 4, "n_best": 2},
    {"beam": 1, "temperature": 1.0, "seed": 3},
    {"beam": 2, "no_repeat": 2},
]
MODELS = {
    "fused": {},
    "window": {"window": 6, "positions": "rotary"},  # without the fused kernels
    "language model": {"style": "decoder", "positions": "learned", "max_length": 200},
}


def mixed_requests(count, seed):
    choice = random.Random(seed)
    pairs = []
    for _ in range(count):
        source = [choice.randrange(3, VOCABULARY) for _ in range(choice.randint(1, 50))]
        prefix = [choice.randrange(3, VOCABULARY) for _ in range(choice.choice([0, 0, 3]))]
        options = DecodingConfig(max_length=choice.choice([10, 20]), **choice.choice(MODES))
        pairs.append((Request([*source, EOS], prefix), options))
    return pairs


def values(prediction):
    each = (prediction, *prediction.others)
    return repr([(p.token_ids, p.logprobs, p.score, p.stopped) for p in each])


def run(net, pairs, seed, most):
    """The values of all predictions; up to `most` requests join at a time."""
    choice = random.Random(seed)
    batch, waiting, results, owners = ContinuousBatch(net), list(range(len(pairs))), {}, {}
    while waiting or batch.running:
        joining = waiting[: choice.randint(0 if batch.running else 1, most)]
        if joining and (most > 1 or not batch.running):
            waiting = waiting[len(joining) :]
            owners |= dict(zip(batch.add([pairs[i] for i in joining]), joining, strict=True))
        for running in batch.step():
            results[owners[running]] = values(running.prediction())
    return [results[i] for i in range(len(pairs))]


@pytest.mark.parametrize("d_model", [32, 512])
@pytest.mark.parametrize("kind", MODELS)
def test_mixture_is_bit_identical_to_each_request_alone(kind, d_model, model, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    changes = MODELS[kind]
    torch.manual_seed(0)
    net = model(dtype=torch.float32, d_model=d_model, d_ff=2 * d_model,
                heads=max(2, d_model // 64), vocabulary_size=VOCABULARY, **changes).cuda()  # fmt: skip
    pairs = mixed_requests(48, seed=1)
    alone = run(net, pairs, seed=2, most=1)
    assert len(set(alone)) > 40
    assert run(net, pairs, seed=3, most=24) == alone
    assert run(net, pairs[::-1], seed=4, most=12)[::-1] == alone
