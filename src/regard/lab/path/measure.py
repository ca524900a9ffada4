"""`regard lab path`: how far back the last output depends on the input, and how much (section 4).

For each kind of layer, new and after training to recall a token (common/recall_training.py), the
norm of the gradient of the last output by the input t steps back: exactly zero where there is no
path, decaying where the path goes through all steps between, constant where it is direct. The
picture shows the gradient by the token to be recalled, t steps back. Trained models attend to that
token and ignore the others, whose gradients are in path.json as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.device import choose_device, keep_freed_memory
from regard.lab.common.gradients import Norms, decay, gradient_norms, reach, root_mean_square
from regard.lab.common.recall_training import RecallTraining, curriculum_distances, recall_example
from regard.lab.common.training import check_out, create_out
from regard.lab.path.report import PathReport
from regard.model.transformer import Transformer

SEQUENCES = 8  # for each distance
STATES = ("at initialisation", "after training")


class ModelGradients(NamedTuple):
    recalled: Norms  # [T]: by the token to be recalled, at each of the distances
    others: Norms  # [n]: by the token t back where it is not the one to be recalled


def measure_path(
    out: Path, length: int, training: RecallTraining, quiet: bool = False
) -> PathReport:
    """Measure the gradients of each model before and after its training."""
    distances = curriculum_distances(length - 1)
    training.check(length - 1, SEQUENCES * len(distances), f"--length {length}")
    check_out(out, "path")
    create_out(out, "path")
    keep_freed_memory()
    device = choose_device(training.device)
    gradients: dict[str, dict[str, list[ModelGradients]]] = {
        name: {state: [] for state in STATES} for name in training.kinds
    }
    steps: dict[str, list[int]] = {name: [] for name in training.kinds}
    for seed, name, trained in training.train_all(length - 1, (), quiet):
        new = training.new_model(name, seed).to(device)
        for state, model in zip(STATES, (new, trained.model), strict=True):
            gradients[name][state].append(measure_model(model, length, distances, seed))
        steps[name].append(trained.steps)
    kinds = {
        name: {
            "title": training.title(name),
            "steps": steps[name],
            "states": {state: summary(models, distances) for state, models in states.items()},
        }
        for name, states in gradients.items()
    }
    return PathReport(length, training, distances, kinds)


def measure_model(
    model: Transformer, length: int, distances: Sequence[int], seed: int
) -> ModelGradients:
    """The gradients over sequences in which the token to be recalled is at each distance."""
    random = np.random.default_rng(seed)
    repeated = np.repeat(distances, SEQUENCES)
    sequences = [recall_example(random, length, int(t)).tokens for t in repeated]
    norms = gradient_norms(model, sequences, seed)  # [T x SEQUENCES, n]
    recalled = np.array([root_mean_square(norms[repeated == t, t]) for t in distances])
    others = np.array([root_mean_square(norms[repeated != t, t]) for t in range(length)])
    return ModelGradients(recalled, others)


def summary(models: Sequence[ModelGradients], distances: Sequence[int]) -> dict[str, Any]:
    """Geometric means over seeds, since a decaying gradient varies in its magnitude; the reach; and
    the factor per step where the gradient reaches the first input."""
    others = np.array([measured.others for measured in models])  # [seeds, n]
    recalled = np.array([measured.recalled for measured in models])  # [seeds, T]
    farthest = max(reach(measured) for measured in others)
    whole = farthest == others.shape[1] - 1
    every = range(1, others.shape[1])
    return {
        "reach": farthest,
        "recalled": {
            "gradient": geometric_mean(recalled), "seeds": recalled.tolist(),
            "factor_a_step": factor(distances, recalled) if whole else None,
        },
        "others": {
            "gradient": geometric_mean(others),
            "factor_a_step": factor(every, others[:, 1:]) if whole else None,
        },
    }  # fmt: skip


def geometric_mean(x: NDArray[np.float64]) -> list[float]:
    """The mean over the first axis; zero where a value is zero."""
    with np.errstate(divide="ignore"):
        return [float(value) for value in np.exp(np.log(x).mean(0))]


def factor(steps: Sequence[int], curves: NDArray[np.float64]) -> dict[str, float | None]:
    """The factor per step of the exponential that fits each seed's gradients: mean, deviation."""
    factors = [decay(steps, curve) for curve in curves]
    deviation = float(np.std(factors, ddof=1)) if len(factors) > 1 else None
    return {"mean": float(np.mean(factors)), "deviation": deviation}
