"""Confidence intervals and paired significance tests by the bootstrap (Efron 1979).

The test set is a random sample of examples. Resampling it with replacement shows how much a metric
varies with the choice of examples. This needs no formula for the metric, so it also works for BLEU
and F1, which are not means over examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError

Metric = Callable[[NDArray[np.int64]], float]  # of the examples with these indices, repeated or not
Metrics = Mapping[str, Metric]

SAMPLES = 1000
SEED = 12345  # as in sacreBLEU
LEVEL = 0.95


@dataclass(frozen=True)
class Comparison:
    """The comparison of two systems on the same examples."""

    difference: float  # ours - theirs, on all examples
    low: float | None  # the 95% interval of the difference, where it is known
    high: float | None
    p: float  # the two-sided p-value: see `paired`


@dataclass(frozen=True)
class BiasedMetric:
    """A metric that is not below 0 and too high on few examples, such as the calibration error.

    Resampling adds its bias a second time, so the percentiles of resampled values are too high:
    they may even exclude the value itself. The interval is therefore the basic bootstrap interval
    (Davison & Hinkley 1997, section 5.2) of `debiased`. In a resampled test set the true value is
    that of `metric` on all examples, so the errors of the estimate are the resampled values of
    `debiased` minus that, and the interval is the estimate minus their quantiles. It is extended,
    if necessary, to include the value of `metric`.
    """

    metric: Metric
    debiased: Metric  # an almost unbiased estimate of the same quantity

    def __call__(self, indices: NDArray[np.int64]) -> float:
        return self.metric(indices)


def scores_of(metrics: Metrics, n: int) -> dict[str, Any]:
    """Each metric on all n examples, rounded to four decimal places."""
    everything = np.arange(n, dtype=np.int64)
    return {name: round(metric(everything), 4) for name, metric in metrics.items()}


def intervals(
    metrics: Metrics, n: int, samples: int = SAMPLES, seed: int = SEED, level: float = LEVEL
) -> dict[str, tuple[float, float]]:
    """The confidence intervals of metrics of n examples.

    The interval of a metric is the middle `level` of its values on resampled test sets (the
    percentile bootstrap); that of a `BiasedMetric` is described there. It reflects the choice of
    the examples, not the variation between training runs.

    Returns:
        (low, high) of each metric.

    Raises:
        InputError: n or samples is less than 1.
    """
    results = _values({name: _resampled(metric) for name, metric in metrics.items()}, n, samples,
                      seed)  # fmt: skip
    everything = np.arange(n, dtype=np.int64)
    ends = {}
    for name, values in results.items():
        low, high = _middle(values, level)
        metric = metrics[name]
        if isinstance(metric, BiasedMetric):
            whole, estimate = metric.metric(everything), metric.debiased(everything)
            low, high = _basic(low, high, whole, estimate)
            low, high = max(0.0, low), max(0.0, high)
        ends[name] = (low, high)
    return ends


def paired(
    ours: Metrics, theirs: Metrics, n: int, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Comparison]:
    """Compare two systems on the same n examples, for each metric.

    Both systems are resampled with the same indices. Examples that are hard for both cancel out, so
    that much smaller differences are significant than two separate intervals would show.

    The p-value is two-sided: the probability of a difference at least this large, in either
    direction, if both systems were equally good. The differences of the resampled test sets (Koehn
    2004), shifted to mean 0, represent equally good systems (Riezler & Maxwell 2005); p = (number
    of differences at least as large + 1) / (samples + 1), which is never 0. A large p-value does
    not prove that the systems are equal. With very few examples the p-value is too small.
    sacreBLEU counts one direction only, so its p-value is about half of this or less.

    Returns:
        The comparison of each metric of `ours`.

    Raises:
        InputError: n or samples is less than 1.
    """

    def difference(name: str, resampled: bool = False) -> Metric:
        first, second = ours[name], theirs[name]
        if resampled:
            first, second = _resampled(first), _resampled(second)
        return lambda indices: first(indices) - second(indices)

    results = _values({name: difference(name, True) for name in ours}, n, samples, seed)
    everything = np.arange(n, dtype=np.int64)
    compared = {}
    for name, values in results.items():
        whole = float(difference(name)(everything))
        extreme = np.abs(values - values.mean()) >= abs(whole)
        p = (int(extreme.sum()) + 1) / (samples + 1)
        low, high = _middle(values, LEVEL)
        if isinstance(ours[name], BiasedMetric):
            low, high = _basic(low, high, whole, float(difference(name, True)(everything)))
        compared[name] = Comparison(whole, low, high, p)
    return compared


def _resampled(metric: Metric) -> Metric:
    """The function to evaluate on resampled test sets."""
    return metric.debiased if isinstance(metric, BiasedMetric) else metric


def _basic(low: float, high: float, whole: float, estimate: float) -> tuple[float, float]:
    """The basic bootstrap interval, extended to include `whole`.

    low, high: the quantiles of the resampled estimates
    whole: the value on all examples, which is the true value of a resampled test set
    estimate: the debiased estimate on all examples
    """
    low, high = estimate + whole - high, estimate + whole - low
    return min(low, whole), max(high, whole)


def _values(metrics: Metrics, n: int, samples: int, seed: int) -> dict[str, NDArray[np.float64]]:
    """[samples] values of each metric, all on the same resampled test sets."""
    if n < 1:
        raise InputError("no examples to resample: at least one is needed")
    if samples < 1:
        raise InputError(f"{samples} samples: at least 1 is needed, and 1000 are usual")
    random = np.random.default_rng(seed)
    results = {name: np.empty(samples) for name in metrics}
    for i in range(samples):
        indices = random.integers(n, size=n)
        for name, metric in metrics.items():
            results[name][i] = metric(indices)
    return results


def _middle(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
