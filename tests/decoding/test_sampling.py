"""Samples follow the distribution of the model, the seed and the filters."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from regard import Packed
from regard.config.sections import DecodingConfig
from regard.decoding.beams import sample
from regard.decoding.requests import Request
from regard.decoding.search import decode

BOS, EOS = 1, 2
FILTERS = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 2.5},
    {"temperature": 1.0, "top_k": 4},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 0.7, "top_k": 6, "top_p": 0.8},
    {"temperature": 1.0, "min_length": 1},
    {"temperature": 1.5, "top_k": 3, "min_length": 1},
    {"temperature": 1.0, "top_p": 0.5, "min_length": 1},
]


def filtered(logprobs, temperature, top_k=0, top_p=1.0, min_length=0):
    """A slow reference for the distribution [V] of the first token after filtering."""
    odds = {token: math.exp(value / temperature) for token, value in enumerate(logprobs)}
    if min_length:
        del odds[EOS]
    best = sorted(odds, key=lambda token: -odds[token])[: top_k or None]
    total, mass, nucleus = sum(odds[token] for token in best), 0.0, []
    for token in best:
        if mass < top_p:
            nucleus.append(token)
        mass += odds[token] / total
    total = sum(odds[token] for token in nucleus)
    return np.array([odds[t] / total if t in nucleus else 0.0 for t in range(len(logprobs))])


def assert_drawn_from(counts, expected):
    """Pearson's chi-square test at a level of 1e-4; expected counts below 5 are merged."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    assert counts.sum() == pytest.approx(expected.sum())
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    assert freedom > 0
    # Wilson and Hilferty's quantile of chi-square; 3.719 is the normal quantile of 1 - 1e-4.
    spread = 2 / (9 * freedom)
    critical = freedom * (1 - spread + 3.719 * math.sqrt(spread)) ** 3
    assert ((counts - expected) ** 2 / expected).sum() < critical


def test_chi_square_test_distinguishes_distributions():
    random, odds = np.random.default_rng(0), np.array([0.5, 0.3, 0.15, 0.05])
    counts = random.multinomial(3000, odds)
    assert_drawn_from(counts, 3000 * odds)
    with pytest.raises(AssertionError):
        assert_drawn_from(counts, 3000 * np.array([0.45, 0.35, 0.15, 0.05]))


