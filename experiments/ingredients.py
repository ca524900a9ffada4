"""Measure the contribution of each part of the Multi30k recipe: one change per row, three seeds.

The trainings run in processes of their own, several at once (--jobs), in waves: the models of a
wave are scored and saved while the next wave trains. A wave starts only if it is expected to end
within --minutes; the same command continues later. The result names the rows that are missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.catalogue import DATA, RECIPE_FOLDER, RUNS, TOKENISED
from experiments.data import needed, prepare
from experiments.results import (
    add_training,
    experiment_parser,
    origin,
    real_path,
    save_result,
    set_options,
)
from experiments.scores import at_step, last_step, score
from regard.config.sections import Config
from regard.config.settings import read_yaml, settings
from regard.lab.ablate.processes import TrainingProcess, train_all
from regard.tasks.configuration import make_config
from regard.training.model_folder import final_scores

NAME, RECIPE, SEEDS = "ingredients", RECIPE_FOLDER / "multi30k.yaml", (1, 2, 3)
BASE, LAST = "the recipe", "no averaging: the last checkpoint"
TESTS = ("val", "test2016")
# The changes of each row. Post-norm has its own learning rate: that of pre-norm is too high.
ROWS: dict[str, tuple[str, ...]] = {
    BASE: (),
    "no label smoothing": ("training.label_smoothing=0",),
    "no R-Drop": ("training.r_drop=0",),
    "BPE-dropout 0.1": ("data.bpe_dropout=0.1",),
    "post-norm": ("model.norm_first=false", "training.learning_rate=0.002"),
    **{f"vocabulary of {size:,}": (f"data.vocabulary_size={size}",) for size in (4_000, 16_000)},
}


def configuration(
    options: tuple[str, ...], seed: int, extra: list[str], real: Callable[[str], str]
) -> Config:
    """The recipe with these changes."""
    values = read_yaml(RECIPE)
    task = values.pop("task")
    changes = settings([*extra, *options])
    changes.setdefault("data", {})["train"] = [real(file) for file in TOKENISED["train"]]
    changes.setdefault("training", {})["seed"] = seed
    for section, keys in changes.items():
        values[section] = {**values.get(section, {}), **keys}
    return make_config(task, None, values)


def trainings(
    options: argparse.Namespace, real: Callable[[str], str]
) -> dict[str, list[TrainingProcess]]:
    """One training per seed for each row, without rows that change nothing."""
    rows: dict[str, list[TrainingProcess]] = {}
    for name, changes in ROWS.items():
        configs = [configuration(changes, seed, options.assignments, real) for seed in SEEDS]
        if name != BASE and configs[0] == rows[BASE][0].config:
            continue
        short = name.replace(",", "").replace(" ", "-")
        rows[name] = [
            TrainingProcess(f"{short}-{seed}", config, options.runs / NAME)
            for seed, config in zip(SEEDS, configs, strict=True)
        ]
    return rows


def run_ingredients(
    options: argparse.Namespace,
    real: Callable[[str], str],
    save: Callable[[dict[str, Any]], None],
) -> None:
    """Train and score all rows, as far as the time allows.

    Args:
        real: replaces the placeholders in a path by the folders of this machine.
        save: called with the result after each training.
    """
    rows = trainings(options, real)
    tests = {name: [Path(real(file)) for file in TOKENISED[name]] for name in TESTS}
    begin = time.monotonic()
    result: dict[str, Any] = {"rows": {}, "failed": {}}
    for name in (BASE, LAST, *rows):  # in this order, independent of which ends first
        result["rows"][name] = {"options": list(ROWS.get(name, ())), "seeds": {}}

    def score_row(name: str, seed: int, folder: Path) -> None:
        scores = {test: score(folder, files, options.device) for test, files in tests.items()}
        result["rows"][name]["seeds"][str(seed)] = scores

    def record(name: str, seed: int, process: TrainingProcess) -> None:
        """Score a training and save the result."""
        if process.failed or not final_scores(process.run):
            result["failed"][process.name] = process.failed or "it did not end"
            return
        score_row(name, seed, process.run)
        if name == BASE:
            score_row(LAST, seed, at_step(process.run, last_step(process.run)))
        save(result)

    every = [(name, seed, process) for i, seed in enumerate(SEEDS)
             for name, some in rows.items() for process in [some[i]]]  # fmt: skip
    done = [row for row in every if final_scores(row[2].run)]  # by an earlier call
    missing = [row for row in every if row not in done]
    longest = 0.0
    with ThreadPoolExecutor(1) as pool:
        scored = [pool.submit(record, *row) for row in done]
        while missing and time.monotonic() - begin + longest < 60 * options.minutes:
            wave, missing = missing[: options.jobs], missing[options.jobs :]
            began = time.monotonic()
            train_all(
                [process for *_, process in wave],
                options.jobs,
                options.device,
                Console(stderr=True),
            )
            scored += [pool.submit(record, *row) for row in wave]
            longest = max(longest, time.monotonic() - began)
        for process in scored:
            process.result()  # raises the exception of the thread, if any
    save(result)


def main(arguments: list[str]) -> None:
    parser = experiment_parser(NAME, __doc__)
    add_training(parser)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once (default: 1)")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="time limit for starting trainings"
    )
    options = parser.parse_args(arguments)
    options.device = options.device or "cuda"
    prepare(options.data, options.runs, needed(TOKENISED["train"], RUNS))
    command = ["python", "-m", "experiments", NAME, "--data", DATA, *set_options(options)]

    def save(result: dict[str, Any]) -> None:
        save_result({"name": NAME, "set": [], **origin(options.device, options),
                     "train": " ".join(command), "evaluate": {}, **result}, options)  # fmt: skip

    run_ingredients(options, lambda word: real_path(word, options), save)
