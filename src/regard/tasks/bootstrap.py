"""How sure a figure is: confidence intervals and paired tests by the bootstrap (Efron 1979).

The test set is one draw of examples out of many that could have been. Drawing again from itself,
with repetitions, shows how far a metric moves when the examples change. That needs no formula for
the metric, so it serves for BLEU and F1, which are no means over examples, as well as for accuracy.
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
    """Ours against theirs on the same examples."""

    difference: float  # ours - theirs, on all examples
    low: float | None  # the 95% interval of the difference, where it is known
    high: float | None
    p: float  # how often chance alone would make so large a difference: see `paired`


def scores_of(metrics: Metrics, n: int) -> dict[str, Any]:
    """Each metric on all n examples, with four digits after the point."""
    everything = np.arange(n, dtype=np.int64)
    return {name: round(metric(everything), 4) for name, metric in metrics.items()}


def intervals(
    metrics: Metrics, n: int, samples: int = SAMPLES, seed: int = SEED, level: float = LEVEL
) -> dict[str, tuple[float, float]]:
    """For each metric of n examples, the middle `level` of its values on resampled test sets (the
    percentile bootstrap). It tells of the choice of examples, not of another training run."""
    results = _values(metrics, n, samples, seed)
    return {name: _middle(values, level) for name, values in results.items()}


def paired(
    ours: Metrics, theirs: Metrics, n: int, samples: int = SAMPLES, seed: int = SEED
) -> dict[str, Comparison]:
    """Each metric of two systems on the same n examples. Both are resampled with the same indices:
    what is hard for both cancels out, so far smaller differences show than two intervals would.

    p is two-sided: if the systems were equally good, so often a test set would show a difference
    at least this large in either direction. The differences of the resampled sets (Koehn 2004),
    shifted to the mean 0, stand for those of equally good systems (Riezler & Maxwell 2005);
    p = (how many are at least as large + 1) / (samples + 1), never 0. Small (below 0.05, by
    custom): chance is a poor explanation. Large: these examples do not tell the systems apart,
    which does not prove them equal. A handful of examples hardly varies, and looks too sure.
    sacreBLEU counts one direction only: its p is about half of this or less.
    """

    def difference(name: str) -> Metric:
        first, second = ours[name], theirs[name]
        return lambda indices: first(indices) - second(indices)

    differences = {name: difference(name) for name in ours}
    results = _values(differences, n, samples, seed)
    everything = np.arange(n, dtype=np.int64)
    compared = {}
    for name, values in results.items():
        whole = float(differences[name](everything))
        extreme = np.abs(values - values.mean()) >= abs(whole)
        p = (int(extreme.sum()) + 1) / (samples + 1)
        compared[name] = Comparison(whole, *_middle(values, LEVEL), p)
    return compared


def _values(metrics: Metrics, n: int, samples: int, seed: int) -> dict[str, NDArray[np.float64]]:
    """[samples] values of each metric, all on the same resampled test sets."""
    if n < 1:
        raise InputError("no examples to resample; give at least one, or ask for no intervals")
    if samples < 1:
        raise InputError(f"{samples} samples cannot show how far a figure moves; use 1000")
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