def first_tokens(net, request, count, options, all_of):
    """Counts of the first token of `count` samples of one request, 1,000 samples for each seed."""
    samples = []
    for seed in range(count // 1000):
        search = DecodingConfig(beam=1, n_best=1000, seed=seed, **options)
        samples += [answer.token_ids[0] for answer in all_of(decode(net, [request], search)[0])]
    return np.bincount(samples, minlength=net.config.vocabulary_size)


@pytest.mark.parametrize(
    ("style", "options"),
    [*(("encoder-decoder", options) for options in FILTERS), ("decoder", FILTERS[5])],
    ids=str,
)
def test_tokens_are_sampled_with_model_probabilities(style, options, net, following, all_of):
    transformer, request = net(style=style), Request([5, 9, 3, EOS], limit=1)
    expected = filtered(following(transformer, request, [[]])[0], **options)
    counts = first_tokens(transformer, request, 4000, options, all_of)
    assert counts.sum() == 4000
    assert (counts[expected == 0] == 0).all()
    assert_drawn_from(counts, 4000 * expected)


def test_filters_remove_improbable_tokens(net, following):
    logprobs = following(net(), Request([5, 9, 3, EOS]), [[]])[0]
    assert (filtered(logprobs, 1.0) > 0).all()
    assert (filtered(logprobs, 1.0, top_k=4) > 0).sum() == 4
    assert 1 < (filtered(logprobs, 1.0, top_p=0.6) > 0).sum() < 12
    assert filtered(logprobs, 1.0, min_length=1)[EOS] == 0


def test_second_token_is_sampled_conditionally_on_the_first(net, following, all_of):
    transformer, request = net(seed=3, vocabulary_size=5), Request([3, 4, EOS], limit=2)
    first = np.exp(following(transformer, request, [[]])[0])
    second = np.exp(following(transformer, request, [[token] for token in range(5)]))
    expected = {(EOS,): first[EOS]}
    for a in (0, 1, 3, 4):
        expected.update({(a, b): first[a] * second[a, b] for b in range(5)})
    samples = Counter()
    for seed in range(4):
        search = DecodingConfig(beam=1, temperature=1.0, n_best=1000, seed=seed)
        samples.update(
            tuple(a.token_ids) for a in all_of(decode(transformer, [request], search)[0])
        )
    assert set(samples) <= set(expected)
    assert_drawn_from(
        [samples[key] for key in expected], [4000 * odds for odds in expected.values()]
    )


def test_sentences_of_a_batch_sample_from_their_own_distributions(net):
    # The sum of the distributions is the expected count of each token.
    transformer, random = net(), np.random.default_rng(0)
    requests = [Request([*random.integers(3, 12, 4).tolist(), EOS], limit=1) for _ in range(1500)]
    assert len({tuple(request.source) for request in requests}) > 1200
    answers = decode(transformer, requests, DecodingConfig(beam=1, temperature=1.0))
    counts = np.bincount([answer.token_ids[0] for answer in answers], minlength=12)
    source, target = Packed.of([r.source for r in requests]), Packed.of([[BOS]] * len(requests))
    assert_drawn_from(counts, transformer(source, target).detach().softmax(-1).sum(0).numpy())


def test_sentences_are_sampled_independently(net, following):
    # The model cannot see the sentences, so all have the same distribution.
    transformer = net(style="decoder", window=1, positions="none", decoder_layers=1)
    requests = [
        Request([3 + i % 9, 3 + i // 9 % 9, 3 + i // 81, 7, 7], limit=1) for i in range(700)
    ]
    answers = decode(transformer, requests, DecodingConfig(beam=1, temperature=1.0))
    odds = following(transformer, requests[0], [[]])[0]
    for answer in answers:
        assert answer.logprob == pytest.approx(odds[answer.token_ids[0]], abs=1e-5)
    tokens = np.array([answer.token_ids[0] for answer in answers])
    alike = (tokens[1:] == tokens[:-1]).sum()
    expected = (len(tokens) - 1) * np.exp(2 * odds).sum()
    assert abs(alike - expected) < 4 * math.sqrt(expected)


# ---- seeds --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_samples_depend_on_seed(options, net, make_requests, same):
    requests = make_requests(6, limit=8)
    first, second, different = (
        decode(net(), requests, DecodingConfig(beam=1, n_best=2, seed=seed, **options))
        for seed in (3, 3, 4)
    )
    same(second, first, atol=0)
    assert sum(a.token_ids != b.token_ids for a, b in zip(first, different, strict=True)) > 3


def test_sample_does_not_depend_on_number_of_samples(net, make_requests, all_of):
    requests = make_requests(5, limit=8)
    by_count = {
        count: [
            sorted(a.token_ids for a in all_of(answer))
            for answer in decode(
                net(), requests, DecodingConfig(beam=1, temperature=1.0, n_best=count)
            )
        ]
        for count in (1, 2, 5)
    }
    for single, two, five in zip(*by_count.values(), strict=True):
        assert (len(single), len(two), len(five)) == (1, 2, 5)
        assert not Counter(map(tuple, single)) - Counter(map(tuple, two))
        assert not Counter(map(tuple, two)) - Counter(map(tuple, five))
        assert len(set(map(tuple, five))) > 3


def test_start_of_sample_does_not_depend_on_limit(net, make_requests):
    short, long = (
        decode(net(), make_requests(6, limit=limit), DecodingConfig(beam=1, temperature=1.0))
        for limit in (4, 12)
    )
    assert any(len(b.token_ids) > 4 for b in long)
    assert all(a.token_ids == b.token_ids[:4] for a, b in zip(short, long, strict=True))


def test_blocked_samples_are_returned(net, all_of):
    # With three tokens and no repeated bigram, some samples are blocked after four tokens,
    # before they can end. All fifty samples are returned nevertheless.
    transformer, request = net(vocabulary_size=3), Request([0, 1, EOS])
    for min_length, stops in ((5, {"blocked", "end"}), (50, {"blocked"})):
        options = DecodingConfig(
            beam=1, temperature=1.0, n_best=50, no_repeat=2, min_length=min_length
        )
        answers = all_of(decode(transformer, [request], options)[0])
        assert {answer.stopped for answer in answers} == stops
        assert len({len(answer.token_ids) for answer in answers}) > 1
        assert len(answers) == 50


# ---- limits of sampling -------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 3.0, "top_p": 1e-9},
        {"temperature": 1e-8},
        {"temperature": 1e-30},
        {"temperature": 1e-300},
        {"temperature": 5e-324},  # the smallest positive number
    ],
    ids=str,
)
def test_sampling_from_one_token_is_greedy_search(options, net, make_requests, same):
    requests = make_requests(6, limit=8)
    greedy = decode(net(), requests, DecodingConfig(beam=1))
    same(decode(net(), requests, DecodingConfig(beam=1, **options)), greedy, atol=0)


def test_very_high_temperature_gives_uniform_distribution(net, all_of):
    counts = first_tokens(
        net(), Request([5, 9, 3, EOS], limit=1), 3000, {"temperature": 1000.0}, all_of
    )
    assert_drawn_from(counts, [250.0] * 12)


@pytest.mark.parametrize("top_k", [12, 13, 10**9])
def test_top_k_of_vocabulary_size_has_no_effect(top_k, net, following, all_of):
    request, options = Request([5, 9, 3, EOS], limit=1), {"temperature": 1.0, "top_k": top_k}
    counts = first_tokens(net(), request, 2000, options, all_of)
    assert_drawn_from(counts, 2000 * np.exp(following(net(), request, [[]])[0]))


def test_token_is_chosen_by_inverse_distribution_function():
    logprobs = torch.tensor([0.2, 0.0, 0.5, 0.3, 0.0]).log()
    noise = torch.tensor([0.0, 0.1999, 0.2001, 0.6999, 0.7001, 1 - 2**-53], dtype=torch.float64)
    options = DecodingConfig(beam=1, temperature=1.0)
    tokens = sample(logprobs.expand(6, 5), noise[:, None], options)
    assert tokens[:, 0].tolist() == [0, 0, 2, 2, 3, 3]


def test_token_of_zero_probability_is_never_chosen():
    logprobs = torch.randn(400, 30).log_softmax(-1)
    logprobs[:, ::3] = -math.inf
    for edge in (0.0, 1 - 2**-53):
        for filters in ({}, {"top_k": 7}, {"top_p": 0.3}, {"top_k": 25, "top_p": 0.99}):
            options = DecodingConfig(beam=1, temperature=1.0, **filters)
            tokens = sample(logprobs, torch.full((400, 1), edge, dtype=torch.float64), options)
            assert (logprobs.gather(1, tokens) > -math.inf).all()
