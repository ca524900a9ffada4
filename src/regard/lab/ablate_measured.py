"""What `regard lab ablate` measures of a row: quality, its difference to the base, time of a step,
and the time it takes to become as good as most of the base.

Several seeds: Student's t-test over the trainings. One seed: the paired bootstrap of `regard
evaluate --against` over the examples, which knows nothing of how another seed would have trained.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.config.parameters import closed_form
from regard.console import progress
from regard.lab.ablate_rows import Row
from regard.lab.significance import holm, pooled, student
from regard.lab.stepping import time_steps
from regard.predictor import load
from regard.tasks.bootstrap import SAMPLES
from regard.tasks.evaluation import SURE, report_on
from regard.tasks.task import Evaluation, Task
from regard.text.store import Store
from regard.training.distributed import choose_device
from regard.view.curves import read_curves
from regard.view.info import final_scores

QUALITY = {"translate": "bleu", "classify": "accuracy", "answer": "f1"}  # more is better
GREEDY: dict[str, Any] = {"beam": 1, "n_best": 1, "temperature": 0.0, "top_k": 0, "top_p": 1.0}
NEAR = 0.9  # of the base's final quality: what time to quality is the time to
WARM, STEPS = 3, 10  # training steps that are not counted, and that are
TOGETHER = 4  # models that are in memory at once while they are timed


@dataclass
class Difference:
    """To the base, in the quality that counts."""

    value: float
    p: float  # of this row alone
    error: float | None = None  # standard error over seeds, where there are some
    adjusted: float = 1.0  # p among all rows (Holm)

    @property
    def significant(self) -> bool:
        return self.adjusted < SURE


@dataclass
class Result:
    """A row and what was measured of it."""

    row: Row
    runs: list[Path]  # one for each seed
    tests: list[float] = field(default_factory=list)  # quality on --test, one for each seed
    interval: tuple[float, float] | None = None  # of one seed's quality, over the examples
    difference: Difference | None = None  # none for the base
    ms: float = 0.0  # of a training step
    reached: list[int | None] = field(default_factory=list)  # the step of NEAR, for each seed

    @property
    def metric(self) -> str:
        return QUALITY[self.row.config.task]

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in closed_form(self.row.config.model).values())

    @property
    def valid(self) -> list[float]:
        return [float(final_scores(run)[self.metric]) for run in self.runs]

    @property
    def perplexity(self) -> list[float]:
        return [math.exp(min(50.0, final_scores(run)["loss"])) for run in self.runs]

    @property
    def qualities(self) -> list[float]:
        """What counts: on --test where it is given."""
        return self.tests or self.valid

    @property
    def seconds_to_quality(self) -> float | None:
        steps = [step for step in self.reached if step is not None]
        if not steps or len(steps) < len(self.reached):
            return None
        return statistics.fmean(steps) * self.ms / 1000

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": self.row.name, "group": self.row.group, "changes": self.row.changes,
            "differs": self.row.differs(), "parameters": self.parameters,
            "perplexity": summary(self.perplexity), f"valid_{self.metric}": summary(self.valid),
        }  # fmt: skip
        if self.tests:
            found[f"test_{self.metric}"] = summary(self.tests)
        if self.interval is not None:
            found["interval"] = list(self.interval)
        if self.difference is not None:
            found["difference"] = {
                **vars(self.difference), "significant": self.difference.significant,
            }  # fmt: skip
        return found | {
            "ms_per_step": self.ms, "steps_to_quality": self.reached,
            "seconds_to_quality": self.seconds_to_quality,
        }  # fmt: skip


def summary(values: Sequence[float]) -> dict[str, Any]:
    found: dict[str, Any] = {"value": statistics.fmean(values), "seeds": list(values)}
    return found | ({"spread": statistics.stdev(values)} if len(values) > 1 else {})


# ---- quality --------------------------------------------------------------------------------


def judge(
    found: Sequence[Result], examples: list[Any], tests: bool, device: str, quiet: bool
) -> None:
    """Quality on the test data, and with one seed how sure the difference to the base is. What
    validation says of several seeds is in their metrics already."""
    once = len(found[0].runs) == 1
    base: Evaluation | None = None
    if not (tests or once):
        return
    with progress("evaluating", len(found), quiet) as done:
        for i, result in enumerate(found):
            for run in result.runs:
                model = load(run, device, "float32")
                own = model.evaluate(examples, **GREEDY)
                if tests:
                    result.tests.append(float(own.scores[result.metric]))
                if once:
                    report = report_on(model.task, model.config, own, base, samples=SAMPLES)
                    result.interval = report.intervals[result.metric]
                    if base is not None:
                        between = report.differences[result.metric]
                        result.difference = Difference(between.difference, between.p)
                    base = base or own
            done(i + 1)


def compare(found: Sequence[Result]) -> None:
    """The difference of each row to the base, which is the first; p corrected for their number."""
    base, others = found[0], found[1:]
    if len(base.runs) > 1:
        spread = pooled([result.qualities for result in found])
        for result in others:
            test = student(result.qualities, base.qualities, spread)
            result.difference = Difference(test.difference, test.p, test.error)
    differences = [one.difference for one in others if one.difference is not None]
    for one, p in zip(differences, holm([one.p for one in differences]), strict=True):
        one.adjusted = p
    goal = NEAR * statistics.fmean(base.valid)
    for result in found:
        key = f"valid_{result.metric}"
        for run in result.runs:
            points = read_curves(run, result.row.name).series.get(key, [])
            steps = (p.step for p in points if p.value >= goal > 0)
            result.reached.append(next(steps, None))


# ---- time -----------------------------------------------------------------------------------


def measure_time(
    found: Sequence[Result], task: Task, store: Store, device: str, quiet: bool
) -> None:
    """The time of a training step, a few rows in turns. Where the base is among them, what counts
    is the time beside the base's, so that a machine that is slower for a while changes nothing."""
    base = found[0]
    compiled = choose_device(device).type == "cuda"
    chunks = list(together(found, compiled))
    beside: list[float] = []  # the base's medians, one for each chunk that has it
    medians: list[tuple[Result, float, float | None]] = []
    with progress("timing training steps", len(chunks), quiet) as done:
        for i, chunk in enumerate(chunks):
            if compiled and i and shape(chunk[0]) != shape(chunks[i - 1][0]):
                torch.compiler.reset()  # or it would compile for any shape, or not at all
            models = [(result.row.config, task) for result in chunk]
            times = time_steps(models, store, device, WARM, STEPS)
            own = [1000 * statistics.median(seconds for seconds, *_ in each) for each in times]
            with_base = own[0] if chunk[0] is base else None
            beside += [] if with_base is None else [with_base]
            medians += [(result, ms, with_base) for result, ms in zip(chunk, own, strict=True)]
            gc.collect()
            if compiled:
                torch.cuda.empty_cache()
            done(i + 1)
    base.ms = statistics.median(beside)
    for result, ms, with_base in medians:
        result.ms = ms if with_base is None else ms / with_base * base.ms


def together(found: Sequence[Result], compiled: bool) -> Iterator[list[Result]]:
    """Which rows are timed in turns: few, so that they fit memory, and of one head size and number
    of heads, for which attention on a GPU is compiled once. The base leads where it can."""
    base = found[0]
    shapes: dict[tuple[int, int], list[Result]] = {shape(base): []}
    for result in found[1:]:
        shapes.setdefault(shape(result), []).append(result)
    for key, results in shapes.items():
        lead = [base] if key == shape(base) or not compiled else []
        for start in range(0, max(1, len(results)), TOGETHER - 1):
            yield [*lead, *results[start : start + TOGETHER - 1]]


def shape(result: Result) -> tuple[int, int]:
    model = result.row.config.model
    return model.heads, model.head_size
