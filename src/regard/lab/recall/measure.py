"""`regard lab recall`: how far back each kind of layer can recall a token, after equal training
time (section 4: path lengths in practice).

One training for each kind and seed, on the recall curriculum (common/recall_training.py), then the
accuracy at each distance. The reach, how far back the last output depends on the input at all,
comes from the gradient (common/gradients.py): beyond it nothing can be learned; within it, a
distance that is not recalled was not learned in the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.device import choose_device, keep_freed_memory
from regard.errors import InputError
from regard.lab.common import recall_training
from regard.lab.common.gradients import measure_reach
from regard.lab.common.recall_training import QUESTIONS, RecallModel, RecallTraining
from regard.lab.common.synthetic import SyntheticTask
from regard.lab.common.training import check_out, create_out
from regard.lab.recall.report import RecallReport

UNSEEN = 10_000_000  # seed of the test examples: not one of the training's


def measure_recall(
    out: Path, distances: Sequence[int], training: RecallTraining, quiet: bool = False
) -> RecallReport:
    """Train each model, and test it at each distance."""
    if len(set(distances)) < len(distances):
        raise InputError(f"--distances {' '.join(map(str, distances))}: a value is duplicated")
    distances = sorted(distances)
    farthest = distances[-1]
    training.check(farthest, 1, f"--distances {farthest}")
    check_out(out, "recall")
    create_out(out, "recall")
    keep_freed_memory()
    before = training.before(farthest)
    trained: dict[str, list[RecallModel]] = {name: [] for name in training.kinds}
    correct: dict[str, list[list[int]]] = {name: [] for name in training.kinds}
    for seed, name, model in training.train_all(farthest, distances, quiet):
        trained[name].append(model)
        correct[name].append(count_correct(model, distances, before, seed))
    device = choose_device(training.device)
    kinds = {
        name: {
            "title": training.title(name),
            "reach": measure_reach(training.config(name), farthest + 1 + before, device),
            **summary(distances, trained[name], correct[name]),
        }
        for name in training.kinds
    }
    return RecallReport(training, distances, QUESTIONS, kinds)


def count_correct(
    trained: RecallModel, distances: Sequence[int], before: int, seed: int
) -> list[int]:
    """The number of correct predictions at each distance, of QUESTIONS."""
    task = SyntheticTask(recall_training.recall_examples(before))
    return [
        round(QUESTIONS * task.accuracy(trained.model, t + 1 + before, QUESTIONS, UNSEEN + seed))
        for t in distances
    ]


def summary(
    distances: Sequence[int], trained: Sequence[RecallModel], correct: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Accuracy over seeds, steps and seconds, and when each distance was learned."""
    steps, seconds = [result.steps for result in trained], [result.seconds for result in trained]
    accuracies = []
    for i, distance in enumerate(distances):
        counts = [result[i] for result in correct]
        low, high = wilson(sum(counts), QUESTIONS * len(counts))
        accuracies.append({
            "distance": distance, "accuracy": sum(counts) / (QUESTIONS * len(counts)),
            "low": low, "high": high, "seeds": [count / QUESTIONS for count in counts],
            "learned_after_seconds": [result.learned.get(distance) for result in trained],
        })  # fmt: skip
    return {
        "accuracies": accuracies, "steps": steps, "seconds": seconds,
        "ms_per_step": 1000 * sum(seconds) / sum(steps),
    }  # fmt: skip


def wilson(correct: int, count: int) -> tuple[float, float]:
    """The 95% interval of a proportion (Wilson 1927)."""
    z, share = 1.96, correct / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)
