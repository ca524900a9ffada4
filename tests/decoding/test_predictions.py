"""Details of a prediction: its history, alternatives and attention."""

import numpy as np
import pytest

from regard import Packed
from regard.config.sections import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import Details, Search, decode
from regard.model.transformer import AttentionCapture

BOS, EOS = 1, 2
STYLES = ["encoder-decoder", "decoder"]
SEARCHES = [
    {"beam": 1},
    {"beam": 4, "n_best": 4},
    {"beam": 3, "n_best": 3, "min_length": 3, "no_repeat": 2},
]
SAMPLINGS = [
    {"beam": 1, "temperature": 1.0},
    {"beam": 1, "temperature": 1.0, "n_best": 4},
    {"beam": 1, "temperature": 0.8, "top_k": 5, "no_repeat": 1, "n_best": 3},
]


@pytest.mark.parametrize(
    "details",
    [
        Details(history=True),
        Details(alternatives=3),
        Details(attention=True),
        Details(history=True, alternatives=100, attention=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", SEARCHES + SAMPLINGS, ids=str)
def test_details_do_not_change_predictions(mode, details, net, make_requests, same):
    requests = (
        make_requests(4, limit=7)
        + make_requests(2, limit=7, prefix=(4, 6))
        + [Request([3, EOS], [EOS])]
    )
    plain = decode(net(), requests, DecodingConfig(**mode))
    detailed = decode(net(), requests, DecodingConfig(**mode), details)
    same(detailed, plain, atol=0)
    assert all(not a.history and not a.alternatives and not a.attention for a in plain)
    for answer in detailed[:-1]:
        assert bool(answer.history) == details.history
        assert bool(answer.alternatives) == bool(details.alternatives)
        assert bool(answer.attention) == details.attention


# ---- alternatives -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [*SEARCHES, SAMPLINGS[0]], ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_alternatives_are_most_probable_tokens_at_each_position(
    style, mode, net, make_requests, following
):
    network = net(style=style)
    requests = make_requests(3, limit=7) + make_requests(2, limit=7, prefix=(4, 6, 8))
    answers = decode(network, requests, DecodingConfig(**mode), Details(alternatives=5))
    for request, answer in zip(requests, answers, strict=True):
        assert len(answer.alternatives) == len(answer.token_ids)
        rows = following(
            network, request, [answer.token_ids[:i] for i in range(len(answer.token_ids))]
        )
        for i, (alternatives, row) in enumerate(zip(answer.alternatives, rows, strict=True)):
            tokens, logprobs = zip(*alternatives, strict=True)
            assert list(tokens) == np.argsort(-row)[:5].tolist()
            assert list(logprobs) == sorted(logprobs, reverse=True)
            np.testing.assert_allclose(logprobs, row[list(tokens)], rtol=0, atol=1e-5)
            if answer.token_ids[i] in tokens:
                chosen = dict(alternatives)[answer.token_ids[i]]
                assert chosen == pytest.approx(answer.logprobs[i], abs=1e-5)


@pytest.mark.parametrize("style", STYLES)
def test_first_alternatives_of_greedy_search_are_its_tokens(style, net, make_requests):
    network, options = net(style=style), DecodingConfig(beam=1)
    for answer in decode(network, make_requests(6, limit=8), options, Details(alternatives=1)):
        assert [tops[0][0] for tops in answer.alternatives] == answer.token_ids
        firsts = [tops[0][1] for tops in answer.alternatives]
        np.testing.assert_allclose(firsts, answer.logprobs, rtol=0, atol=1e-5)


def test_number_of_alternatives_is_at_most_vocabulary_size(net, make_requests):
    answer = decode(net(), make_requests(1, limit=5), DecodingConfig(), Details(alternatives=1000))[
        0
    ]
    for tops in answer.alternatives:
        assert sorted(token for token, _ in tops) == list(range(12))
        assert sum(np.exp(logprob) for _, logprob in tops) == pytest.approx(1, abs=1e-5)


# ---- attention ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [SEARCHES[0], SEARCHES[1], SAMPLINGS[1]], ids=str)
@pytest.mark.parametrize("options", [{}, {"window": 2}, {"heads": 4, "decoder_layers": 3}], ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_attention_of_every_head_equals_full_pass(style, options, mode, net, make_requests):
    network, both = net(style=style, **options), style == "encoder-decoder"
    requests = make_requests(3, limit=6) + make_requests(2, limit=6, prefix=(4, 6, 8))
    answers = decode(network, requests, DecodingConfig(**mode), Details(attention=True))
    for request, answer in zip(requests, answers, strict=True):
        begin, m = [BOS] if both else list(request.source), len(request.source)
        n = len(begin) + len(answer.token_ids) - 1
        shapes = {"encoder": (m, m), "cross": (n, m), "decoder": (n, n)}
        assert set(answer.attention) == (set(shapes) if both else {"decoder"})
        capture = AttentionCapture()
        target = Packed.of([[*begin, *answer.token_ids[:-1]]])
        network(Packed.of([request.source]) if both else None, target, capture)
        for part, layers in answer.attention.items():
            assert len(layers) == getattr(
                network.config, "encoder_layers" if part == "encoder" else "decoder_layers"
            )
            for layer, expected in zip(layers, getattr(capture, part), strict=True):
                weights = np.asarray(layer)
                assert weights.shape == (network.config.heads, *shapes[part])
                np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-9)
                np.testing.assert_allclose(weights, expected[0].detach(), rtol=0, atol=1e-9)
                if part == "decoder":
                    assert (np.triu(weights, 1) == 0).all()


# ---- history ------------------------------------------------------------------------------


def paths_of(history, limit):
    """Follow the parents through a history: all complete sequences with their log-probabilities."""
    live, complete = [([], 0.0)], []
    for step, candidates in enumerate(history):
        going = []
        for candidate in candidates:
            assert step == 0 or 0 <= candidate.parent < len(live)
            tokens, total = live[candidate.parent if step else 0]
            assert candidate.score == pytest.approx(total + candidate.logprob, abs=1e-9)
            path = [*tokens, candidate.token], candidate.score
            assert candidate.fate in ("kept", "ended", "pruned")
            if candidate.fate == "ended":
                complete.append(path)
            elif candidate.fate == "kept":
                going.append(path)
        live = going
    return complete + (live if len(history) == limit else [])


def ranked(complete, options, count):
    scored = [(s / ((5 + len(t)) / 6) ** options.length_penalty, t) for t, s in complete]
    return sorted(scored, key=lambda entry: -entry[0])[:count]


@pytest.mark.parametrize("search", [*SEARCHES, {"beam": 20, "n_best": 20}], ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_beam_history_explains_predictions(style, search, net, make_requests, all_of):
    network, options, limit = (
        net(seed=1, style=style, vocabulary_size=7),
        DecodingConfig(**search),
        6,
    )
    fates = set()
    for answer in decode(
        network, make_requests(9, vocabulary=7, limit=limit), options, Details(history=True)
    ):
        assert max(len(a.token_ids) for a in all_of(answer)) <= len(answer.history) <= limit
        for candidates in answer.history:
            assert 0 < len(candidates) <= 2 * options.beam
            scores = [candidate.score for candidate in candidates]
            assert scores == sorted(scores, reverse=True)
            going = 0
            for rank, candidate in enumerate(candidates):
                end = candidate.token == EOS
                going += not end
                live = not end and going <= options.beam
                ended = end and rank < options.beam
                assert candidate.fate == ("ended" if ended else "kept" if live else "pruned")
            fates |= {candidate.fate for candidate in candidates}
        expected = ranked(paths_of(answer.history, limit), options, options.n_best)
        assert [a.token_ids for a in all_of(answer)] == [tokens for _, tokens in expected]
        result_scores = [a.score for a in all_of(answer)]
        np.testing.assert_allclose(result_scores, [s for s, _ in expected], rtol=0, atol=1e-9)
        assert all(not other.history for other in answer.others)
    assert fates == {"kept", "ended", "pruned"}


@pytest.mark.parametrize("mode", SAMPLINGS, ids=str)
def test_sampling_history_follows_each_sample(mode, net, make_requests, all_of):
    network, options, limit = net(seed=1, vocabulary_size=7), DecodingConfig(**mode), 6
    lengths = set()
    for answer in decode(
        network, make_requests(9, vocabulary=7, limit=limit), options, Details(history=True)
    ):
        assert len(answer.history) == max(len(a.token_ids) for a in all_of(answer))
        assert {c.fate for candidates in answer.history for c in candidates} <= {"kept", "ended"}
        expected = ranked(paths_of(answer.history, limit), options, options.n_best)
        assert sorted(a.token_ids for a in all_of(answer)) == sorted(
            tokens for _, tokens in expected
        )
        lengths |= {len(a.token_ids) for a in all_of(answer)}
    assert len(lengths) > 2


@pytest.mark.parametrize("mode", SEARCHES + SAMPLINGS, ids=str)
def test_history_does_not_depend_on_batch(mode, net, make_requests):
    requests, options = make_requests(9, limit=6), DecodingConfig(**mode)
    together = decode(net(), requests, options, Details(history=True))
    for request, answer in zip(requests, together, strict=True):
        alone = decode(net(), [request], options, Details(history=True))[0].history
        assert [[(c.token, c.parent, c.fate) for c in step] for step in answer.history] == [
            [(c.token, c.parent, c.fate) for c in step] for step in alone
        ]


@pytest.mark.parametrize("mode", SEARCHES + SAMPLINGS, ids=str)
def test_search_takes_no_unnecessary_step(mode, net, make_requests):
    network, options, steps = net(seed=1, vocabulary_size=7), DecodingConfig(**mode), set()
    for request in make_requests(9, vocabulary=7, limit=12):
        search = Search(network, [request], options)
        steps.add(step_count := sum(1 for _ in search))
        assert len(search.predictions(history=True)[0].history) == step_count
    assert min(steps) < 12


# ---- tokens that are settled during the search --------------------------------------------


def follow(search):
    """The settled tokens after each step."""
    return [search.settled() for _ in search]


@pytest.mark.parametrize("mode", SEARCHES + SAMPLINGS, ids=str)
@pytest.mark.parametrize("prefix", [(), (5, 8)], ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_settled_tokens_grow_into_the_prediction(style, prefix, mode, net, make_requests):
    for request in make_requests(9, limit=9, vocabulary=7, prefix=prefix):
        network = net(seed=1, style=style, vocabulary_size=9)
        search = Search(network, [request], DecodingConfig(**mode))
        assert search.settled() == list(prefix)
        seen = [list(prefix), *follow(search)]
        tokens = search.predictions()[0].token_ids
        for before, after in zip(seen, [*seen[1:], tokens], strict=True):
            assert after[: len(before)] == before


@pytest.mark.parametrize("style", STYLES)
def test_beam_settles_tokens_before_its_end(style, net, make_requests):
    network, options = net(seed=1, style=style), DecodingConfig(beam=2, min_length=30)
    settled = [len(follow(Search(network, [r], options))[-2]) for r in make_requests(6, limit=15)]
    assert max(settled) > 5


@pytest.mark.parametrize("mode", [SEARCHES[0], SAMPLINGS[0]], ids=str)
def test_single_hypothesis_settles_one_token_per_step(mode, net, make_requests):
    for request in make_requests(5, limit=9):
        search = Search(net(), [request], DecodingConfig(**mode))
        seen = follow(search)
        tokens = search.predictions()[0].token_ids
        assert seen == [tokens[: i + 1] for i in range(len(tokens))]


@pytest.mark.parametrize("mode", [SEARCHES[0], SEARCHES[1], SAMPLINGS[0]], ids=str)
def test_settled_tokens_remain_when_search_is_blocked(mode, net):
    options = DecodingConfig(**{**mode, "no_repeat": 1, "min_length": 30})
    search = Search(net(vocabulary_size=5), [Request([3, 4, EOS])], options)
    seen = follow(search)
    answer = search.predictions()[0]
    assert answer.stopped == "blocked"
    for before, after in zip(seen, [*seen[1:], answer.token_ids], strict=True):
        assert after[: len(before)] == before


@pytest.mark.parametrize("mode", [SEARCHES[0], SEARCHES[1], SAMPLINGS[0]], ids=str)
def test_settled_tokens_remain_while_other_sentences_continue(mode, net):
    options = DecodingConfig(**{**mode, "min_length": 9})
    requests = [Request([3, EOS], limit=2), *(Request([4 + i, 5, EOS], limit=7) for i in range(3))]
    search = Search(net(), requests, options)
    seen = follow(search)
    tokens = search.predictions()[0].token_ids
    assert len(tokens) == 2
    assert len(seen) == 7
    for before, after in zip(seen, [*seen[1:], tokens], strict=True):
        assert after[: len(before)] == before


def test_complete_prefix_is_settled_immediately(net):
    search = Search(net(), [Request([4, EOS], prefix=[5, EOS, 7])], DecodingConfig())
    assert search.settled() == [5, EOS]
    assert follow(search) == []
    assert search.predictions()[0].token_ids == [5, EOS]
