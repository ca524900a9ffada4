"""A request has the same prediction, bit for bit, alone and in any continuous batch."""

import dataclasses
import random

import pytest
import torch

from regard import InputError
from regard.config.sections import DecodingConfig
from regard.decoding.continuous import READ_TOKENS, ContinuousBatch, read_tokens
from regard.decoding.engines.cpu import CpuSearch
from regard.decoding.requests import Request
from regard.decoding.search import Details, Search, decode
from regard.ops.cpu import build as native

EOS = 2
VOCABULARY = 40
MODES = [
    {"beam": 1},
    {"beam": 2, "n_best": 2},
    {"beam": 4, "n_best": 4, "length_penalty": 1.0},
    {"beam": 7},
    {"beam": 3, "min_length": 6},
    {"beam": 3, "no_repeat": 2, "n_best": 2},
    {"beam": 1, "no_repeat": 1},
    {"beam": 1, "temperature": 1.0},
    {"beam": 1, "temperature": 1.3, "n_best": 3, "seed": 7},
    {"beam": 1, "temperature": 0.8, "top_k": 5, "n_best": 2},
    {"beam": 1, "temperature": 1.1, "top_p": 0.7, "seed": 3},
    {"beam": 1, "temperature": 1.2, "top_k": 9, "top_p": 0.8, "no_repeat": 2, "min_length": 4},
]
MODELS = {
    "translation": {},
    "translation with window": {"window": 3, "norm_first": True, "activation": "swiglu"},
    "language model": {"style": "decoder", "positions": "rotary", "norm": "rms"},
    "language model with learned positions": {
        "style": "decoder", "positions": "learned", "max_length": 60,
    },
}  # fmt: skip
needs_compiler = pytest.mark.skipif(
    native.library("inference") is None, reason="needs a C++ compiler"
)


