"""Coverage of bootstrap confidence intervals, and p-values of the paired bootstrap test."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import InputError
from regard.tasks.bootstrap import Comparison, intervals, paired

values = st.lists(st.floats(-100, 100), min_size=1, max_size=30).map(np.array)


def mean(figures):
    return {"mean": lambda indices: float(figures[indices].mean())}


def test_interval_depends_only_on_seed():
    figures = np.sin(np.arange(50))
    first = intervals(mean(figures), 50, samples=200)
    assert intervals(mean(figures), 50, samples=200) == first
    assert intervals(mean(figures), 50, samples=200, seed=1) != first


def test_all_metrics_get_the_same_resamples_with_replacement():
    draws = {"a": [], "b": []}

    def watch(name):
        def metric(indices):
            draws[name].append(indices.tolist())
            return 0.0

        return metric

    intervals({"a": watch("a"), "b": watch("b")}, 20, samples=50)
    assert draws["a"] == draws["b"]
    assert len(draws["a"]) == 50
    assert all(len(draw) == 20 and set(draw) <= set(range(20)) for draw in draws["a"])
    assert any(len(set(draw)) < 20 for draw in draws["a"])
    assert len({tuple(draw) for draw in draws["a"]}) == 50


def test_interval_of_mean_agrees_with_normal_distribution():
    figures = np.random.default_rng(0).normal(size=400)
    low, high = intervals(mean(figures), 400, samples=2000)["mean"]
    error = figures.std() / np.sqrt(400)
    assert low == pytest.approx(figures.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(figures.mean() + 1.96 * error, abs=0.15 * error)


def test_lower_level_gives_narrower_interval():
    figures = np.random.default_rng(0).normal(size=400)
    error = figures.std() / np.sqrt(400)
    for level, width in ((0.5, 2 * 0.674), (0.9, 2 * 1.645), (0.99, 2 * 2.576)):
        low, high = intervals(mean(figures), 400, samples=2000, level=level)["mean"]
        assert (high - low) / error == pytest.approx(width, rel=0.1)


def test_interval_of_mean_covers_true_mean_in_95_percent_of_trials():
    # With 50 examples and 200 samples the interval covers the mean in 93.3% of 5,000 trials, because
    # percentile intervals of few examples are slightly narrow. The bounds are three standard
    # deviations of 300 trials around this rate.
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        figures = random.normal(loc=3.0, size=50)
        low, high = intervals(mean(figures), 50, samples=200, seed=trial)["mean"]
        covered += low <= 3.0 <= high
    assert 0.89 <= covered / 300 <= 0.976


@given(values)
@settings(max_examples=30)
def test_interval_contains_mean(figures):
    low, high = intervals(mean(figures), len(figures), samples=200)["mean"]
    assert low - 1e-9 <= figures.mean() <= high + 1e-9
    assert figures.min() - 1e-9 <= low <= high <= figures.max() + 1e-9


def test_metric_that_is_not_a_mean_has_an_interval():
    targets = np.arange(100) % 2
    predictions = np.where(np.arange(100) % 5 == 0, 1 - targets, targets)

    def precision(i):
        return float((targets[i] & predictions[i]).sum() / predictions[i].sum())

    low, high = intervals({"precision": precision}, 100)["precision"]
    assert 0.6 < low < precision(np.arange(100)) < high < 0.95


# ---- pairs ------------------------------------------------------------------------------


@given(values)
@settings(max_examples=30)
def test_a_system_does_not_differ_from_itself(figures):
    comparisons = paired(mean(figures), mean(figures), len(figures), samples=50)
    assert comparisons == {"mean": Comparison(0.0, 0.0, 0.0, 1.0)}


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_exchanging_systems_changes_only_the_sign(seed):
    ours, theirs = np.random.default_rng(seed).integers(5, size=(2, 30)).astype(float)
    forward = paired(mean(ours), mean(theirs), 30, samples=100)["mean"]
    backward = paired(mean(theirs), mean(ours), 30, samples=100)["mean"]
    assert backward.difference == -forward.difference
    assert (backward.low, backward.high) == pytest.approx((-forward.high, -forward.low))
    assert backward.p == forward.p
    assert 0 < forward.p <= 1


def test_clear_difference_has_small_p_value():
    random = np.random.default_rng(0)
    theirs = random.normal(size=200)
    ours = theirs + random.normal(loc=0.3, scale=0.5, size=200)
    comparison = paired(mean(ours), mean(theirs), 200)["mean"]
    assert comparison.p < 0.01
    assert 0 < comparison.low < comparison.difference < comparison.high
    assert comparison.difference == pytest.approx(ours.mean() - theirs.mean())


def test_paired_test_detects_difference_of_overlapping_intervals():
    random = np.random.default_rng(1)
    theirs = random.normal(size=200)
    ours = theirs + random.normal(loc=0.1, scale=0.3, size=200)
    (low, _), (_, high) = (intervals(mean(x), 200)["mean"] for x in (ours, theirs))
    assert low < high  # they overlap
    assert paired(mean(ours), mean(theirs), 200)["mean"].p < 0.01


def test_p_value_agrees_with_two_sided_normal_test():
    figures = np.random.default_rng(2).normal(size=400)
    error = figures.std() / np.sqrt(400)
    for distance, expected in ((0.0, 1.0), (0.5, 0.617), (1.0, 0.317), (2.0, 0.0455)):
        ours = figures - figures.mean() + distance * error
        comparison = paired(mean(ours), mean(0 * ours), 400, samples=3000)["mean"]
        assert comparison.p == pytest.approx(expected, abs=0.03)


def test_p_value_is_below_5_percent_in_5_percent_of_trials_without_difference():
    # The rate is 5.6% in 3,000 trials; the bounds are three standard deviations of 200 trials around
    # it.
    random = np.random.default_rng(3)
    significant = 0
    for trial in range(200):
        ours, theirs = random.normal(size=(2, 50))
        significant += paired(mean(ours), mean(theirs), 50, 200, trial)["mean"].p < 0.05
    assert 0.008 <= significant / 200 <= 0.105


def test_p_value_follows_its_definition():
    ours, theirs = np.array([1.0, 1.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0, 0.0])
    resamples = []

    def watch(indices):
        resamples.append(indices)
        return float(ours[indices].mean())

    comparison = paired({"mean": watch}, mean(theirs), 4, samples=40)["mean"]
    gaps = np.array([(ours - theirs)[i].mean() for i in resamples if i.tolist() != [0, 1, 2, 3]])
    assert len(gaps) == 40
    assert comparison.difference == 0.5
    assert comparison.p == ((np.abs(gaps - gaps.mean()) >= 0.5).sum() + 1) / 41
    assert (comparison.low, comparison.high) == pytest.approx(
        tuple(np.quantile(gaps, [0.025, 0.975]))
    )


def test_p_value_is_never_zero():
    ones = np.ones(10)
    comparison = paired(mean(ones), mean(0 * ones), 10, samples=99)["mean"]
    assert comparison == Comparison(1.0, 1.0, 1.0, 0.01)


def test_several_metrics_are_compared_by_name():
    figures = np.arange(10.0)
    ours = {"up": mean(figures)["mean"], "down": mean(-figures)["mean"]}
    theirs = {"down": mean(0 * figures)["mean"], "up": mean(0 * figures + 1)["mean"]}
    comparisons = paired(ours, theirs, 10, samples=20)
    assert {name: comparison.difference for name, comparison in comparisons.items()} == {
        "up": 3.5,
        "down": -4.5,
    }


def test_empty_data_or_invalid_sample_count_is_input_error():
    empty = mean(np.zeros(0))
    with pytest.raises(InputError, match="no examples to resample"):
        intervals(empty, 0)
    with pytest.raises(InputError, match="no examples to resample"):
        paired(empty, empty, 0)
    with pytest.raises(InputError, match="0 samples"):
        intervals(empty, 5, samples=0)
    with pytest.raises(InputError, match="-1 samples"):
        paired(empty, empty, 5, samples=-1)
