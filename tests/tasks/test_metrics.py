"""The metrics agree with scikit-learn, SciPy and SQuAD, also in special cases.

The expected values were computed once with scikit-learn 1.9.1 and SciPy 1.17.1 from the same arrays.
The tests need neither package.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.tasks.metrics import (
    calibration_error,
    classification,
    confusion,
    exact_match,
    fit_temperature,
    normalise_answer,
    pearson,
    spearman,
    token_f1,
)

N = np.arange(60)
TARGETS = N * 7 % 11 % 4
PREDICTIONS = np.where(N % 3 == 0, N * 5 % 13 % 4, TARGETS)
LOGITS = 5 * np.sin(np.outer(N[:40] + 1, [1.3, 2.1, 3.7, 4.9]))  # [40, 4]
LABELS = np.where(N[:40] % 4 == 0, N[:40] // 4 % 4, LOGITS.argmax(1))

EMPTY = np.zeros(0, np.int64)

pairs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30)
words = st.lists(
    st.sampled_from(["the", "a", "Paris", "paris,", "in", "1889", "–", "!"]), max_size=6
)
numbers = st.lists(
    st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=2, max_size=30
).map(np.array)


def softmax(logits):
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


# ---- classes ----------------------------------------------------------------------------


def test_confusion_matrix_matches_scikit_learn():
    table = confusion(TARGETS, PREDICTIONS, 4)
    assert table.tolist() == [[11, 2, 3, 0], [4, 10, 0, 1], [0, 1, 15, 1], [3, 0, 0, 9]]


@pytest.mark.parametrize(
    ("targets", "predictions", "accuracy", "macro_f1", "matthews"),
    [
        (TARGETS, PREDICTIONS, 0.75, 0.7502740226525393, 0.665302136867868),
        (TARGETS[:9], PREDICTIONS[:9], 0.8888888888888888, 0.8666666666666667, 0.8645309671165333),
        # class 2 is never predicted, class 3 is only predicted: both count 0
        ([0, 0, 1, 1, 2], [0, 1, 1, 3, 3], 0.4, 0.29166666666666663, 0.25),
        ([0, 0, 1, 1], [1, 1, 0, 0], 0.0, 0.0, -1.0),
        ([0, 1, 1], [1, 1, 1], 2 / 3, 0.4, 0.0),  # always the same prediction
        ([2, 2], [2, 2], 1.0, 1.0, 0.0),  # correct, but the correlation is not defined
    ],
)
def test_classification_metrics_match_scikit_learn(
    targets, predictions, accuracy, macro_f1, matthews
):
    result = classification(np.array(targets), np.array(predictions), 6)
    expected = {"accuracy": accuracy, "macro_f1": macro_f1, "matthews": matthews}
    assert result == pytest.approx(expected, abs=1e-12)


def test_unused_classes_do_not_change_the_metrics():
    assert classification(TARGETS, PREDICTIONS, 4) == classification(TARGETS, PREDICTIONS, 400)


def test_classification_metrics_are_zero_without_examples():
    result = classification(EMPTY, EMPTY, 3)
    assert result == {"accuracy": 0.0, "macro_f1": 0.0, "matthews": 0.0}
    assert confusion(EMPTY, EMPTY, 3).tolist() == [[0] * 3] * 3


@pytest.mark.parametrize("predictions", [[0, 1, 3], [0, 1, -1], [0, 1], [0]])
def test_unknown_class_or_different_length_raises(predictions):
    with pytest.raises(ValueError, match="invalid entry|same shape"):
        confusion(np.array([0, 1, 2]), np.array(predictions), 3)


@given(pairs, st.randoms(use_true_random=False))
def test_classification_metrics_do_not_depend_on_the_order(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    first, second = (classification(*np.array(p).T, 5) for p in (pairs, shuffled))
    assert first == second


@given(pairs, st.permutations(range(5)))
def test_classification_metrics_do_not_depend_on_class_numbers(pairs, names):
    targets, predictions = np.array(pairs).T
    names = np.array(names)
    first = classification(targets, predictions, 5)
    assert classification(names[targets], names[predictions], 5) == pytest.approx(first, abs=1e-12)


@given(pairs)
def test_classification_metrics_are_bounded(pairs):
    targets, predictions = np.array(pairs).T
    result = classification(targets, predictions, 5)
    assert 0 <= result["accuracy"] <= 1
    assert 0 <= result["macro_f1"] <= 1
    assert -1 <= result["matthews"] <= 1
    perfect = classification(targets, targets, 5)
    several = len(set(targets.tolist())) > 1
    assert perfect == {"accuracy": 1.0, "macro_f1": 1.0, "matthews": float(several)}


def test_matthews_correlation_does_not_overflow():
    targets = np.arange(100_000) % 2
    predictions = np.where(np.arange(100_000) % 20 < 2, 1 - targets, targets)
    # Balanced, with one of ten wrong: 0.9 - 0.1. The product of the counts is above 2^63.
    assert classification(targets, predictions, 2)["matthews"] == pytest.approx(0.8, abs=1e-12)


# ---- probabilities ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bins", "expected"), [(15, 0.21507266631244146), (5, 0.12862882715064083)]
)
def test_calibration_error_matches_scipy_binned_means(bins, expected):
    # Computed with scipy.stats.binned_statistic: mean accuracy, mean probability and count.
    assert calibration_error(softmax(LOGITS), LABELS, bins) == pytest.approx(expected, abs=1e-12)


def test_calibration_error_of_a_small_example():
    # Bins of a quarter. (0.5, 0.75]: 0.6 right, 0.7 wrong: |0.5 - 0.65|. (0.75, 1]: 0.9, 1.0 right.
    top = np.array([0.6, 0.7, 0.9, 1.0])
    probabilities = np.stack([top, 1 - top], 1)
    targets = np.array([0, 1, 0, 0])
    assert calibration_error(probabilities, targets, 4) == pytest.approx(0.5 * 0.15 + 0.5 * 0.05)


def test_probability_between_two_bins_belongs_to_the_lower_bin():
    probabilities = np.array([[0.5, 0.25, 0.25], [0.25, 0.375, 0.375]])
    # Together in (0, 0.5]: (0.5 - 1 + 0.375 - 0) / 2, not (0.5 + 0.375) / 2 apart.
    assert calibration_error(probabilities, np.array([0, 0]), 2) == pytest.approx(0.125 / 2)


def test_calibration_error_accepts_probabilities_above_one_and_no_examples():
    over = np.array([[1.0000001, 0.0], [0.98, 0.02]], np.float32)
    # wrong and right, in one bin: |1 - 1.98| / 2
    assert calibration_error(over, np.array([1, 0])) == pytest.approx(0.49, abs=1e-6)
    assert calibration_error(np.zeros((0, 3)), EMPTY) == 0.0


@given(st.integers(0, 1000), st.integers(1, 20))
@settings(max_examples=30)
def test_calibration_error_is_bounded_and_does_not_depend_on_the_order(seed, bins):
    random = np.random.default_rng(seed)
    probabilities, targets = random.dirichlet([0.5] * 3, 25), random.integers(3, size=25)
    result = calibration_error(probabilities, targets, bins)
    order = random.permutation(25)
    assert calibration_error(probabilities[order], targets[order], bins) == pytest.approx(result)
    one_bin = calibration_error(probabilities, targets, 1)
    assert one_bin - 1e-12 <= result <= 1  # more bins never reduce the error


def test_temperature_matches_scipy():
    # Computed with scipy.optimize.brentq on the derivative of the negative log-likelihood.
    assert fit_temperature(LOGITS, LABELS) == pytest.approx(2.446371685777326, rel=1e-10)
    single = fit_temperature(LOGITS.astype(np.float32), LABELS)
    assert single == pytest.approx(2.446371685777326, rel=1e-6)


def test_temperature_of_a_small_example():
    # Two classes, logits (z, 0), right in 3 of 4: sigmoid(z / T) = 3 / 4, so T = z / log 3.
    logits = np.array([[2.0, 0.0]] * 4)
    result = fit_temperature(logits, np.array([0, 0, 0, 1]))
    assert result == pytest.approx(2 / math.log(3), rel=1e-10)


def test_temperature_recovers_the_scale_of_overconfident_logits():
    random = np.random.default_rng(0)
    calibrated = random.normal(size=(4000, 5)) * 2
    labels = (calibrated + random.gumbel(size=calibrated.shape)).argmax(
        1
    )  # drawn from softmax(calibrated)
    overconfident = 3 * calibrated
    temperature = fit_temperature(overconfident, labels)
    assert temperature == pytest.approx(3, rel=0.05)
    before, after = (
        calibration_error(softmax(overconfident / t), labels) for t in (1, temperature)
    )
    assert after < 0.03 < 0.1 < before


@given(st.floats(0.5, 2), st.floats(-100, 100))
@settings(max_examples=30)
def test_temperature_scales_with_the_logits_and_ignores_a_shift(scale, shift):
    expected = scale * 2.446371685777326
    assert fit_temperature(scale * LOGITS + shift, LABELS) == pytest.approx(expected, rel=1e-8)


def test_temperature_is_limited_to_its_bounds():
    every = LOGITS.argmax(1)
    assert fit_temperature(LOGITS, every) == pytest.approx(0.05)  # all correct
    assert fit_temperature(LOGITS, LOGITS.argmin(1)) == pytest.approx(20)  # all wrong


def test_temperature_is_one_if_it_has_no_effect():
    assert fit_temperature(np.zeros((0, 3)), EMPTY) == 1.0
    assert fit_temperature(np.full((4, 3), 7.5), np.array([0, 1, 2, 0])) == 1.0
    assert fit_temperature(np.ones((4, 1)), np.zeros(4, np.int64)) == 1.0


def test_class_with_logit_minus_infinity_does_not_change_the_temperature():
    extended = np.concatenate([LOGITS, np.full((40, 1), -np.inf)], 1)
    assert fit_temperature(extended, LABELS) == fit_temperature(LOGITS, LABELS)


# ---- answers to questions ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("  an  apple\ta\nday ", "apple day"),
        ("theatre another Anna", "theatre another anna"),  # articles are whole words
        ("the-the", "thethe"),  # punctuation is removed first, without a space
        ("U.S.A.", "usa"),
        ("A.N. Other", "other"),
        ("$1,000.50", "100050"),
        ("Élan – «vital»", "élan – «vital»"),  # only ASCII punctuation
        ("a–b", "–b"),
        ("one–the–two", "one– –two"),  # an article is replaced by a space
        ("The", ""),
        ("", ""),
    ],
)
def test_normalisation_is_that_of_squad(text, expected):
    assert normalise_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1, 1),
        ("Denver Broncos", ["Carolina Panthers", "The Denver Broncos"], 1, 1),
        ("in Paris", ["Paris"], 0, 2 / 3),
        ("tower eiffel", ["Eiffel Tower"], 0, 1),  # a bag of words
        ("very very good", ["very good good"], 0, 2 / 3),  # repeated words count repeatedly
        ("Santa Clara, California", ["Levi's Stadium", "Santa Clara"], 0, 0.8),
        ("London", ["Paris"], 0, 0),
        ("", ["Paris"], 0, 0),
        ("Paris", [""], 0, 0),
        ("the", [""], 1, 1),
        ("", ["Paris", ""], 1, 1),
        ("Paris", [], 0, 0),
        ("", [], 0, 0),
    ],
)
def test_exact_match_and_f1_are_those_of_squad(prediction, answers, exact, f1):
    assert exact_match(prediction, answers) == exact
    assert token_f1(prediction, answers) == pytest.approx(f1)


@given(words, st.lists(words, max_size=3))
def test_f1_is_between_exact_match_and_one(prediction, allowed):
    text, answers = " ".join(prediction), [" ".join(answer) for answer in allowed]
    assert exact_match(text, answers) <= token_f1(text, answers) <= 1
    assert token_f1(text, [*answers, text]) == exact_match(text, [*answers, text]) == 1
    for answer in answers:
        assert token_f1(text, [answer]) == token_f1(answer, [text])


@given(words)
def test_normalisation_is_idempotent(text):
    once = normalise_answer(" ".join(text))
    assert normalise_answer(once) == once


# ---- correlation ------------------------------------------------------------------------


def test_correlations_match_scipy():
    k = np.arange(30)
    a = np.sin(k * 1.7)
    b = a**3 + np.cos(k * 0.9)
    assert pearson(a, b) == pytest.approx(0.5922970827397146, abs=1e-12)
    assert spearman(a, b) == pytest.approx(0.6124582869855395, abs=1e-12)


def test_correlations_with_ties_match_scipy():
    k = np.arange(30)
    a = k * 7 % 5
    b = k * 11 % 6 + a
    assert pearson(a, b) == pytest.approx(0.6377928041432807, abs=1e-12)
    assert spearman(a, b) == pytest.approx(0.6230294736584144, abs=1e-12)


def test_equal_values_share_the_mean_of_their_ranks():
    # ranks 1.5 1.5 3 4 and 1 2 3 4: covariance 4.5, variances 4.5 and 5
    assert spearman([1, 1, 2, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_spearman_depends_only_on_ranks():
    a = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    assert spearman(a, np.exp(3 * a)) == pytest.approx(1)
    assert spearman(a, -(a**3)) == pytest.approx(-1)
    assert pearson(a, np.exp(3 * a)) < 0.9


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_correlation_with_a_constant_is_zero(correlation):
    assert (
        correlation([0.1, 0.1, 0.1], [0.3, 0.1, 0.2]) == 0.0
    )  # although their computed mean is not 0.1
    assert correlation([1, 2, 3], [5, 5, 5]) == 0.0
    assert correlation([1], [2]) == 0.0
    assert correlation([], []) == 0.0


def test_pearson_does_not_underflow():
    a = np.array([1.0, 2.0, 4.0])
    assert pearson(a * 1e-200, a) == pytest.approx(1)


@given(numbers, st.randoms(use_true_random=False))
def test_correlations_are_symmetric_bounded_and_independent_of_the_order(pairs, random):
    a, b = pairs.T
    order = np.array(random.sample(range(len(a)), len(a)))
    for correlation in (pearson, spearman):
        result = correlation(a, b)
        assert -1 <= result <= 1
        assert correlation(b, a) == result
        assert correlation(-a, b) == pytest.approx(-result, abs=1e-6)
    assert spearman(a[order], b[order]) == pytest.approx(spearman(a, b), abs=1e-9)
