"""What the measurements that train models share: the folder, the data, and runs found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.config.sections import Config
from regard.errors import InputError
from regard.files import check_destination, write_result
from regard.tasks.builtin import OPTIONS, write_corpus
from regard.tasks.translate import Translate
from regard.text.store import Store
from regard.training.checkpoint import Checkpoints
from regard.training.run import same_run
from regard.view.info import final_scores

Values = dict[str, dict[str, Any]]  # settings by section, as in a configuration

# For the built-in corpus, where nothing else is asked for: the demo's, with smaller steps.
BUILTIN: Values = {
    **OPTIONS,
    "training": {**OPTIONS["training"], "batch_tokens": 1024, "validate_every": 50},
}
FILES: Values = {"training": {"validate_every": 200}}
OURS = {  # settings that are not for --set, and why
    "training.seed": "use --seed",
    "data.train": "use --train",
    "data.valid": "use --valid",
}


def check_settings(values: Values, ours: Mapping[str, str]) -> None:
    for section, keys in values.items():
        for key in keys:
            if why := ours.get(f"{section}.{key}"):
                raise InputError(f"--set {section}.{key} cannot be used here: {why}")


def check_seeds(seeds: Sequence[int]) -> None:
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seed {' '.join(map(str, seeds))}: a value is duplicated")


def check_budget(seconds: float | None, steps: int | None) -> None:
    """Refuse a training that is limited by both seconds and steps."""
    if seconds is not None and steps is not None:
        raise InputError("--seconds and --steps cannot be combined")


def check_files(task: str, files: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """The files that were given, once they are enough; none: the built-in corpus."""
    files = {split: names for split, names in files.items() if names}
    if not files and task != Translate.name:
        raise InputError(f"the built-in corpus is for translate: {task} needs --train, --valid")
    for split in ("train", "valid") if files else ():
        if split not in files:
            raise InputError(f"--{split} is missing: give files to learn from and held-out ones")
    return files


def with_defaults(given: bool, preset: str | None, values: Values) -> Values:
    """What the user set, on top of what is usual for files that were given, or for ours."""
    defaults = FILES if given else BUILTIN
    if preset is not None:  # it says what the model is
        defaults = {**defaults, "model": {}}
    return {
        section: {**defaults.get(section, {}), **values.get(section, {})}
        for section in ("model", "data", "training", *values)
    }


def check_out(out: Path, name: str) -> None:
    """Refuse a folder that cannot be written, or that another program has filled."""
    mark = out / f"regard-{name}"
    if out.exists() and not mark.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            f"{out} exists and was not created by regard lab {name}: choose a different --out"
        )
    check_destination(mark)


def begin(out: Path, name: str) -> None:
    """Create the folder before the work starts."""
    write_result(out / f"regard-{name}", "")


def write_builtin(out: Path, name: str) -> dict[str, list[str]]:
    begin(out, name)
    return write_corpus(out / "data")


def finished(run: Path, config: Config, store: Store) -> bool:
    """Whether the run is there, whole, and the one that is wanted."""
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
