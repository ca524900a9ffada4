"""Metrics that a user adds to those of a task, in validation and in `evaluate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.registry import Registry
from regard.errors import InputError
from regard.tasks.bootstrap import Metric
from regard.tasks.registry import find_task, task_names

# predictions and references, one of each for every example -> the score
MetricFunction = Callable[[Any, Any], float]

_METRICS: dict[str, dict[str, MetricFunction]] = {}  # by task and name
BUILT_IN = ("bleu", "chrf", "accuracy", "macro_f1", "matthews", "calibration_error", "f1", "exact",
            "exact_by_task", "loss", "perplexity", "bleu_signature", "chrf_signature")  # fmt: skip


def register_metric(name: str, metric: MetricFunction, task: str = "translate") -> MetricFunction:
    """Add a metric to the evaluations of a task.

    Its score is printed and stored with every validation in training, and `evaluate` returns it.

    Args:
        name: the name of the score. A metric with the same name and task is replaced.
        metric: called with the predictions and the references of all examples; returns a number.
            translate: two lists of texts. answer: a list of texts, and for each of them the list of
            correct answers. classify: probabilities [n, classes] and class numbers [n], as NumPy
            arrays.
        task: the name of the task.

    Returns:
        The metric.

    Raises:
        InputError: the name is not valid, the metric cannot be called, or the task is unknown or
            does not use registered metrics.
    """
    if not find_task(task).has_metrics:
        able = ", ".join(known for known in task_names() if find_task(known).has_metrics)
        raise InputError(f"the task {task} does not use registered metrics; these do: {able}")
    Registry("metric", "regard.register_metric", ("predictions", "references"), BUILT_IN).register(
        name, metric
    )  # checks both
    _METRICS.setdefault(task, {})[name] = metric
    return metric


def registered_metrics(
    task: str, predictions: Sequence[Any] | NDArray[Any], references: Sequence[Any] | NDArray[Any]
) -> dict[str, Metric]:
    """The registered metrics of a task as functions of the indices of examples."""

    def select(values: Any, chosen: NDArray[np.int64]) -> Any:
        if isinstance(values, np.ndarray):
            return values[chosen]
        return [values[i] for i in chosen.tolist()]

    def of(name: str, metric: MetricFunction) -> Metric:
        def score(chosen: NDArray[np.int64]) -> float:
            value = metric(select(predictions, chosen), select(references, chosen))
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = math.nan
            if not math.isfinite(number):
                raise InputError(
                    f"the metric {name!r} returned {value!r:.60}: it must return a finite number"
                )
            return number

        return score

    return {name: of(name, metric) for name, metric in _METRICS.get(task, {}).items()}
