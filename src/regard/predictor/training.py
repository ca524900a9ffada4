"""`regard.train`: train a model from Python, on files or on rows in memory.

Rows are written to the run folder first, so that a run from memory is a run like any other: it can
be resumed, and its folder contains its training data.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config.sections import Config
from regard.config.settings import SECTIONS
from regard.console import make_console
from regard.device import FLOAT16
from regard.errors import InputError, unknown, warn_user
from regard.files import place_of, remove_leftovers, temporary_name
from regard.predictor.data import as_paths, as_share, column_names, row_errors
from regard.predictor.loading import load
from regard.predictor.model import Model
from regard.tasks.configuration import start_config
from regard.tasks.planning import plan_run
from regard.tasks.rows import rows_to_file
from regard.tasks.train import train_config
from regard.training.callbacks import Callbacks, StepInfo, ValidationInfo
from regard.training.checkpoint import Checkpoints
from regard.training.distributed import environment_number
from regard.training.names import CONFIG, DATA

if TYPE_CHECKING:
    import torch

PathName = str | os.PathLike[str]
Values = dict[str, dict[str, Any]]  # options by section
# The keyword arguments of `train` that are options of a configuration.
SHORTCUTS = {
    "steps": "training", "epochs": "training", "learning_rate": "training",
    "batch_tokens": "training", "warmup": "training", "seed": "training", "dtype": "training",
    "dropout": "model",
}  # fmt: skip


def train(
    task: str | None = None,
    train: Any = None,
    valid: Any = None,
    *,
    config: Config | None = None,
    preset: str | None = None,
    out: PathName | None = None,
    columns: Mapping[str, str] | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    learning_rate: float | None = None,
    batch_tokens: int | None = None,
    warmup: int | None = None,
    dropout: float | None = None,
    seed: int | None = None,
    dtype: str | torch.dtype | None = None,
    settings: Mapping[str, Any] | None = None,
    start_from: PathName | None = None,
    tokenizer: object = None,
    resume: bool = False,
    force: bool = False,
    device: str | torch.device = "auto",
    quiet: bool = False,
    callbacks: Iterable[Any] = (),
    on_step: Callable[[StepInfo], Any] | None = None,
    on_validation: Callable[[ValidationInfo], Any] | None = None,
) -> Model:
    """Train a model and return it, ready to use.

    Example:
        >>> model = regard.train("translate", pairs, "5%", preset="tiny", steps=2000)
        >>> model.translate("The cat slept.")

    Args:
        task: the task, for example "translate" or "classify".
        train: the training data: a path; a tuple or list of paths (translate: source and target);
            or rows: a list or an iterator of tuples or dicts (generate, fill: of strings), a pandas
            DataFrame or a Hugging Face `Dataset`. Rows are written to the run folder.
        valid: held-out data of the same kind, or a share of the training data, for example "5%" or
            0.05. None: no validation, and the best weights cannot be chosen.
        config: a complete configuration (`regard.make_config`), instead of `task` and `preset`; the
            other arguments change it.
        preset: the sizes of the model, for example "tiny" (default: those of `start_from`, or a
            preset that suits the amount of data and the device).
        out: the run folder, which must not exist. None: a temporary folder that is deleted with the
            model; `Model.save` keeps the model. If the run is interrupted or fails after its first
            checkpoint, the folder is kept, and the message names it.
        columns: field name -> column name, for columns without a usual name, for example
            {"text": "review", "label": "stars"}.
        steps: the number of optimiser steps (default: 2000).
        epochs: the number of passes over the training data, instead of `steps`.
        learning_rate: the highest learning rate (default: the paper's (d_model * warmup)^-0.5, or a
            tenth of it with `start_from`).
        batch_tokens: tokens of a batch (default: 4096).
        warmup: steps in which the learning rate rises from 0 to `learning_rate` (default: 500).
        dropout: the dropout rate (default: that of the preset).
        seed: the random seed for initialisation, shuffling and dropout (default: 1).
        dtype: of matrix products: "auto", "float32" or "bfloat16" (default: "auto").
        settings: further options of a configuration, flat ({"training.label_smoothing": 0.0}) or
            nested ({"training": {"label_smoothing": 0.0}}).
        start_from: the model folder (or "box:NAME") whose weights and vocabulary to start from.
        tokenizer: the tokenizer to use instead of a vocabulary learned from the data: one of the
            libraries tokenizers or transformers, or an object with encode, decode and vocab_size; a
            pair for different ones of source and target. A Python object is not saved: pass it to
            `regard.load` again.
        resume: continue the run at `out`, or start it if there is none. Without other arguments,
            the run continues with its own data and settings.
        force: with `resume`: continue without damaged checkpoints.
        device: "auto" (the GPU if there is one), "cpu", "cuda", "cuda:1", "mps", or a torch.device.
        quiet: show no progress.
        callbacks: objects with any of the methods on_start(RunInfo), on_step(StepInfo),
            on_validation(ValidationInfo) and on_end(EndInfo) (regard/training/callbacks.py). If
            on_step or on_validation returns True, training ends early. On a GPU, on_step is called
            one step late.
        on_step: a function that is called after each step like the method of a callback.
        on_validation: a function that is called after each validation like the method of a
            callback.

    Returns:
        The model with the final weights. `Model.scores` has its final scores, `Model.history` its
        metrics.

    Raises:
        InputError: an argument, the data or the run folder cannot be used.
        TrainingFailed: training failed for another reason; the last valid state is saved in `out`.
        KeyboardInterrupt: training was interrupted; its state is saved in `out`.
        Exception: any exception of a callback, after the state has been saved in `out`.
    """
    shortcuts = {
        "steps": steps, "epochs": epochs, "learning_rate": learning_rate,
        "batch_tokens": batch_tokens, "warmup": warmup, "dropout": dropout, "seed": seed,
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
    }  # fmt: skip
    if shortcuts["dtype"] in ("float16", "half"):
        raise InputError(FLOAT16)
    values = option_values(settings, shortcuts)
    functions = Callbacks(callbacks, on_step, on_validation)
    check_source(task, config, preset, out, resume)
    with run_folder(out) as (folder, temporary):
        run = Config.load(folder / CONFIG) if resume and (folder / CONFIG).is_file() else None
        name = config.task if config is not None else task or (run.task if run else "")
        with data_files(name, train, valid, columns, folder, run) as (files, data_folder):
            values["data"] = {**values.get("data", {}), **files}
            chosen = None
            if config is not None:
                chosen = changed_config(config, values)
            elif run is not None and "train" not in values["data"] and preset is None:
                if task not in (None, run.task):
                    raise InputError(f"task is {task!r:.60}, but the run is for {run.task}")
                chosen = changed_config(run, values) if any(values.values()) else None
            elif task is not None:
                start = None
                if start_from is not None:
                    start = start_config(start_from, folder if resume else None)
                if not values["data"].get("train"):
                    raise InputError("train is missing: pass the training data")
                console = make_console(stderr=True, quiet=quiet)
                plan = plan_run(
                    task, preset, values, start, device=str(device), run=folder if resume else None,
                    say=partial(console.print, soft_wrap=True),
                )  # fmt: skip
                chosen = plan.config
                functions.functions["on_start"].append(plan.on_start)
            elif any(values.values()):
                raise InputError("task is missing: name the task of the run, for example translate")
            if on_validation is not None and chosen is not None and not chosen.data.valid:
                warn_user("on_validation is never called: the run has no validation data")
            train_config(
                chosen, folder, resume=resume, force=force, start_from=start_from,
                device=str(device), quiet=quiet, callbacks=functions, data_folder=data_folder,
                tokenizer=tokenizer,
            )  # fmt: skip
        model = load(folder, str(device), tokenizer=tokenizer)
        if temporary is not None:
            weakref.finalize(model, shutil.rmtree, temporary, ignore_errors=True)
        return model


def check_source(
    task: object, config: object, preset: str | None, out: object, resume: bool
) -> None:
    """Refuse arguments that cannot be combined."""
    if task is not None and not isinstance(task, str):
        raise InputError(f"task must be the name of a task, not {task!r:.60}")
    if config is not None and not isinstance(config, Config):
        raise InputError(f"config must be a Config, not {config!r:.60}")
    if config is not None and (task is not None or preset is not None):
        raise InputError("config cannot be combined with task or preset: it contains them")
    if out is None and resume:
        raise InputError("out is missing: name the run folder to resume")
    if config is None and task is None and not resume:
        raise InputError("task is missing: name a task, for example translate")
    if out is None and environment_number("WORLD_SIZE", 1) > 1:
        raise InputError("out is missing: several processes need a run folder that all can read")


def option_values(settings: Mapping[str, Any] | None, shortcuts: Mapping[str, Any]) -> Values:
    """The options of a configuration by section, from `settings` and the other arguments."""
    values: Values = {section: {} for section in SECTIONS}
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(
            'settings must be a dict of options, for example {"training.label_smoothing": 0.0}, '
            f"not {settings!r:.60}"
        )
    for key, value in (settings or {}).items():
        section, dot, name = str(key).partition(".")
        if section not in SECTIONS:
            raise unknown("section in settings", section, SECTIONS)
        if not dot and not isinstance(value, Mapping):
            raise InputError(f"settings[{key!r}] must be a mapping of options, not {value!r:.60}")
        values[section] |= {name: value} if dot else dict(value)
    for name, value in shortcuts.items():
        section = SHORTCUTS[name]
        if value is not None:
            if values[section].get(name, value) != value:
                raise InputError(
                    f"{name} and settings['{section}.{name}'] differ: pass only one of them"
                )
            values[section][name] = value
    if "steps" in values["training"] and values["training"].get("epochs"):
        raise InputError("steps and epochs cannot be combined: pass only one of them")
    return values


def changed_config(config: Config, values: Values) -> Config:
    """The configuration with these options."""
    for section in SECTIONS:
        if values.get(section):
            known = vars(getattr(config, section))
            for name in values[section]:
                if name not in known:
                    raise unknown("configuration key", f"{section}.{name}", known)
            options = replace(getattr(config, section), **values[section])
            config = replace(config, **{section: options})
    return config


@contextmanager
def run_folder(out: PathName | None) -> Iterator[tuple[Path, str | None]]:
    """The run folder, and the temporary folder that contains it, if `out` is None. After an
    exception a temporary folder is deleted, unless it contains the state of a run."""
    temporary = tempfile.mkdtemp(prefix="regard-") if out is None else None
    folder = Path(temporary, "run") if temporary is not None else Path(os.fspath(out or ""))
    try:
        yield folder, temporary
    except BaseException as error:
        if temporary is not None and not Checkpoints(folder).steps():
            shutil.rmtree(temporary, ignore_errors=True)
        elif str(folder) not in str(error) and Checkpoints(folder).steps():
            error.add_note(
                f"The state of the run is saved; continue with: "
                f"regard.train(out={str(folder)!r}, resume=True)"
            )
        raise


@contextmanager
def data_files(
    task: str, train: Any, valid: Any, columns: Mapping[str, str] | None, out: Path,
    run: Config | None,
) -> Iterator[tuple[dict[str, Any], Path | None]]:  # fmt: skip
    """The options of the section `data` for this data, and the folder of the files that were
    written for rows in memory, if there are any.

    run: the configuration of the run at `out` that is resumed
    """
    options: dict[str, Any] = {}
    column_of = column_names(columns)
    share = as_share(valid, "valid")
    paths = {"train": as_paths(train), "valid": [share] if share else as_paths(valid)}
    splits = {"train": train, "valid": valid}
    in_memory = [s for s, data in splits.items() if data is not None and paths[s] is None]
    if column_of and not in_memory:
        options["columns"] = column_of
    elif column_of and (paths["train"] or (paths["valid"] and not share)):
        raise InputError(
            "columns cannot be combined with a file and rows: give both train and valid as files, "
            "or both as rows"
        )
    place = place_of(out)
    name = f"{place.name}-{DATA}"
    temporary = temporary_name(place.with_name(name))
    try:
        for split, data in splits.items():
            if data is None:
                continue
            if (files := paths[split]) is not None:
                options[split] = files
                continue
            if not temporary.exists():
                remove_leftovers(temporary.parent, name)
                temporary.mkdir(parents=True)
            path = rows_to_file(task, data, temporary / f"{split}.jsonl", column_of)
            if run is not None:
                path = same_rows(path, out / DATA / path.name, split)
            options[split] = [str(path)]
        with row_errors(temporary):
            yield options, temporary if run is None and temporary.exists() else None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def same_rows(path: Path, stored: Path, split: str) -> Path:
    """The file of rows in the run folder; refuse other rows than those of the run."""
    if not stored.is_file() or not filecmp.cmp(path, stored, shallow=False):
        raise InputError(
            f"{split} is not the data that the run was started with: leave it out to resume with "
            "the data of the run"
        )
    return stored.absolute()
