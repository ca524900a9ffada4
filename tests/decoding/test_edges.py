"""Unusual requests have a defined prediction."""

import numpy as np
import pytest

from regard import InputError
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request, by_size
from regard.decoding.score import score
from regard.decoding.search import Details, decode

EOS = 2
STYLES = ["encoder-decoder", "decoder"]
MODES = [{"beam": 1}, {"beam": 4, "n_best": 2}, {"beam": 1, "temperature": 1.0, "n_best": 2}]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_empty_list_of_requests_gives_empty_list(style, mode, net):
    everything = Details(history=True, alternatives=3, attention=True)
    assert decode(net(style=style), [], DecodingConfig(**mode), everything) == []
    assert score(net(style=style), [], []) == []


@pytest.mark.parametrize(("size", "limit", "complete"), [(3, 1, 3), (3, 2, 7), (5, 1, 5)])
@pytest.mark.parametrize("style", STYLES)
def test_beam_wider_than_search_space_finds_all_predictions(
    style, size, limit, complete, net, all_of
):
    transformer, request = net(style=style, vocabulary_size=size), Request([1, EOS], limit=limit)
    answers = all_of(decode(transformer, [request], DecodingConfig(beam=50, n_best=50))[0])
    assert len({tuple(answer.token_ids) for answer in answers}) == len(answers) == complete
    assert all(np.isfinite(answer.score) for answer in answers)


@pytest.mark.parametrize("beam", [1, 2, 3, 30])
def test_the_smallest_vocabulary_with_an_end_can_be_searched(beam, net, beam_search):
    transformer, options = net(vocabulary_size=3), DecodingConfig(beam=beam)
    request = Request([0, 1, 1, EOS], limit=6)
    answer = decode(transformer, [request], options)[0]
    expected = beam_search(transformer, request, options, 6)[0]
    assert (answer.token_ids, answer.score) == (expected[0], pytest.approx(expected[1], abs=1e-5))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_limit_of_one_gives_one_token(style, mode, net, make_requests, all_of):
    for answer in decode(net(style=style), make_requests(9, limit=1), DecodingConfig(**mode)):
        for prediction in all_of(answer):
            assert len(prediction.token_ids) == 1
            assert prediction.stopped == ("end" if prediction.token_ids == [EOS] else "length")


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_of_zero_gives_empty_prediction(limit, net):
    answer = decode(net(), [Request([4, EOS], limit=limit)], DecodingConfig())[0]
    assert (answer.token_ids, answer.logprobs, answer.score) == ([], [], 0.0)
    assert answer.stopped == "prefix"


def test_source_of_unknown_tokens_is_decoded(net, beam_search):
    request, options = Request([0, 0, 0, EOS], limit=6), DecodingConfig(beam=4)
    answer = decode(net(), [request], options)[0]
    assert answer.token_ids == beam_search(net(), request, options, 6)[0][0]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("prefix", "limit", "expected"),
    [
        ([5, EOS], 9, [5, EOS]),
        ([EOS], 9, [EOS]),
        ([5, 6, EOS, 7, 8], 9, [5, 6, EOS]),  # tokens after the end are ignored
        ([5, 6, EOS], 3, [5, 6, EOS]),
        ([5, 6, 7], 3, [5, 6, 7]),
        ([5, 6, 7, 8, 9], 3, [5, 6, 7, 8, 9]),
    ],
)
def test_complete_prefix_is_the_prediction(style, prefix, limit, expected, mode, net, following):
    transformer, options = net(style=style), DecodingConfig(**mode, min_length=7, no_repeat=1)
    request = Request([4, 8, EOS], prefix, limit)
    answer = decode(transformer, [request], options)[0]
    assert (answer.token_ids, answer.stopped, answer.others) == (expected, "prefix", [])
    rows = following(transformer, request, [expected[:i] for i in range(len(expected))])
    logprobs = rows[range(len(expected)), expected]
    np.testing.assert_allclose(answer.logprobs, logprobs, rtol=0, atol=1e-5)
    divisor = ((5 + len(expected)) / 6) ** options.length_penalty
    assert answer.score == pytest.approx(sum(logprobs) / divisor, abs=1e-5)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_prediction_stops_where_every_token_is_blocked(style, mode, net, all_of):
    transformer = net(style=style, vocabulary_size=5)
    options = DecodingConfig(**mode, min_length=30, no_repeat=1)
    for prefix, length in (((), 4), ((3,), 4), ((3, 0, 4), 4), ((0, 1, 3, 4), 4)):
        request = Request([3, 4, EOS], prefix)
        answer = decode(transformer, [request], options, Details(history=True))[0]
        for prediction in all_of(answer):
            assert prediction.stopped == "blocked"
            assert prediction.token_ids[: len(prefix)] == list(prefix)
            assert sorted(prediction.token_ids) == [0, 1, 3, 4][:length]
            again = score(transformer, [request], [prediction.token_ids])[0].logprobs
            np.testing.assert_allclose(prediction.logprobs, again, rtol=0, atol=1e-5)
            divisor = ((5 + length) / 6) ** options.length_penalty
            assert prediction.score == pytest.approx(sum(again) / divisor, abs=1e-5)


