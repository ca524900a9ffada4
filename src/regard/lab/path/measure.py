"""`regard lab path`: how far back the last output depends on the input, and how much (section 4).

For each kind of layer, new and after lessons in recall (lessons.py), the size of the gradient of
the last output by the input t steps back: exactly zero where no path leads, falling with every
step where the path goes through all steps between, the same at any distance where it is direct.
What is drawn is the gradient by the token that is to be recalled, standing t back; trained models
look at that token and away from the others, whose gradients are in path.json beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.device import keep_freed_memory
from regard.lab.common.curriculum import exercise, lesson_distances
from regard.lab.common.gradients import Norms, decay, gradient_norms, reach, root_mean_square
from regard.lab.common.recall_training import Bar, School
from regard.lab.common.report import write_tables
from regard.lab.common.training import begin, check_out
from regard.lab.path.report import PathReport, draw_path
from regard.model.transformer import Transformer
from regard.training.distributed import choose_device

SEQUENCES = 8  # for each distance
STATES = ("at initialisation", "after training")


@dataclass(frozen=True)
class Gradients:
    """Of one model."""

    recalled: Norms  # [T]: by the token to be recalled, at each of the distances
    others: Norms  # [n]: by the token t back where it is not the one to be recalled


def measure_path(out: Path, length: int, school: School, quiet: bool = False) -> PathReport:
    """Measure, train, measure again; everything is written to the folder `out`."""
    distances = lesson_distances(length - 1)
    school.check(length - 1, SEQUENCES * len(distances), f"--length {length}")
    check_out(out, "path")
    begin(out, "path")
    keep_freed_memory()
    where = choose_device(school.device)
    found: dict[str, dict[str, list[Gradients]]] = {
        name: {state: [] for state in STATES} for name in school.kinds
    }
    steps: dict[str, list[int]] = {name: [] for name in school.kinds}
    bar = Bar(school, quiet)
    with bar.progress:
        for seed, name in school.models():
            bar.name(f"{school.title(name)}, seed {seed}")
            model = school.new_model(name, seed)
            before = measure_model(model.to(where), length, distances, seed)
            learned = school.teach(name, seed, length - 1, (), bar)
            after = measure_model(learned.model, length, distances, seed)
            for state, gradients in zip(STATES, (before, after), strict=True):
                found[name][state].append(gradients)
            steps[name].append(learned.steps)
    report = PathReport(length, school, distances)
    for name, states in found.items():
        report.add(
            name, steps[name], {s: summary(models, distances) for s, models in states.items()}
        )
    report.files = [out / f"path.{end}" for end in ("json", "csv", "png", "svg")]
    write_tables(out, "path", report.to_dict(), report.rows())
    draw_path(report, out)
    return report


def measure_model(
    model: Transformer, length: int, distances: Sequence[int], seed: int
) -> Gradients:
    """With sequences in which the token to be recalled stands at each of the distances."""
    random = np.random.default_rng(seed)
    sequences = [
        exercise(random, length, distance).tokens
        for distance in distances
        for _ in range(SEQUENCES)
    ]
    norms = gradient_norms(model, sequences, seed)  # [T x SEQUENCES, n]
    where = np.repeat(distances, SEQUENCES)
    recalled = [root_mean_square(norms[where == t, t]) for t in distances]
    others = [root_mean_square(norms[where != t, t]) for t in range(length)]
    return Gradients(np.array(recalled), np.array(others))


def summary(models: Sequence[Gradients], distances: Sequence[int]) -> dict[str, Any]:
    """Over seeds: geometric means, since what decays differs in its magnitude; and how far the
    input reaches, with the factor a step where that is all the way."""
    others = np.array([one.others for one in models])  # [seeds, n]
    recalled = np.array([one.recalled for one in models])  # [seeds, T]
    farthest = max(reach(one) for one in others)
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
    """Zero where one of them is."""
    with np.errstate(divide="ignore"):
        return [float(value) for value in np.exp(np.log(x).mean(0))]


def factor(steps: Sequence[int], curves: NDArray[np.float64]) -> dict[str, float | None]:
    """Of the exponential that fits each seed's gradients; their mean and deviation."""
    factors = [decay(steps, curve) for curve in curves]
    spread = float(np.std(factors, ddof=1)) if len(factors) > 1 else None
    return {"mean": float(np.mean(factors)), "deviation": spread}
