"""`regard train`: its options, and the configuration that they describe."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from typing import Any

from regard.cli.options import (
    OWN_OPTIONS,
    STEPS,
    architecture_options,
    bounded,
    check_assignments,
    columns_option,
    file_formats,
    file_name,
    file_path,
    machine_options,
    option_of,
    preset_option,
    valid_name,
)
from regard.config.sections import Config
from regard.config.settings import read_yaml, settings
from regard.console import make_console
from regard.errors import InputError
from regard.tasks.configuration import start_config
from regard.tasks.planning import plan_run
from regard.tasks.registry import task_names
from regard.training.names import CONFIG

MOST_EPOCHS = 1e6


def train_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--task", help=f"one of {', '.join(task_names())}")
    verb.add_argument(
        "--train", nargs="+", type=file_name, metavar="FILE",
        help=f"training data; formats by task: {file_formats()}",
    )  # fmt: skip
    verb.add_argument(
        "--valid", nargs="+", type=valid_name, metavar="FILE",
        help="validation data, or a percentage of the training data to hold out, e.g. 5%% "
        "(default: no validation)",
    )  # fmt: skip
    columns_option(verb)
    verb.add_argument(
        "--out", metavar="RUN", type=file_path, required=True,
        help="folder to write the model and its checkpoints to",
    )  # fmt: skip
    preset_option(verb, "chosen by the amount of data and the device")
    verb.add_argument(
        "--config",
        type=file_path,
        metavar="FILE.yaml",
        help="YAML file of settings; options of the command line override it",
    )
    verb.add_argument(
        "--from", type=file_path, metavar="MODEL", dest="start_from",
        help="start from this model's weights (fine-tuning; default: random weights)",
    )  # fmt: skip
    verb.add_argument("--resume", action="store_true", help="continue the interrupted run in --out")
    verb.add_argument(
        "--force", action="store_true",
        help="with --resume: ignore damaged checkpoints instead of stopping",
    )  # fmt: skip
    verb.add_argument(
        "--steps", type=STEPS, metavar="N", help="number of optimiser steps (default: 2000)"
    )
    verb.add_argument(
        "--epochs", type=bounded(float, 0.0, MOST_EPOCHS, above=True), metavar="X",
        help="number of passes over the training data, instead of --steps",
    )  # fmt: skip
    verb.add_argument(
        "--learning-rate", type=bounded(float, 0.0, 1e40, above=True), metavar="X",
        help="peak learning rate (default: (d_model * warmup)^-0.5; with --from a tenth of it)",
    )  # fmt: skip
    verb.add_argument(
        "--batch-tokens", type=STEPS, metavar="N", help="tokens per batch (default: 4096)"
    )
    verb.add_argument(
        "--seed", type=bounded(int, 0, 2**63 - 1), metavar="N",
        help="random seed for initialisation, shuffling and dropout (default: 1)",
    )  # fmt: skip
    verb.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16"),
        help="data type of matrix products (default: auto, bfloat16 where it is faster)",
    )  # fmt: skip
    architecture_options(verb, "depends on the task")
    machine_options(verb)


def train(options: argparse.Namespace) -> int:
    """Train a model on text files and write a model folder."""
    values = read_yaml(options.config) if options.config else {}
    task = options.task or values.pop("task", None)
    values.pop("task", None)
    if options.steps is not None and options.epochs is not None:
        raise InputError(
            "--steps and --epochs cannot be combined: both set the length of the training"
        )
    selected: dict[str, dict[str, Any]] = {
        "data": {
            "train": options.train, "valid": options.valid, "columns": options.columns,
        },
        "model": {"style": options.style},
        "training": {name: getattr(options, name) for name in OWN_OPTIONS["training"]},
    }  # fmt: skip
    selected = {
        section: {key: value for key, value in keys.items() if value is not None}
        for section, keys in selected.items()
    }
    assigned = settings(options.assignments)
    check_assignments(selected, assigned)
    for changes in (selected, assigned):
        for section, keys in changes.items():
            before = dict(values.get(section, {}))
            for name, other in (("steps", "epochs"), ("epochs", "steps")):
                if name in keys:  # it replaces the length of training that the file sets
                    before.pop(other, None)
            values[section] = {**before, **keys}
    plan, config = None, None
    if task and values["data"].get("train"):
        start = None
        if options.start_from is not None:
            start = start_config(options.start_from, options.out if options.resume else None)
        plan = plan_run(
            task, options.preset, values, start, device=options.device,
            run=options.out if options.resume else None,
            say=partial(print_choice, quiet=options.quiet),
        )  # fmt: skip
        config = plan.config
    elif options.resume:
        config = resumed_config(options, task, values)
    else:
        missing = [] if task else [f"--task ({', '.join(task_names())})"]
        missing += [] if values["data"].get("train") else ["--train"]
        verb = "are" if len(missing) > 1 else "is"
        raise InputError(f"{' and '.join(missing)} {verb} required (see: regard train --help)")
    from regard.tasks.train import train_config
    from regard.training.callbacks import Callbacks

    train_config(
        config, options.out, resume=options.resume, force=options.force,
        start_from=options.start_from, device=options.device, quiet=options.quiet,
        command=sys.argv[1:], callbacks=Callbacks([plan] if plan else []),
    )  # fmt: skip
    return 0


def resumed_config(
    options: argparse.Namespace, task: str | None, values: dict[str, dict[str, Any]]
) -> Config | None:
    """The configuration of a run that is resumed without its task and its training files.

    Args:
        options: the options of the command.
        task: the task, if it is set.
        values: the configuration options by section.

    Returns:
        The stored configuration with a new number of steps or epochs; None: no option is changed,
        or there is no such run.

    Raises:
        InputError: another option is set.
    """
    names = ["--task"] if task else []
    names += ["--preset"] if options.preset else []
    names += ["--from"] if options.start_from else []
    for section, keys in values.items():
        names += [option_of(section, key) for key in keys if key not in ("steps", "epochs")]
    if names:
        raise InputError(
            f"--resume continues a run with its own options: leave out {names[0]} (only --steps "
            "and --epochs can be changed)"
        )
    changes, path = values["training"], options.out / CONFIG
    if not changes or not path.is_file():
        return None
    stored = Config.load(path)
    changes = {"epochs": 0.0, **changes}
    return replace(stored, training=replace(stored.training, **changes))


def print_choice(text: str, quiet: bool) -> None:
    """Print which preset was chosen."""
    make_console(stderr=True, quiet=quiet).print(
        f"{text.removesuffix(')')}; --preset overrides it)", soft_wrap=True
    )