def test_blocked_sentence_does_not_affect_batch(net, same):
    transformer, options = net(vocabulary_size=5), DecodingConfig(beam=2, no_repeat=1, min_length=4)
    requests = [
        Request([3, EOS], (0, 1, 3)),
        Request([3, 4, EOS]),
        Request([4, EOS], (0, 1, 3, 4)),
        Request([4, EOS], limit=2),
    ]
    expected = [decode(transformer, [request], options)[0] for request in requests]
    assert {answer.stopped for answer in expected} == {"end", "length"}
    blocked = DecodingConfig(beam=2, no_repeat=1, min_length=5)
    expected_blocked = [decode(transformer, [request], blocked)[0] for request in requests]
    assert {answer.stopped for answer in expected_blocked} == {"blocked", "length"}
    same(decode(transformer, requests, options), expected)
    same(decode(transformer, requests, blocked), expected_blocked)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("style", "source", "prefix", "length"),
    [
        ("encoder-decoder", [4, EOS], [], 6),
        ("encoder-decoder", [4, 5, 6, 7, 8, EOS], [5, 7], 6),
        ("encoder-decoder", [4, EOS], [5] * 5, 6),
        ("decoder", [4], [], 6),
        ("decoder", [4, 5, 6, 7], [], 3),
        ("decoder", [4, 5, 6, 7], [8], 3),
        ("decoder", [4, 5, 6, 7, 8, 9], [], 1),
    ],
)
def test_prediction_ends_at_last_learned_position(
    style, source, prefix, length, mode, net, following
):
    transformer = net(style=style, positions="learned", max_length=6)
    request = Request(source, prefix)
    answer = decode(transformer, [request], DecodingConfig(**mode, min_length=100))[0]
    assert (len(answer.token_ids), answer.stopped) == (length, "length")
    # The model can read all tokens but the last one, which is beyond the position table.
    following(transformer, request, [answer.token_ids[:-1]])
    with pytest.raises(InputError, match="the learned position table has 6 rows"):
        following(transformer, request, [answer.token_ids])


def test_source_longer_than_position_table_is_refused(net):
    transformer = net(positions="learned", max_length=6)
    with pytest.raises(InputError, match="the learned position table has 6 rows"):
        decode(transformer, [Request([5] * 7)], DecodingConfig())
    with pytest.raises(InputError, match="empty"):
        decode(net(), [Request([])], DecodingConfig())
    with pytest.raises(InputError, match="12"):
        decode(net(), [Request([3, 12, EOS])], DecodingConfig())


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("style", STYLES)
def test_search_respects_attention_window(style, window, net, make_requests, beam_search):
    transformer, options = net(style=style, window=window), DecodingConfig(beam=3)
    requests = make_requests(4, limit=9, prefix=(5, 7, 4))
    for request, answer in zip(requests, decode(transformer, requests, options), strict=True):
        assert answer.token_ids == beam_search(transformer, request, options, 9)[0][0]


def test_batches_contain_each_request_once_longest_first():
    sizes = [3, 9, 1, 4, 4, 12, 2]
    for budget in (1, 8, 12, 24, 1000):
        batches = list(by_size(sizes, budget))
        assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
        for batch in batches:
            assert len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= budget
        lengths = [sizes[i] for batch in batches for i in batch]
        assert lengths == sorted(sizes, reverse=True)
    assert list(by_size([], 5)) == []
