"""Shared by the measurements that train models: the output folder, the data, finished runs, and
the evaluation of a trained model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regard.config.sections import Config
from regard.errors import InputError, unknown
from regard.files import cache_folder, check_destination, write_result
from regard.predictor.model import Model
from regard.tasks.bootstrap import SAMPLES, Comparison
from regard.tasks.builtin import OPTIONS, write_corpus
from regard.tasks.evaluation import report_on
from regard.tasks.registry import find_task
from regard.tasks.task import Evaluation, Task
from regard.tasks.translate import Translate
from regard.text.sampler import BatchSampler
from regard.text.store import Store
from regard.training.checkpoint import Checkpoints
from regard.training.model_folder import final_scores
from regard.training.run import same_run

Values = dict[str, dict[str, Any]]  # settings by section, as in a configuration
Files = dict[str, list[str]]  # file names of "train", "valid" and "test"

# Defaults for the built-in corpus: those of the demo, with smaller steps.
BUILTIN: Values = {
    **OPTIONS,
    "training": {**OPTIONS["training"], "batch_tokens": 1024, "validate_every": 50},
}
FILES: Values = {"training": {"validate_every": 200}}  # defaults for the user's files
RESERVED = {  # settings that --set must not change, and what to use instead
    "training.seed": "use --seed", "training.epochs": "use training.steps",
    "data.train": "use --train", "data.valid": "use --valid",
}  # fmt: skip
GREEDY: dict[str, Any] = {"beam": 1, "n_best": 1, "temperature": 0.0, "top_k": 0, "top_p": 1.0}


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a measurement that trains models on the same data and compares them."""

    out: Path  # the folder for runs and results
    task: str = Translate.name
    files: Files = field(default_factory=dict)  # empty: the built-in corpus
    preset: str | None = None  # None: `tiny`, or the demo's model for the built-in corpus
    values: Values = field(default_factory=dict)
    seeds: Sequence[int] = (1,)  # each model is trained once with each
    device: str = "auto"
    quiet: bool = False

    def check(
        self, command: str, tasks: Collection[str], reserved: Mapping[str, str] = RESERVED
    ) -> TrainingOptions:
        """Refuse wrong options before anything is read or written; returns them without empty
        splits."""
        if self.task not in tasks:
            raise unknown("task", self.task, tasks)
        for section, keys in self.values.items():
            for key in keys:
                if why := reserved.get(f"{section}.{key}"):
                    raise InputError(f"--set {section}.{key} cannot be used here: {why}")
        check_seeds(self.seeds)
        check_out(self.out, command)
        files = {split: names for split, names in self.files.items() if names}
        if not files and self.task != Translate.name:
            needs = f"{self.task} needs --train, --valid"
            raise InputError(f"the built-in corpus is for translate: {needs}")
        for split in ("train", "valid") if files else ():
            if split not in files:
                raise InputError(f"--{split} is missing: give files for training and held-out ones")
        return replace(self, files=files)

    def sections(self) -> Values:
        """The settings of the user on top of the defaults for this data, with the first seed."""
        defaults = FILES if self.files else BUILTIN
        if self.preset is not None:  # it determines the model
            defaults = {**defaults, "model": {}}
        values = {
            section: {**defaults.get(section, {}), **self.values.get(section, {})}
            for section in ("model", "data", "training", *self.values)
        }
        values["training"]["seed"] = self.seeds[0]
        return values

    def add_corpus(self, values: Values, command: str) -> Files:
        """Set the files in `values`, and return them. Without files of the user's, the built-in
        corpus is written to `out`."""
        files = self.files
        if not files:
            create_out(self.out, command)
            files = write_corpus(self.out / "data")
        values["data"] |= {split: files[split] for split in ("train", "valid")}
        return files


def check_seeds(seeds: Sequence[int]) -> None:
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seed {' '.join(map(str, seeds))}: a value is duplicated")


def check_budget(seconds: float | None, steps: int | None) -> None:
    """Refuse a training that is limited by both seconds and steps."""
    if seconds is not None and steps is not None:
        raise InputError("--seconds and --steps cannot be combined")


def check_out(out: Path, command: str) -> None:
    """Refuse a folder that cannot be written, or that contains something else."""
    mark = out / f"regard-{command}"
    if out.exists() and not mark.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            f"{out} exists and was not created by regard lab {command}: choose a different --out"
        )
    check_destination(mark)


def create_out(out: Path, command: str) -> None:
    """Create the folder before the work starts, with a file that marks it as its own."""
    write_result(out / f"regard-{command}", "")


def read_data(config: Config, test: Sequence[str], quiet: bool) -> tuple[Task, Store, list[Any]]:
    """Learn the vocabulary, and read the training data and the test examples. Everything that is
    wrong with a file is reported here, before the first training."""
    task = find_task(config.task).learn(config, None, lambda _: None, quiet)
    store, _ = task.build([Path(file) for file in config.data.train], cache_folder(), config, quiet)
    paths = [Path(file) for file in test]
    find_task(config.task).check_files(paths)
    examples = list(task.read(paths, config))
    if not examples:
        raise InputError(f"{paths[0]} is empty: evaluation needs at least one example")
    for example in examples:
        task.check(example)
    return task, store, examples


def check_batch_tokens(config: Config, task: Task, store: Store) -> None:
    """Refuse `training.batch_tokens` that is too small for the longest example."""
    tokens = config.training.batch_tokens
    BatchSampler(task.sizes(store), tokens, store.fingerprint, 0, counted=task.counted)


def with_seed(config: Config, seed: int) -> Config:
    return replace(config, training=replace(config.training, seed=seed))


def is_finished(run: Path, config: Config, store: Store) -> bool:
    """Whether the run exists and is complete. Other settings, data or more steps are refused."""
    if not (run / "config.yaml").is_file():
        return False
    before = Config.load(run / "config.yaml")
    if before.training.steps > config.training.steps:
        raise InputError(
            f"{run} has training.steps={before.training.steps} already: request at least as many, "
            "or choose a different --out"
        )
    same = same_run(before, config, run) == before
    state, _ = Checkpoints(run).newest()
    if state is not None and state["corpus"] != store.fingerprint:
        raise InputError(f"{run} was trained on other files: choose a different --out")
    return same and bool(final_scores(run))


def bootstrap(
    model: Model, own: Evaluation, base: Evaluation | None = None, name: str = ""
) -> tuple[dict[str, tuple[float, float]], dict[str, Comparison]]:
    """95% intervals of each metric, and the paired comparison with the base where there is one."""
    report = report_on(model.task, model.config, own, base, samples=SAMPLES, against=name)
    return report.intervals, report.differences
