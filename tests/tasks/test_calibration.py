"""The confidence interval of the calibration error, on predictions whose true error is known."""

import numpy as np
import pytest

from regard.tasks.bootstrap import BiasedMetric, intervals, paired
from regard.tasks.metrics import calibration_error, debiased_calibration_error

N, TRIALS, SAMPLES = 600, 50, 150


def predictions(over, seed, n=N):
    """Probabilities [n, 2] of a model that is too confident by `over`, and the correct classes."""
    random = np.random.default_rng(seed)
    top = 0.55 + 0.4 * random.beta(3, 1, n)
    right = random.random(n) < top - over
    return np.stack([top, 1 - top], axis=1), np.where(right, 0, 1)


def metric(probabilities, targets):
    def on_sample(error):
        return lambda chosen: error(probabilities[chosen], targets[chosen])

    return BiasedMetric(on_sample(calibration_error), on_sample(debiased_calibration_error))


@pytest.fixture(scope="module", params=[0.0, 0.03, 0.1])
def trials(request):
    """The true error, and the interval and the value of each trial."""
    results = []
    for seed in range(TRIALS):
        error = metric(*predictions(request.param, seed))
        results.append((intervals({"e": error}, N, SAMPLES, seed)["e"], error(np.arange(N))))
    return request.param, results


def test_interval_covers_true_error_in_at_least_85_percent_of_trials(trials):
    true, results = trials
    covered = sum(low <= true <= high for (low, high), _ in results)
    assert covered >= 0.85 * TRIALS  # 4 standard deviations below 95 %


def test_value_is_near_the_middle_of_its_interval(trials):
    _, results = trials
    positions = [(value - low) / (high - low) for (low, high), value in results]
    assert all(0 <= position <= 1 for position in positions)
    assert 0.4 <= np.mean(positions) <= 0.75


def test_percentile_interval_of_plain_metric_excludes_zero_error():
    missed = 0
    for seed in range(20):
        plain = metric(*predictions(0.0, seed)).metric
        low, _ = intervals({"e": plain}, N, SAMPLES, seed)["e"]
        missed += low > 0
    assert missed == 20


def test_mean_debiased_error_is_close_to_true_error():
    for true in (0.0, 0.05, 0.1):
        values = [predictions(true, seed, 2000) for seed in range(40)]
        plain, debiased = (
            np.mean([error(*value) for value in values])
            for error in (calibration_error, debiased_calibration_error)
        )
        assert debiased == pytest.approx(true, abs=0.01)
        assert true > 0.0 or abs(debiased) < plain / 2


def test_plain_and_debiased_error_agree_for_large_gap():
    probabilities, targets = predictions(0.4, 1, 50_000)
    plain = calibration_error(probabilities, targets)
    assert debiased_calibration_error(probabilities, targets) == pytest.approx(plain, rel=1e-3)
    assert debiased_calibration_error(np.zeros((0, 2)), np.zeros(0, np.int64)) == 0.0


def test_paired_comparison_uses_debiased_errors():
    ours, theirs = metric(*predictions(0.2, 1)), metric(*predictions(0.0, 2))
    comparison = paired({"e": ours}, {"e": theirs}, N, SAMPLES)["e"]
    assert comparison.low <= comparison.difference <= comparison.high
    assert comparison.low > 0
    assert comparison.p < 0.05
    same = paired({"e": ours}, {"e": ours}, N, SAMPLES)["e"]
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)
