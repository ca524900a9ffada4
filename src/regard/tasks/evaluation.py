"""The evaluation of a model on data, with confidence intervals.

Intervals are 95%, by bootstrap over the examples. Two models are compared on the same resampled
examples (paired), so that easy and hard examples do not count as a difference. Translations are
evaluated by sacreBLEU's own implementation of both, with its signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regard.config.sections import Config
from regard.errors import InputError
from regard.tasks.bootstrap import SAMPLES, Comparison
from regard.tasks.task import Evaluation, Task
from regard.text.records import Columns


@dataclass
class EvaluationReport:
    """The scores of a model with their intervals, and the comparison with another model."""

    task: str
    evaluation: Evaluation
    intervals: dict[str, tuple[float, float]]
    differences: dict[str, Comparison] = field(default_factory=dict)
    against: str = ""  # the other model
    theirs: dict[str, Any] = field(default_factory=dict)  # its scores

    def to_dict(self) -> dict[str, Any]:
        """The report as a JSON object."""
        whole = {
            "task": self.task, **self.evaluation.scores, "examples": self.evaluation.count,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            **self.evaluation.details,
        }  # fmt: skip
        if self.against:
            compared = {name: vars(difference) for name, difference in self.differences.items()}
            whole["against"] = {"model": self.against, **self.theirs, "difference": compared}
        return whole


def read_examples(
    task: Task, files: Sequence[Path], config: Config, columns: Columns | None = None
) -> list[Any]:
    """The examples of files, read and checked as the configuration of the model defines it.

    Args:
        task: the task of the model.
        files: the files; [Path("5%")] means the part of the training data that was held out.
        config: the configuration of the model.
        columns: field name -> column name; None: those of the configuration.

    Raises:
        InputError: a file cannot be read, has no examples, or has one that cannot be used.
    """
    data = config.data
    if columns is not None:
        task.check_columns(columns)
        data = replace(data, columns=dict(columns))
    if not data.is_percentage([str(file) for file in files]):
        task.check_files(files)
        data = replace(data, valid=[])  # all examples, even if the model was trained on the files
    examples = list(task.read(files, replace(config, data=data)))
    if not examples:
        raise InputError(f"{files[0]} is empty: there is nothing to evaluate")
    for example in examples:
        task.check(example)
    return examples


def report_on(
    task: Task,
    config: Config,
    ours: Evaluation,
    theirs: Evaluation | None = None,
    *,
    samples: int = SAMPLES,
    against: str = "",
) -> EvaluationReport:
    """The report on an evaluation; theirs: of the model `against` on the same examples."""
    intervals, differences = task.confidence(ours, theirs, samples, config)
    if theirs is None:
        return EvaluationReport(task.name, ours, intervals)
    return EvaluationReport(task.name, ours, intervals, differences, against, theirs.scores)
