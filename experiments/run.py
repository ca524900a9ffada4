"""Prepare the data of recipes, train and evaluate them, and write docs/results/NAME.json.

python -m experiments run NAME ... --data DIR [--runs runs] [--where "a machine"]

NAME is a recipe of experiments/catalogue.py and may be a pattern ('sst2-*'). The command trains
through the command line of regard, resumes an interrupted training, and does not repeat what is
already there. The models that ship with the package are also quantised, scored again and written to
src/regard/box, with their model cards.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import time
from pathlib import Path
from typing import Any

from experiments.box import known_scores, ship
from experiments.catalogue import RECIPES, RUNS, Recipe
from experiments.data import needed, prepare
from experiments.results import (
    add_training,
    command_line,
    experiment_parser,
    load_result,
    origin,
    real_path,
    run_regard,
    save_result,
    set_options,
)
from experiments.scores import point, speed
from regard.errors import InputError
from regard.files import checksum, write_file
from regard.training.checkpoint import Checkpoints
from regard.training.model_folder import final_scores

BOX = Path("src/regard/box")
TRAINED = "trained.json"  # in the folder of a run: its origin


def main(arguments: list[str]) -> None:
    parser = experiment_parser("run", __doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="recipe, or pattern of recipes")
    add_training(parser)
    parser.add_argument(
        "--box", type=Path, default=BOX, help="folder of shipped models (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    known = [recipe.name for recipe in RECIPES]
    for name in options.names:
        if not fnmatch.filter(known, name):
            raise InputError(f"unknown recipe {name!r}; known: {', '.join(known)}")
    for recipe in RECIPES:
        if not any(fnmatch.fnmatch(recipe.name, name) for name in options.names):
            continue
        if recipe.box and options.assignments and options.box == BOX:
            raise InputError(
                f"--set would change the shipped model of {recipe.name}: add --box FOLDER"
            )
        prepare(options.data, options.runs, needed(recipe.files, RUNS))
        run_recipe(recipe, options)


def run_recipe(recipe: Recipe, options: argparse.Namespace) -> None:
    """Train a recipe, or resume or reuse its training, and evaluate it. Every figure is saved at
    once."""
    seeds = recipe.seeds or (None,)
    result: dict[str, Any] = {
        "name": recipe.name,
        "train": command_line([*recipe.train_command(seeds[0]), *set_options(options)]),
        "evaluate": {
            test: command_line(recipe.test_command(files, seeds[0]))
            for test, files in recipe.tests.items()
        },
    }  # fmt: skip
    if recipe.start and (start := load_result(options.out / f"{recipe.start}.json")):
        result["start"] = {k: start[k] for k in ("name", "train", "steps", "time", "machine")}
    about = options.runs / "data" / recipe.name / "about.json"
    if about.exists():
        result["data"] = load_result(about)
    before = load_result(options.out / f"{recipe.name}.json")
    if recipe.seeds:  # seeds of an earlier call stay until they are replaced
        result["seeds"] = dict(before.get("seeds", {}))
    for seed in seeds:
        figures, earlier = result, before
        if seed is not None:
            earlier = result["seeds"].get(str(seed), {})
            figures = result["seeds"][str(seed)] = {}
        earlier = {**earlier, "evaluate": before.get("evaluate", {})}
        run_one(recipe, seed, figures, earlier, result, options)
        print(f"{recipe.run(seed)}: {figures['time']:.0f} s, {figures['tests']}")


def run_one(
    recipe: Recipe,
    seed: int | None,
    figures: dict[str, Any],
    before: dict[str, Any],
    result: dict[str, Any],
    options: argparse.Namespace,
) -> None:
    """Train and evaluate one seed of a recipe.

    Args:
        one: receives the figures of the seed; it is a part of `result`.
        before: the figures of an earlier call, whose scores are reused.
        result: the whole result, which is saved after each step.
    """
    device = options.device or recipe.device
    # A model that was trained on a GPU may be evaluated on a machine without one.
    evaluation_device = options.device or ("cpu" if recipe.device == "cpu" else "auto")
    folder = Path(real_path(recipe.run(seed), options))
    if not (folder / "model.safetensors").exists():
        words = [*recipe.train_command(seed), *set_options(options), "--device", device, "--resume"]
        began, whole = time.monotonic(), not folder.exists()
        run_regard(words, options)
        source = origin(device, options)
        if whole:  # including reading, learning the vocabulary, compiling and averaging
            source["wall"] = round(time.monotonic() - began, 1)
        write_file(folder / TRAINED, json.dumps(source) + "\n")
    # A run that was copied from a different machine brings this file along.
    source = load_result(folder / TRAINED)
    if not source:
        if not options.where:
            raise InputError(
                f"{folder} was not trained by this command: add --where with the machine"
            )
        source = origin(device, options)
    if source.pop("set", []) != options.assignments:
        raise InputError(
            f"{folder} was trained with different --set options: remove it or change --runs"
        )
    figures |= {"wall": source.pop("wall")} if "wall" in source else {}
    result |= source
    final = final_scores(folder)
    figures |= {
        "steps": final["step"], "time": final["seconds"], "weights": final["final"],
        "tokens_per_second": speed(folder),
        "validation": {k: v for k, v in final.items() if isinstance(v, float) and k != "seconds"},
        "model": checksum(folder / "model.safetensors"),
    }  # fmt: skip
    figures["tests"] = known_scores(before, figures["model"], result["evaluate"])

    def evaluate(words: list[str]) -> dict[str, Any]:
        words = [*words, "--device", evaluation_device, "--json"]
        scores: dict[str, Any] = json.loads(run_regard(words, options))
        return scores

    for name, files in recipe.tests.items():
        if name not in figures["tests"]:
            figures["tests"][name] = evaluate(recipe.test_command(files, seed))
        save_result(result, options)
    if recipe.box:
        ship(recipe, folder, result, before.get("packed", {}), options.box, evaluate)
        save_result(result, options)
    if recipe.curve and before.get("model") == figures["model"] and before.get("curve"):
        figures["curve"] = before["curve"]
        save_result(result, options)
    elif recipe.curve:
        paths = [Path(real_path(file, options)) for file in recipe.tests[recipe.curve]]
        figures["curve"] = []
        for step in Checkpoints(folder).steps():
            figures["curve"].append(point(folder, step, paths, evaluation_device))
            save_result(result, options)
