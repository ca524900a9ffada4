"""`regard train`: its options, and the configuration that they describe."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from regard.cli.options import (
    architecture_options,
    bounded,
    file_formats,
    file_name,
    file_path,
    machine_options,
    preset_option,
)
from regard.config.sections import Config
from regard.config.settings import read_yaml, settings
from regard.errors import InputError
from regard.tasks.configuration import make_config
from regard.tasks.registry import task_names
from regard.training.shipped import folder_of


def train_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--task", help=" | ".join(task_names()))
    verb.add_argument(
        "--train", nargs="+", type=file_name, metavar="FILE",
        help=file_formats(),
    )  # fmt: skip
    verb.add_argument("--valid", nargs="+", type=file_name, metavar="FILE", help="held-out data")
    verb.add_argument(
        "--out", metavar="RUN", type=file_path, required=True, help="folder of the run"
    )
    preset_option(verb)
    verb.add_argument("--config", type=file_path, metavar="FILE.yaml", help="file with options")
    verb.add_argument(
        "--from", type=file_path, metavar="MODEL", dest="start_from",
        help="start from this model's weights (fine-tuning)",
    )  # fmt: skip
    verb.add_argument("--resume", action="store_true", help="continue the run at --out")
    verb.add_argument(
        "--force", action="store_true",
        help="finish a run without its damaged checkpoints, which may change the final weights",
    )  # fmt: skip
    verb.add_argument(
        "--seed", type=bounded(int, 0, 2**63 - 1), metavar="N",
        help="random seed for initialisation, shuffling and dropout (default: 1)",
    )  # fmt: skip
    verb.add_argument("--dtype", choices=("auto", "float32", "bfloat16"))
    architecture_options(verb)
    machine_options(verb)


def train(options: argparse.Namespace) -> int:
    """Train a model on text files and write its folder."""
    values = read_yaml(options.config) if options.config else {}
    task = options.task or values.pop("task", None)
    values.pop("task", None)
    given: dict[str, dict[str, Any]] = {
        "data": {"train": options.train, "valid": options.valid},
        "model": {"style": options.style},
        "training": {"seed": options.seed, "dtype": options.dtype},
    }
    given = {s: {k: v for k, v in keys.items() if v is not None} for s, keys in given.items()}
    for changes in (given, settings(options.assignments)):
        for section, keys in changes.items():
            values[section] = {**values.get(section, {}), **keys}
    config = None
    if task and values["data"].get("train"):
        start = None
        if options.start_from is not None:
            start_config = folder_of(options.start_from) / "config.yaml"
            if not start_config.is_file():
                raise InputError(f"{start_config.parent} is not a model: it has no config.yaml")
            start = Config.load(start_config)
            if options.resume and (options.out / "config.yaml").is_file():
                # The options that the run was started with stay.
                start = replace(start, data=Config.load(options.out / "config.yaml").data)
        config = make_config(task, options.preset, values, start)
    elif not options.resume or any(values.values()) or options.preset or options.start_from:
        raise InputError("--task and --train are needed (see: regard train --help)")
    from regard.tasks.train import train as run_training

    run_training(
        config, options.out, resume=options.resume, force=options.force,
        start_from=options.start_from, device=options.device, quiet=options.quiet,
        command=sys.argv[1:],
    )  # fmt: skip
    return 0