@pytest.fixture
def two_threads():
    """C++ code with two threads, which must not change a result."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def mixed_requests(count, seed, longest=12):
    """Requests of many lengths, some with prefixes, limits or a complete prefix."""
    choice = random.Random(seed)
    pairs = []
    for _ in range(count):
        source = [choice.randrange(3, VOCABULARY) for _ in range(choice.randint(1, longest))]
        prefix = [choice.randrange(3, VOCABULARY) for _ in range(choice.choice([0, 0, 0, 1, 4]))]
        if choice.random() < 0.03:
            prefix = [*prefix, EOS]  # already complete
        limit = choice.choice([None, None, 1, 2, 7])
        options = DecodingConfig(max_length=choice.choice([3, 5, 8]), **choice.choice(MODES))
        pairs.append((Request([*source, EOS], prefix, limit), options))
    return pairs


def values(prediction):
    """All values of a prediction, for an exact comparison."""
    each = [(p.token_ids, p.logprobs, p.score, p.stopped) for p in (prediction, *prediction.others)]
    return repr((each, prediction.history))


def alone(net, request, options):
    return values(decode(net, [request], options, Details(history=True))[0])


def run_mixture(net, pairs, seed, cancelled=0.1, most=40):
    """Decode requests that join at random steps; some are removed at random steps. Returns the
    values by index."""
    choice = random.Random(seed)
    batch, waiting, results = ContinuousBatch(net), list(range(len(pairs))), {}
    owners = {}
    sizes = set()
    while waiting or batch.running:
        joining = waiting[: choice.choice([0, 0, 1, 1, 2, 5, 12])]
        if len(batch.running) < most and joining:
            waiting = waiting[len(joining) :]
            owners |= dict(zip(batch.add([pairs[i] for i in joining]), joining, strict=True))
        for running in list(batch.running):
            if choice.random() < cancelled / 10:
                batch.remove(running)
        sizes.add(len(batch.running))
        assert batch.rows == sum(pairs[owners[running]][1].width for running in batch.running)
        for running in batch.step():
            assert running not in batch.running
            results[owners[running]] = values(running.prediction(history=True))
    assert max(sizes) > 12
    return results


@needs_compiler
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", MODELS)
def test_mixture_is_bit_identical_to_each_request_alone(kind, precision, net):
    transformer = net(
        seed=21, dtype=torch.float32, d_model=40, d_ff=52, vocabulary_size=VOCABULARY,
        **MODELS[kind],
    )  # fmt: skip
    transformer.precision = precision
    pairs = mixed_requests(60, seed=len(kind))
    results = run_mixture(transformer, pairs, seed=4)
    assert len(results) > 40
    for i, result in results.items():
        assert result == alone(transformer, *pairs[i]), pairs[i]
    transformer.precision = None


@needs_compiler
def test_order_and_company_do_not_change_predictions(net, two_threads):
    """The same requests in other mixtures, among them one that is long enough for larger position
    tables, and a vocabulary of several pieces."""
    transformer = net(seed=22, dtype=torch.float32, vocabulary_size=9000, d_model=24)
    pairs = mixed_requests(40, seed=1)
    pairs.append((Request([5] * 300 + [EOS]), DecodingConfig(beam=2, max_length=20)))
    first = run_mixture(transformer, pairs, seed=5, cancelled=0)
    backward = run_mixture(transformer, pairs[::-1], seed=6, cancelled=0)
    assert first == {len(pairs) - 1 - i: result for i, result in backward.items()}
    assert first[40] == alone(transformer, *pairs[40])


@needs_compiler
def test_requests_of_one_plan_equal_a_static_batch(net):
    transformer = net(seed=23, dtype=torch.float32, vocabulary_size=VOCABULARY)
    for mode in MODES:
        options = DecodingConfig(max_length=10, **mode)
        requests = [request for request, _ in mixed_requests(12, seed=2)]
        expected = [values(p) for p in decode(transformer, requests, options)]
        batch = ContinuousBatch(transformer)
        added = batch.add([(request, options) for request in requests])
        while batch.running:
            batch.step()
        assert [values(running.prediction()) for running in added] == expected


def test_mixture_with_pytorch_is_bit_identical_to_each_request_alone(net, monkeypatch):
    monkeypatch.setenv("REGARD_NATIVE", "off")
    transformer = net(seed=24, dtype=torch.float32, vocabulary_size=VOCABULARY)
    pairs = mixed_requests(24, seed=3)
    batch = ContinuousBatch(transformer)
    added = batch.add(pairs[:1])
    assert not isinstance(added[0].engine, CpuSearch)
    results = run_mixture(transformer, pairs, seed=7)
    for i, result in results.items():
        assert result == alone(transformer, *pairs[i]), pairs[i]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_settled_tokens_equal_those_of_a_search(mode, net):
    transformer = net(seed=25, dtype=torch.float32)
    request, options = Request([5, 7, 3, EOS], [4]), DecodingConfig(max_length=9, **mode)
    search = Search(transformer, [request], options)
    expected = [search.settled() for _ in search]
    batch = ContinuousBatch(transformer)
    batch.add([(Request([9, 3, EOS]), DecodingConfig(beam=2, max_length=30))])
    batch.step()
    [running] = batch.add([(request, options)])
    settled = []
    while running in batch.running:
        batch.step()
        settled.append(running.settled())
    assert settled == expected
    tokens = running.prediction().token_ids
    assert all(tokens[: len(each)] == each for each in settled)


def test_request_that_the_model_refuses_leaves_the_batch_unchanged(net):
    transformer = net(seed=25, dtype=torch.float32)
    batch = ContinuousBatch(transformer)
    options = DecodingConfig(max_length=4)
    batch.add([(Request([5, EOS]), options)])
    for wrong in (Request([5, 12]), Request([]), Request([5, EOS], prefix=[-1])):
        with pytest.raises(InputError):
            batch.add([(Request([6, EOS]), options), (wrong, options)])
    assert len(batch.running) == 1
    while batch.running:
        [*finished] = batch.step()
    assert finished[0].prediction().token_ids


def test_complete_prefix_finishes_in_the_next_step(net):
    batch = ContinuousBatch(net(seed=25, dtype=torch.float32))
    options = DecodingConfig(max_length=4)
    [running] = batch.add([(Request([5, EOS], prefix=[4, EOS, 3]), options)])
    assert batch.step() == [running]
    assert running.prediction().token_ids == [4, EOS]
    assert batch.step() == []


def test_weights_can_change_between_batches(net):
    transformer = net.__wrapped__(seed=26, dtype=torch.float32)
    pair = Request([5, 7, 9, EOS]), DecodingConfig(max_length=6)
    batch = ContinuousBatch(transformer)
    before = run_one(batch, pair)
    transformer.output_matrix().data.mul_(-1)
    assert run_one(batch, pair) == alone_without_history(transformer, pair) != before


def alone_without_history(net, pair):
    return values(decode(net, [pair[0]], pair[1])[0])


def run_one(batch, pair):
    [running] = batch.add([pair])
    while batch.running:
        batch.step()
    return values(running.prediction())


def test_tokens_that_a_request_reads(net):
    request = Request([5, 7, EOS], prefix=[4, 4])
    assert read_tokens(net(), request) == 6  # the source, <bos> and the prefix
    assert read_tokens(net(style="decoder"), dataclasses.replace(request, prefix=[])) == 3
    assert 256 <= READ_TOKENS <= 1024
