"""make_config: the configuration of a task, from a preset, its defaults and the user's changes.

The sections check what does not depend on a task (regard/config). This module applies the defaults
of the task, which its class declares, and checks the options against it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.config.checks import DERIVED
from regard.config.model import STYLES, ModelConfig
from regard.config.names import unknown_section
from regard.config.sections import (
    Config,
    DataConfig,
    DecodingConfig,
    TrainingConfig,
    inherited_vocabulary,
    section,
)
from regard.config.settings import SECTIONS, current_names
from regard.errors import InputError
from regard.tasks.registry import find_task, task_names
from regard.tasks.task import Task
from regard.training.names import CONFIG
from regard.training.shipped import folder_of, no_model

Values = dict[str, Any]  # the options of a section
# Options of the model that decide which tensors it has, and their shapes.
STRUCTURE = ("style", "encoder_layers", "decoder_layers", "d_model", "d_ff")
FINE_TUNING = 0.1  # factor of the default learning rate of a model to start from


def by_section(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by section, from options of which some are flat ("training.steps")."""
    sections = {key: value for key, value in values.items() if "." not in key}
    for key, value in values.items():
        section_name, dot, option = key.partition(".")
        if dot:
            sections[section_name] = {**sections.get(section_name, {}), option: value}
    return sections


def make_config(
    name: str,
    preset: str | None = None,
    values: Mapping[str, Any] | None = None,
    start: Config | None = None,
) -> Config:
    """The complete and checked configuration of a run.

    Args:
        name: the task.
        preset: the sizes of the model; None: those of `start`, or "base".
        values: the user's options, by section ({"training": {"steps": 500}}) or flat
            ({"training.steps": 500}).
        start: the configuration of the model to start from, which brings the vocabulary and,
            without a preset, the sizes.

    Returns:
        The configuration, with every default.

    Raises:
        InputError: an option is unknown or not valid, or options cannot be combined.
    """
    task, values = find_task(name), current_names(by_section(values or {}))
    for key in values:
        if key not in SECTIONS:
            raise unknown_section("section", key, SECTIONS)

    def chosen(key: str) -> dict[str, Any]:
        return {**task.defaults.get(key, {}), **values.get(key, {})}

    of_data = chosen("data")
    if start is not None:
        if not task.two_vocabularies and not start.data.shared_vocabulary:
            raise InputError(
                f"a model to start from with two vocabularies and the task {name} cannot be "
                "combined: the task has one"
            )
        of_data |= inherited_vocabulary(start.data, of_data)
    data = section(DataConfig, "data", of_data)
    task.check_columns(data.columns)
    model = build_model(task, preset, data, values.get("model", {}), start)
    decoding = section(DecodingConfig, "decoding", chosen("decoding"))
    training = section(TrainingConfig, "training", chosen("training"))
    if training.epochs and "steps" in values.get("training", {}):
        raise InputError(
            f"training.epochs={training.epochs:g} and training.steps={training.steps} cannot be "
            "combined: leave one out"
        )
    if training.learning_rate is DERIVED:
        rate = (model.d_model * training.warmup) ** -0.5
        rate *= 1.0 if start is None else FINE_TUNING
        training = replace(training, learning_rate=rate)
    config = Config(task=name, model=model, data=data, training=training, decoding=decoding)
    check_positions(task, config)
    task.check_config(config)
    check_options(task, "training", training)
    return config


def start_config(start_from: str | os.PathLike[str], out: Path | None) -> Config:
    """The configuration of the model to start from.

    out: the run that is resumed, which keeps the data options that it was started with; None: a new
        run.
    """
    path = folder_of(Path(start_from)) / CONFIG
    if not path.is_file():
        raise no_model(path.parent)
    start = Config.load(path)
    if out is not None and (out / CONFIG).is_file():
        start = replace(start, data=Config.load(out / CONFIG).data)
    return start


def build_model(
    task: type[Task], preset: str | None, data: DataConfig, values: Values, start: Config | None
) -> ModelConfig:
    """The preset, or the model to start from, with the defaults of the task and the changes."""
    # Pre-norm allows a higher learning rate: on Multi30k, 1,800 steps, one seed each, it had 35.6
    # BLEU at 5e-3 and post-norm 30.7 at 3e-3. model.norm_first=false is the paper's.
    defaults: dict[str, Any] = {"vocabulary_size": data.vocabulary_size, "norm_first": True}
    if not data.shared_vocabulary:
        defaults["tie_embeddings"] = "target-output"
    if start is not None and preset is None:
        for key in STRUCTURE:
            before = vars(start.model)[key]
            if values.get(key, before) != before:
                raise InputError(
                    f"model.{key}={values[key]} and a model to start from with model.{key}="
                    f"{before} cannot be combined: leave out model.{key}"
                )
        defaults = {**start.model.to_dict(), "head": DERIVED, "classes": None}
    else:
        defaults |= task.defaults.get("model", {})
    style = {"style": STYLES[0], **defaults, **values}["style"]
    values = {**defaults, **task.model_defaults(style, data), **values}
    if style in STYLES and style not in task.styles:
        raise InputError(
            f"the task {task.name} and model.style={style} cannot be combined: "
            f"the task needs {' or '.join(task.styles)}"
        )
    check_options(task, "data", data)
    if not task.two_vocabularies and not data.shared_vocabulary:
        raise InputError(
            f"the task {task.name} and data.shared_vocabulary=false cannot be combined: the task "
            "has one vocabulary"
        )
    if start is not None and preset is None:
        model = ModelConfig.from_dict(values)
    else:
        model = ModelConfig.preset(preset or "base", **values)
    if not data.shared_vocabulary and model.tie_embeddings in ("all", "source-target"):
        raise InputError(
            f"data.shared_vocabulary=false and model.tie_embeddings={model.tie_embeddings} "
            "cannot be combined: a shared matrix needs a shared vocabulary"
        )
    return model


def tasks_by_option() -> dict[str, list[str]]:
    """The options that not all tasks have ("data.mask"), and the tasks that have them."""
    tasks: dict[str, list[str]] = {}
    for name in task_names():
        for option in find_task(name).config_options:
            tasks.setdefault(option, []).append(name)
    return dict(sorted(tasks.items()))


def check_options(task: type[Task], key: str, options: DataConfig | TrainingConfig) -> None:
    """Refuse an option of a section that belongs to other tasks, unless it has its default."""
    default = vars(type(options)())
    for option, tasks in tasks_by_option().items():
        of, _, name = option.partition(".")
        if of == key and task.name not in tasks and vars(options)[name] != default[name]:
            raise InputError(
                f"the task {task.name} and {option}={str(vars(options)[name]).lower()} cannot be "
                f"combined: it is an option of {' and '.join(tasks)}"
            )


def check_positions(task: type[Task], config: Config) -> None:
    """Refuse a table of learned positions that is too short for the longest possible row."""
    model = config.model
    target_length = config.decoding.max_length if model.has_decoder else 0
    longest = config.data.max_length + task.longest_target(config)
    if model.positions == "learned" and model.max_length < longest:
        raise InputError(
            f"model.max_length={model.max_length} with model.positions=learned is less than the "
            f"{longest} that data.max_length={config.data.max_length} and "
            f"decoding.max_length={target_length} together need"
        )
