"""A prediction does not depend on the other sentences of its batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import InputError
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import Search, decode
from regard.model.cache import Cache

EOS = 2
STYLES = ["encoder-decoder", "decoder"]
MODES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4},
    "n-best": {"beam": 4, "n_best": 3, "length_penalty": 1.0},
    "no repeat": {"beam": 3, "no_repeat": 2, "n_best": 2},
    "minimum length": {"beam": 2, "min_length": 5},
    "sample": {"beam": 1, "temperature": 1.0},
    "samples": {"beam": 1, "temperature": 1.3, "n_best": 3},
    "best samples": {"beam": 1, "temperature": 0.7, "top_k": 5, "top_p": 0.8, "n_best": 2},
    "sample without repeats": {"beam": 1, "temperature": 2.0, "no_repeat": 1, "min_length": 3},
}
OPTIONS = [
    {},
    {"window": 2},
    {"positions": "rotary", "norm_first": True},
    {"positions": "learned", "max_length": 16},
]
# Sources and prefixes of different length, different limits, and a complete prefix.
REQUESTS = [
    Request([5, 7, 3, 9, EOS]),
    Request([4, EOS], prefix=[8, 3]),
    Request([3, 8, 10, 11, 6, 4, EOS], prefix=[6]),
    Request([EOS], limit=3),
    Request([0, 0, 0, EOS], prefix=[4, 9, 4, 7, 5], limit=10),
    Request([9, 5, EOS]),
    Request([7, 11, 7, 11, 7, EOS], prefix=[5, EOS]),
    Request([10, 4, 8, EOS], limit=1),
]


def alone(net, style, options, mode, remembered={}):  # noqa: B006
    """The predictions of all requests, each decoded alone; computed once."""
    key = style, str(options), mode
    if key not in remembered:
        layers = {"encoder_layers": 1} if style == "encoder-decoder" else {}
        transformer = net(style=style, dtype=torch.float32, **layers, **options)
        search = DecodingConfig(max_length=4, **MODES[mode])
        remembered[key] = (
            transformer,
            search,
            [decode(transformer, [request], search)[0] for request in REQUESTS],
        )
    return remembered[key]


everything = list(range(len(REQUESTS)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_every_kind_of_search_is_independent_of_batch(style, options, mode, net, same):
    transformer, search, expected = alone(net, style, options, mode)
    chosen = [*everything, 5, 0, 5, 0][::-1]
    results = decode(transformer, [REQUESTS[i] for i in chosen], search)
    same(results, [expected[i] for i in chosen])


@settings(max_examples=60)
@given(
    style=st.sampled_from(STYLES),
    options=st.sampled_from(OPTIONS),
    mode=st.sampled_from(list(MODES)),
    chosen=st.lists(st.sampled_from(everything), min_size=1, max_size=24),
    batch_tokens=st.sampled_from([1, 50, 150, 400, 16_384]),
)
def test_prediction_does_not_depend_on_batch(style, options, mode, chosen, batch_tokens, net, same):
    transformer, search, expected = alone(net, style, options, mode)
    results = decode(transformer, [REQUESTS[i] for i in chosen], search, batch_tokens=batch_tokens)
    same(results, [expected[i] for i in chosen])


@pytest.mark.parametrize("mode", MODES)
def test_test_requests_have_predictions_of_many_lengths(mode, net):
    answers = alone(net, "encoder-decoder", {}, mode)[2]
    assert len({len(answer.token_ids) for answer in answers}) > 2
    assert len({answer.stopped for answer in answers}) > 1


@pytest.mark.parametrize("mode", ["greedy", "beam", "samples"])
def test_finished_sentences_leave_the_batch(mode, net, make_requests, same, monkeypatch):
    transformer, requests = net(seed=4, vocabulary_size=6), make_requests(20, vocabulary=6)
    options = DecodingConfig(max_length=12, **MODES[mode])
    expected = [decode(transformer, [request], options)[0] for request in requests]
    assert len({len(answer.token_ids) for answer in expected}) > 5
    sizes, keep = [], Cache.keep

    def spy(cache, rows):
        keep(cache, rows)
        sizes.append(len(cache.visible))
        tables = [*cache.keys, *cache.values, *cache.memory[0], cache.visible, cache.positions]
        assert {len(table) for table in tables} == {len(rows)}

    monkeypatch.setattr(Cache, "keep", spy)
    same(decode(transformer, requests, options), expected)
    assert sizes
    assert all(
        after < before for before, after in zip([len(requests), *sizes], sizes, strict=False)
    )
    assert sizes[-1] <= len(requests) // 4


@pytest.mark.parametrize("beam", [1, 3])
def test_end_of_position_table_affects_only_its_sentence(beam, net, same):
    # One of sixteen sentences ends early; it stays in the batch until enough others have ended.
    transformer = net(style="decoder", positions="learned", max_length=12)
    requests = [*(Request([3 + i % 9, 4]) for i in range(15)), Request([5] * 10)]
    options = DecodingConfig(beam=beam, min_length=50)
    expected = [decode(transformer, [request], options)[0] for request in requests]
    assert [len(answer.token_ids) for answer in expected] == [11] * 15 + [3]
    same(decode(transformer, requests, options), expected)


def test_predictions_are_in_order_of_requests(net, make_requests):
    requests = make_requests(10)
    options = DecodingConfig(beam=2, max_length=5)
    forward = [answer.token_ids for answer in decode(net(), requests, options, batch_tokens=60)]
    backward = [
        answer.token_ids for answer in decode(net(), requests[::-1], options, batch_tokens=60)
    ]
    assert forward == backward[::-1]
    assert len({tuple(tokens) for tokens in forward}) > 4


def test_batch_can_be_searched_step_by_step(net, make_requests, same):
    requests, options = make_requests(6), DecodingConfig(beam=3, max_length=6)
    search = Search(net(), requests, options)
    steps = sum(1 for _ in search)
    answers = search.predictions()
    assert steps >= max(len(answer.token_ids) for answer in answers)
    same(answers, decode(net(), requests, options), atol=0)


@pytest.mark.parametrize("turn", [1, -1])
def test_search_of_requests_with_and_without_prefix(turn, net, same):
    # decode keeps them apart; one Search of both has nothing to read for one and something for the
    # other. It may refuse that, but not answer as if nothing had been read.
    requests = [Request([5, 7, 3, EOS]), Request([4, 9, EOS], prefix=[8, 3, 5])][::turn]
    options = DecodingConfig(beam=1, max_length=5)
    search = Search(net(), requests, options)
    try:
        for _ in search:
            pass
    except InputError:
        return
    same(search.predictions(), decode(net(), requests, options))
