"""What each ingredient of a good translation model buys: recipes/multi30k.yaml with one changed.

Trainings are processes of their own, some at once (lab.ablate.processes), in waves: what a wave
learned is scored and written down while the next one trains. A wave that would not end in time is
not begun; the same command goes on. Rows that are missing are said to be missing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.recipes import TOKENISED
from benchmarks.scores import at_step, last_step, score
from regard.config.sections import Config
from regard.config.settings import read_yaml, settings
from regard.lab.ablate.processes import TrainingProcess, train_all
from regard.view.info import final_scores

NAME, RECIPE, SEEDS = "ingredients", Path("recipes/multi30k.yaml"), (1, 2, 3)
BASE, LAST = "the recipe", "no averaging: the last checkpoint"
TESTS = ("val", "test2016")
# What differs from the recipe. Post-norm does not bear pre-norm's rate and has its own.
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
    return Config.build(task, None, values)


def trainings(
    options: argparse.Namespace, real: Callable[[str], str]
) -> dict[str, list[TrainingProcess]]:
    """By row, a training for each seed. A row that changes nothing is none."""
    found: dict[str, list[TrainingProcess]] = {}
    for name, changes in ROWS.items():
        configs = [configuration(changes, seed, options.assignments, real) for seed in SEEDS]
        if name != BASE and configs[0] == found[BASE][0].config:
            continue
        short = name.replace(",", "").replace(" ", "-")
        found[name] = [
            TrainingProcess(f"{short}-{seed}", config, options.runs / NAME)
            for seed, config in zip(SEEDS, configs, strict=True)
        ]
    return found


def run_ingredients(
    options: argparse.Namespace,
    real: Callable[[str], str],
    keep: Callable[[dict[str, Any]], None],
) -> None:
    rows = trainings(options, real)
    tests = {name: [Path(real(file)) for file in TOKENISED[name]] for name in TESTS}
    begin = time.monotonic()
    found: dict[str, Any] = {"rows": {}, "failed": {}}
    for name in (BASE, LAST, *rows):  # in this order, whatever ends first
        found["rows"][name] = {"options": list(ROWS.get(name, ())), "seeds": {}}

    def judge(name: str, seed: int, folder: Path) -> None:
        scores = {test: score(folder, files, options.device) for test, files in tests.items()}
        found["rows"][name]["seeds"][str(seed)] = scores

    def take(name: str, seed: int, one: TrainingProcess) -> None:
        """Write down what a training came to."""
        if one.failed or not final_scores(one.run):
            found["failed"][one.name] = one.failed or "it did not end"
            return
        judge(name, seed, one.run)
        if name == BASE:
            judge(LAST, seed, at_step(one.run, last_step(one.run)))
        keep(found)

    every = [(name, seed, one) for i, seed in enumerate(SEEDS)
             for name, some in rows.items() for one in [some[i]]]  # fmt: skip
    done = [row for row in every if final_scores(row[2].run)]  # what an earlier call trained
    missing = [row for row in every if row not in done]
    longest = 0.0
    with ThreadPoolExecutor(1) as judges:
        scored = [judges.submit(take, *row) for row in done]
        while missing and time.monotonic() - begin + longest < 60 * options.minutes:
            wave, missing = missing[: options.jobs], missing[options.jobs :]
            began = time.monotonic()
            train_all([one for *_, one in wave], options.jobs, options.device, Console(stderr=True))
            scored += [judges.submit(take, *row) for row in wave]
            longest = max(longest, time.monotonic() - began)
        for one in scored:
            one.result()  # or what went wrong
    keep(found)
