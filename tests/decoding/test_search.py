"""The search equals exhaustive enumeration, repeated argmax and a plain beam search."""

import itertools

import numpy as np
import pytest
import torch

from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import decode

EOS = 2
STYLES = ["encoder-decoder", "decoder"]
PENALTIES = [
    {"length_penalty": 0.0},
    {"length_penalty": 0.6},
    {"length_penalty": 1.0},
    {"length_penalty": 1.0, "length_offset": 0.0},  # the mean log-probability of the tokens
    {"length_penalty": 2.0, "length_offset": 0.5},
]
OPTIONS = [
    {},
    {"window": 2},
    {"positions": "rotary", "norm_first": True},
    {"positions": "learned", "max_length": 16},
]


def divisor(tokens, length_penalty, length_offset=5.0):
    return ((length_offset + tokens) / (length_offset + 1)) ** length_penalty


def every_answer(net, request, limit, following, penalty):
    """All complete predictions with their scores, the best first: those that end within the limit and
    those of exactly `limit` tokens that do not end."""
    prefix, size = list(request.prefix), net.config.vocabulary_size
    words = [token for token in range(size) if token != EOS]
    known, complete = {(): 0.0}, []
    rows = [prefix[:i] for i in range(len(prefix))]
    if rows:
        known[()] = sum(following(net, request, rows)[range(len(prefix)), prefix])
    for length in range(limit - len(prefix)):
        paths = list(itertools.product(words, repeat=length))
        odds = following(net, request, [[*prefix, *path] for path in paths])
        for path, row in zip(paths, odds, strict=True):
            complete.append((*path, EOS))
            for token in range(size):
                known[*path, token] = known[path] + row[token]
    complete += itertools.product(words, repeat=limit - len(prefix))
    scored = [
        ([*prefix, *path], known[path] / divisor(len(prefix) + len(path), **penalty))
        for path in complete
    ]
    return sorted(scored, key=lambda answer: -answer[1])


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize(
    ("size", "limit", "prefix"), [(4, 4, ()), (5, 3, ()), (6, 3, ()), (5, 4, (3,)), (3, 5, (0, 1))]
)
@pytest.mark.parametrize("style", STYLES)
def test_wide_beam_equals_exhaustive_enumeration(
    style, size, limit, prefix, penalty, net, following, all_of
):
    transformer = net(seed=size, style=style, vocabulary_size=size)
    request = Request([3 % size, 1, EOS], prefix, limit)
    expected = every_answer(transformer, request, limit, following, penalty)
    options = DecodingConfig(beam=400, n_best=400, **penalty)
    results = all_of(decode(transformer, [request], options)[0])
    assert [answer.token_ids for answer in results] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose([a.score for a in results], [s for _, s in expected], atol=1e-5)
    for answer in results:
        assert answer.stopped == ("end" if answer.token_ids[-1] == EOS else "length")


def test_probabilities_of_all_predictions_sum_to_one(net, all_of):
    request = Request([3, 1, EOS], limit=4)
    options = DecodingConfig(beam=400, n_best=400)
    answers = all_of(decode(net(vocabulary_size=5), [request], options)[0])
    assert sum(np.exp(answer.logprob) for answer in answers) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_greedy_search_is_repeated_argmax_of_full_pass(
    style, options, net, make_requests, following
):
    transformer, limit = net(style=style, **options), 8
    requests = make_requests(6, limit=limit)
    search = DecodingConfig(beam=1, length_penalty=0.0)
    for request, answer in zip(requests, decode(transformer, requests, search), strict=True):
        tokens, total = [], 0.0
        while len(tokens) < limit and tokens[-1:] != [EOS]:
            odds = following(transformer, request, [tokens])[0]
            tokens.append(int(odds.argmax()))
            total += odds.max()
        assert answer.token_ids == tokens
        assert answer.score == pytest.approx(total, abs=1e-5)
        assert answer.stopped == ("end" if tokens[-1] == EOS else "length")


