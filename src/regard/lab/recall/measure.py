"""`regard lab recall`: how far back each kind of layer finds a token again, after equal training
time (section 4: path lengths, in practice).

One training for each kind and seed, by lessons (lessons.py), and accuracy at each distance after
it. How far the input reaches at all comes from the gradient (gradients.py): beyond it nothing can
be learned; within it, what is not recalled was not learned in the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.device import keep_freed_memory
from regard.errors import InputError
from regard.lab.common.curriculum import QUESTIONS, Learned, exercises
from regard.lab.common.gradients import measure_reach
from regard.lab.common.recall_training import Bar, School
from regard.lab.common.report import write_tables
from regard.lab.common.synthetic import Drill
from regard.lab.common.training import begin, check_out
from regard.lab.recall.report import RecallReport, draw_recall
from regard.training.distributed import choose_device

UNSEEN = 10_000_000  # seed of the questions: not one that exercises are made from


def measure_recall(
    out: Path, distances: Sequence[int], school: School, quiet: bool = False
) -> RecallReport:
    """Train, ask, draw; everything is written to the folder `out`."""
    if len(set(distances)) < len(distances):
        raise InputError(f"--distances {' '.join(map(str, distances))}: a value is duplicated")
    distances = sorted(distances)
    farthest = distances[-1]
    school.check(farthest, 1, f"--distances {farthest}")
    check_out(out, "recall")
    begin(out, "recall")
    keep_freed_memory()
    report = RecallReport(school, distances, QUESTIONS)
    before = school.before(farthest)
    learned: dict[str, list[Learned]] = {name: [] for name in school.kinds}
    right: dict[str, list[list[int]]] = {name: [] for name in school.kinds}
    bar = Bar(school, quiet)
    with bar.progress:
        for seed, name in school.models():
            bar.name(f"{school.title(name)}, seed {seed}")
            learned[name].append(school.teach(name, seed, farthest, distances, bar))
            right[name].append(ask(learned[name][-1], distances, before, seed))
        where = choose_device(school.device)
        for name in school.kinds:
            reach = measure_reach(school.config(name), farthest + 1 + before, where)
            report.add(name, reach, summary(distances, learned[name], right[name]))
    report.files = [out / f"recall.{end}" for end in ("json", "csv", "png", "svg")]
    write_tables(out, "recall", report.to_dict(), report.rows())
    draw_recall(report, out)
    return report


def ask(learned: Learned, distances: Sequence[int], before: int, seed: int) -> list[int]:
    """How many of the questions are answered right at each distance."""
    drill = Drill(exercises(before))
    return [
        round(QUESTIONS * drill.accuracy(learned.model, t + 1 + before, QUESTIONS, UNSEEN + seed))
        for t in distances
    ]


def summary(
    distances: Sequence[int], learned: Sequence[Learned], right: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Accuracy over seeds, what was done in the time, and when each distance was learned."""
    steps, seconds = [one.steps for one in learned], [one.seconds for one in learned]
    accuracies = []
    for i, distance in enumerate(distances):
        answers = [one[i] for one in right]
        low, high = wilson(sum(answers), QUESTIONS * len(answers))
        accuracies.append({
            "distance": distance, "accuracy": sum(answers) / (QUESTIONS * len(answers)),
            "low": low, "high": high, "seeds": [count / QUESTIONS for count in answers],
            "learned_after_seconds": [one.passed.get(distance) for one in learned],
        })  # fmt: skip
    return {
        "accuracies": accuracies, "steps": steps, "seconds": seconds,
        "ms_per_step": 1000 * sum(seconds) / sum(steps),
    }  # fmt: skip


def wilson(right: int, count: int) -> tuple[float, float]:
    """The 95% interval of a proportion (Wilson 1927)."""
    z, share = 1.96, right / count
    middle = share + z * z / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - half) / (1 + z * z / count), (middle + half) / (1 + z * z / count)
