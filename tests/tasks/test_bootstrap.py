"""Intervals cover what they promise, and the paired test sees what is there and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import InputError
from regard.tasks.bootstrap import Comparison, intervals, paired

values = st.lists(st.floats(-100, 100), min_size=1, max_size=30).map(np.array)


def mean(figures):
    return {"mean": lambda indices: float(figures[indices].mean())}


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    figures = np.sin(np.arange(50))
    first = intervals(mean(figures), 50, samples=200)
    assert intervals(mean(figures), 50, samples=200) == first
    assert intervals(mean(figures), 50, samples=200, seed=1) != first


def test_every_metric_sees_the_same_draws_of_all_examples_with_repetitions():
    seen = {"a": [], "b": []}

    def watch(name):
        def metric(indices):
            seen[name].append(indices.tolist())
            return 0.0

        return metric

    intervals({"a": watch("a"), "b": watch("b")}, 20, samples=50)
    assert seen["a"] == seen["b"]
    assert len(seen["a"]) == 50
    assert all(len(draw) == 20 and set(draw) <= set(range(20)) for draw in seen["a"])
    assert any(len(set(draw)) < 20 for draw in seen["a"])
    assert len({tuple(draw) for draw in seen["a"]}) == 50


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    figures = np.random.default_rng(0).normal(size=400)
    low, high = intervals(mean(figures), 400, samples=2000)["mean"]
    error = figures.std() / np.sqrt(400)
    assert low == pytest.approx(figures.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(figures.mean() + 1.96 * error, abs=0.15 * error)


def test_a_lower_level_gives_a_narrower_interval():
    figures = np.random.default_rng(0).normal(size=400)
    error = figures.std() / np.sqrt(400)
    for level, width in ((0.5, 2 * 0.674), (0.9, 2 * 1.645), (0.99, 2 * 2.576)):
        low, high = intervals(mean(figures), 400, samples=2000, level=level)["mean"]
        assert (high - low) / error == pytest.approx(width, rel=0.1)


def test_the_interval_of_a_mean_covers_the_truth_about_95_times_of_100():
    # With 50 examples and 200 samples it covers 93.3 % (of 5000 trials): percentiles of so few are
    # a little narrow. The bounds are three standard deviations of 300 trials around that.
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        figures = random.normal(loc=3.0, size=50)
        low, high = intervals(mean(figures), 50, samples=200, seed=trial)["mean"]
        covered += low <= 3.0 <= high
    assert 0.89 <= covered / 300 <= 0.976


@given(values)
@settings(max_examples=30)
def test_the_interval_of_a_mean_holds_the_mean(figures):
    low, high = intervals(mean(figures), len(figures), samples=200)["mean"]
    assert low - 1e-9 <= figures.mean() <= high + 1e-9
    assert figures.min() - 1e-9 <= low <= high <= figures.max() + 1e-9


def test_a_metric_that_is_no_mean_has_an_interval_too():
    wanted = np.arange(100) % 2
    given = np.where(np.arange(100) % 5 == 0, 1 - wanted, wanted)

    def precision(i):
        return float((wanted[i] & given[i]).sum() / given[i].sum())

    low, high = intervals({"precision": precision}, 100)["precision"]
    assert 0.6 < low < precision(np.arange(100)) < high < 0.95


# ---- pairs ------------------------------------------------------------------------------


@given(values)
@settings(max_examples=30)
def test_a_system_does_not_differ_from_itself(figures):
    found = paired(mean(figures), mean(figures), len(figures), samples=50)
    assert found == {"mean": Comparison(0.0, 0.0, 0.0, 1.0)}


@given(st.integers(0, 1000))
@settings(max_examples=20)
def test_the_other_way_round_only_the_sign_changes(seed):
    ours, theirs = np.random.default_rng(seed).integers(5, size=(2, 30)).astype(float)
    one = paired(mean(ours), mean(theirs), 30, samples=100)["mean"]
    other = paired(mean(theirs), mean(ours), 30, samples=100)["mean"]
    assert other.difference == -one.difference
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low))
    assert other.p == one.p
    assert 0 < one.p <= 1


def test_a_clear_difference_has_a_small_p():
    random = np.random.default_rng(0)
    theirs = random.normal(size=200)
    ours = theirs + random.normal(loc=0.3, scale=0.5, size=200)
    found = paired(mean(ours), mean(theirs), 200)["mean"]
    assert found.p < 0.01
    assert 0 < found.low < found.difference < found.high
    assert found.difference == pytest.approx(ours.mean() - theirs.mean())


def test_pairing_shows_what_two_intervals_hide():
    random = np.random.default_rng(1)
    theirs = random.normal(size=200)
    ours = theirs + random.normal(loc=0.1, scale=0.3, size=200)
    (low, _), (_, high) = (intervals(mean(x), 200)["mean"] for x in (ours, theirs))
    assert low < high  # they overlap
    assert paired(mean(ours), mean(theirs), 200)["mean"].p < 0.01


def test_p_is_two_sided_as_the_normal_distribution_has_it():
    figures = np.random.default_rng(2).normal(size=400)
    error = figures.std() / np.sqrt(400)
    for distance, wished in ((0.0, 1.0), (0.5, 0.617), (1.0, 0.317), (2.0, 0.0455)):
        ours = figures - figures.mean() + distance * error
        found = paired(mean(ours), mean(0 * ours), 400, samples=3000)["mean"]
        assert found.p == pytest.approx(wished, abs=0.03)


def test_p_is_below_a_twentieth_about_5_times_of_100_where_nothing_is():
    # 5.6 % of 3000 trials; the bounds are three standard deviations of 200 around that
    random = np.random.default_rng(3)
    found = 0
    for trial in range(200):
        ours, theirs = random.normal(size=(2, 50))
        found += paired(mean(ours), mean(theirs), 50, 200, trial)["mean"].p < 0.05
    assert 0.008 <= found / 200 <= 0.105


def test_p_counts_as_its_docstring_says():
    ours, theirs = np.array([1.0, 1.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0, 0.0])
    draws = []

    def watch(indices):
        draws.append(indices)
        return float(ours[indices].mean())

    found = paired({"mean": watch}, mean(theirs), 4, samples=40)["mean"]
    gaps = np.array([(ours - theirs)[i].mean() for i in draws if i.tolist() != [0, 1, 2, 3]])
    assert len(gaps) == 40
    assert found.difference == 0.5
    assert found.p == ((np.abs(gaps - gaps.mean()) >= 0.5).sum() + 1) / 41
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(gaps, [0.025, 0.975])))


def test_p_is_never_zero():
    ones = np.ones(10)
    found = paired(mean(ones), mean(0 * ones), 10, samples=99)["mean"]
    assert found == Comparison(1.0, 1.0, 1.0, 0.01)


def test_several_metrics_are_compared_by_name():
    figures = np.arange(10.0)
    ours = {"up": mean(figures)["mean"], "down": mean(-figures)["mean"]}
    theirs = {"down": mean(0 * figures)["mean"], "up": mean(0 * figures + 1)["mean"]}
    found = paired(ours, theirs, 10, samples=20)
    assert {name: one.difference for name, one in found.items()} == {"up": 3.5, "down": -4.5}


def test_nothing_to_resample_is_an_input_error():
    nothing = mean(np.zeros(0))
    with pytest.raises(InputError, match="no examples to resample"):
        intervals(nothing, 0)
    with pytest.raises(InputError, match="no examples to resample"):
        paired(nothing, nothing, 0)
    with pytest.raises(InputError, match="0 samples"):
        intervals(nothing, 5, samples=0)
    with pytest.raises(InputError, match="-1 samples"):
        paired(nothing, nothing, 5, samples=-1)