@pytest.mark.parametrize(
    "search",
    [
        {"beam": 2, "n_best": 2},
        {"beam": 4, "n_best": 4, "length_penalty": 0.0},
        {"beam": 4, "n_best": 4, "length_penalty": 2.0},
        {"beam": 4, "n_best": 4, "length_penalty": 1.0, "length_offset": 0.0},
        {"beam": 3, "n_best": 3, "min_length": 4},
        {"beam": 3, "n_best": 3, "no_repeat": 1},
        {"beam": 3, "n_best": 3, "no_repeat": 2},
        {"beam": 9, "n_best": 9, "length_penalty": 1.0},
        {"beam": 1, "no_repeat": 2, "min_length": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("style", STYLES)
def test_beam_search_equals_plain_search_without_cache(
    style, search, net, make_requests, beam_search, all_of
):
    # A small vocabulary, so that hypotheses end often and at different times.
    transformer, options = net(seed=1, style=style, vocabulary_size=7), DecodingConfig(**search)
    requests = make_requests(7, vocabulary=7, limit=7) + make_requests(
        3, vocabulary=7, limit=7, prefix=(4, 5, 4)
    )
    ends = set()
    for request, answer in zip(requests, decode(transformer, requests, options), strict=True):
        expected = beam_search(transformer, request, options, 7)
        results = all_of(answer)
        assert [a.token_ids for a in results] == [tokens for tokens, _ in expected]
        np.testing.assert_allclose([a.score for a in results], [s for _, s in expected], atol=1e-5)
        ends |= {(len(a.token_ids), a.stopped) for a in results}
    assert len(ends) > 1


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_beam_search_of_every_model_equals_plain_search(
    options, net, make_requests, beam_search, all_of
):
    transformer, search = (
        net(seed=2, vocabulary_size=9, **options),
        DecodingConfig(beam=4, n_best=4),
    )
    requests = make_requests(4, vocabulary=9, limit=6)
    for request, answer in zip(requests, decode(transformer, requests, search), strict=True):
        expected = beam_search(transformer, request, search, 6)
        assert [a.token_ids for a in all_of(answer)] == [tokens for tokens, _ in expected]


def test_wider_beam_finds_more_probable_predictions(net, make_requests):
    # A wider beam is better on average, not for every sentence.
    requests = make_requests(20, limit=6)
    totals = [
        sum(a.score for a in decode(net(), requests, DecodingConfig(beam=beam, length_penalty=0.0)))
        for beam in (1, 3, 12)
    ]
    assert totals[0] < totals[1] < totals[2]


# ---- reported scores ----------------------------------------------------------------------

MODES = [
    {"beam": 1},
    {"beam": 4, "n_best": 4, "length_penalty": 1.0},
    {"beam": 3, "n_best": 3, "min_length": 5, "no_repeat": 2, "length_penalty": 0.0},
    {"beam": 1, "temperature": 1.0, "n_best": 5},
    {"beam": 1, "temperature": 0.5, "top_k": 4, "top_p": 0.9, "n_best": 3},
    {"beam": 1, "temperature": 3.0, "no_repeat": 1, "min_length": 4},
]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_reported_log_probabilities_equal_teacher_forcing(
    style, mode, net, make_requests, following, all_of
):
    transformer, options = net(style=style), DecodingConfig(**mode)
    requests = make_requests(5, limit=9) + make_requests(3, seed=1, limit=9, prefix=(5, 9, 7))
    requests.append(Request([4, EOS], prefix=[5, 6, EOS]))
    for request, answer in zip(requests, decode(transformer, requests, options), strict=True):
        answers = all_of(answer)
        again = score(transformer, [request] * len(answers), [a.token_ids for a in answers])
        for hypothesis, scored in zip(answers, again, strict=True):
            tokens, logprobs = hypothesis.token_ids, hypothesis.logprobs
            assert len(logprobs) == len(tokens)
            np.testing.assert_allclose(logprobs, scored.logprobs, rtol=0, atol=1e-5)
            rows = following(transformer, request, [tokens[:i] for i in range(len(tokens))])
            np.testing.assert_allclose(logprobs, rows[range(len(tokens)), tokens], atol=1e-5)
            expected = sum(logprobs) / divisor(
                len(tokens), options.length_penalty, options.length_offset
            )
            assert hypothesis.score == pytest.approx(expected, abs=1e-9)
            assert hypothesis.logprob == pytest.approx(sum(logprobs), abs=1e-9)
        scores = [a.score for a in answers]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("style", STYLES)
def test_scoring_does_not_depend_on_the_batch(style, net, make_requests):
    transformer, requests = net(style=style, dtype=torch.float32), make_requests(8)
    answers = [[4, 5, EOS], [7], [EOS], [], [8, 8, 8, 8, 8, 8, EOS], [3, EOS], [], [10, 11]]
    together = score(transformer, requests, answers)
    for request, answer, scored in zip(requests, answers, together, strict=True):
        assert len(scored.logprobs) == len(answer)
        alone = score(transformer, [request], [answer])[0]
        np.testing.assert_allclose(scored.logprobs, alone.logprobs, rtol=0, atol=1e-5)


# ---- constraints --------------------------------------------------------------------------


@pytest.mark.parametrize("search", [{"beam": 1}, {"beam": 4, "n_best": 4}], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_repeat_covers_prefix_and_prediction(size, search, net, make_requests, all_of, repeated):
    transformer, options = net(seed=2), DecodingConfig(**search, no_repeat=size)
    plain = DecodingConfig(**search)
    requests = make_requests(4, limit=20) + make_requests(4, limit=20, prefix=(5, 8, 6, 9))
    free = [all_of(answer) for answer in decode(transformer, requests, plain)]
    assert any(repeated(answer.token_ids, size) for answers in free for answer in answers)
    for answer in decode(transformer, requests, options):
        assert not any(repeated(hypothesis.token_ids, size) for hypothesis in all_of(answer))


@pytest.mark.parametrize(
    "mode", [{"beam": 3, "n_best": 3}, {"beam": 1, "temperature": 1.0}], ids=str
)
def test_no_repeat_longer_than_prediction_has_no_effect(mode, net, make_requests, same):
    requests = make_requests(6, limit=9)
    free, bound = (decode(net(), requests, DecodingConfig(**mode, no_repeat=n)) for n in (0, 9))
    same(bound, free, atol=0)


def test_repetition_within_prefix_is_kept(net):
    request = Request([5, 4, EOS], prefix=[6, 6, 6], limit=9)
    for size in (1, 2):
        answer = decode(net(), [request], DecodingConfig(beam=2, no_repeat=size))[0]
        assert answer.token_ids[:3] == [6, 6, 6]
        assert 6 not in answer.token_ids[3:4]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_prediction_respects_min_and_max_length(mode, net, make_requests, all_of):
    transformer, requests = net(seed=1, vocabulary_size=6), make_requests(9, vocabulary=6)
    for min_length, max_length in ((0, 3), (4, 6), (9, 4)):
        options = DecodingConfig(
            **{**mode, "no_repeat": 0, "min_length": min_length, "max_length": max_length}
        )
        for request, answer in zip(requests, decode(transformer, requests, options), strict=True):
            for hypothesis in all_of(answer):
                limit = len(request.source) + max_length
                assert len(hypothesis.token_ids) <= limit
                assert EOS not in hypothesis.token_ids[:min_length]
                assert EOS not in hypothesis.token_ids[:-1]
                if hypothesis.stopped == "end":
                    assert hypothesis.token_ids[-1] == EOS
                else:
                    assert (hypothesis.stopped, len(hypothesis.token_ids)) == ("length", limit)


def test_limit_without_source_counts_prediction_only(net):
    options = DecodingConfig(beam=2, max_length=4, min_length=9)
    answer = decode(net(style="decoder"), [Request([5, 4, 7])], options)[0]
    assert len(answer.token_ids) == 4


@pytest.mark.parametrize("mode", [{"beam": 1}, {"beam": 3}], ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_forced_prefix_is_continued(style, mode, net, make_requests, beam_search):
    transformer, options = net(style=style), DecodingConfig(**mode)
    for request in make_requests(5, limit=8, prefix=(11, 3, 3, 7)):
        answer = decode(transformer, [request], options)[0]
        assert answer.token_ids[:4] == [11, 3, 3, 7]
        assert len(answer.token_ids) > 4
        assert answer.token_ids == beam_search(transformer, request, options, 8)[0][0]


@pytest.mark.parametrize("mode", [{}, {"min_length": 4}, {"no_repeat": 2}], ids=str)
def test_forcing_start_of_prediction_does_not_change_it(mode, net, make_requests, same):
    options = DecodingConfig(beam=1, **mode)
    for request in make_requests(5, limit=8):
        answer = decode(net(), [request], options)[0]
        forced = [
            Request(request.source, answer.token_ids[:n], 8)
            for n in range(1, len(answer.token_ids))
        ]
        same(decode(net(), forced, options), [answer] * len(forced))


@pytest.mark.parametrize("mode", [{"beam": 1}, {"beam": 3, "n_best": 2}], ids=str)
def test_decoder_continues_source_and_prefix_alike(mode, net, all_of):
    transformer, options = net(style="decoder"), DecodingConfig(**mode, length_penalty=0.0)
    as_source = decode(transformer, [Request([5, 8, 4, 9], limit=6)], options)[0]
    as_prefix = decode(transformer, [Request([5, 8], prefix=[4, 9], limit=8)], options)[0]
    for source, prefix in zip(all_of(as_source), all_of(as_prefix), strict=True):
        assert prefix.token_ids == [4, 9, *source.token_ids]
        np.testing.assert_allclose(prefix.logprobs[2:], source.logprobs, rtol=0, atol=1e-5)
