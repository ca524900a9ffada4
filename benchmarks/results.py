"""Make docs/results.md: train, evaluate, and write down data, command, machine, time and score.

    python -m benchmarks results run NAME ... --data DIR [--runs runs] [--where "a machine"]
    python -m benchmarks results write

`run` prepares the data, trains each recipe (benchmarks/recipes.py) by the command line, as a user
would, evaluates it, and leaves docs/results/NAME.json; what is there already is not made again.
`write` makes the tables from these files. Nothing in them is written by hand, but for
multi30k-tried.json: what single trials printed. NAME may end with * (`sst2-*`); `ablate`,
`ingredients` and `styles` are measurements of several models.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shlex
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.box import known_scores, put_in_box
from benchmarks.data import needed, prepare
from benchmarks.ingredients import run_ingredients
from benchmarks.ratios import commit, hardware
from benchmarks.recipes import ABLATION, DATA, RECIPES, RUNS, TOKENISED, Recipe
from benchmarks.scores import point, speed
from benchmarks.tables import tables
from benchmarks.translation import draw_curve
from regard.errors import InputError
from regard.files import checksum, write_file
from regard.training.checkpoint import Checkpoints
from regard.training.model_folder import final_scores

FOLDER = Path("docs/results")
BOX = Path("src/regard/box")
TRAINED = "trained.json"  # in a run's folder: what `origin` says of it


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks results", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    run = steps.add_parser("run")
    run.add_argument("names", nargs="+")
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--runs", type=Path, default=Path(RUNS))
    run.add_argument("--where", default="", help="the machine, in words")
    run.add_argument("--device", default="", help="another than the recipe was meant for")
    run.add_argument("--out", type=Path, default=FOLDER)
    run.add_argument("--box", type=Path, default=BOX, help="of packed models")
    run.add_argument(
        "--set", action="append", default=[], dest="assignments", metavar="SECTION.KEY=VALUE",
        help="to try something out: added to every training, and to the command that is shown",
    )  # fmt: skip
    run.add_argument("--jobs", type=int, default=1, help="of ingredients: trainings at once")
    run.add_argument("--minutes", type=float, default=1e9, help="of ingredients: begin none after")
    write = steps.add_parser("write")
    write.add_argument("--out", type=Path, default=Path("docs/results.md"))
    options = parser.parse_args(arguments)
    if options.step == "write":
        found = kept(FOLDER)
        write_file(options.out, tables(found))
        pictures = draw_curve(found, options.out.parent)
        print(", ".join(map(str, [options.out, *pictures])), "written")
        return
    for name, measure in MEASUREMENTS.items():
        if name in options.names:
            measure(options)
            options.names.remove(name)
    every = [recipe.name for recipe in RECIPES]
    for name in options.names:
        if not fnmatch.filter(every, name):
            raise InputError(f"no recipe {name}: {', '.join(every)}")
    chosen = [r for r in RECIPES if any(fnmatch.fnmatch(r.name, n) for n in options.names)]
    for recipe in chosen:
        if recipe.box and options.assignments and options.box == BOX:
            raise InputError(f"--set would change {recipe.name} in the package: give --box FOLDER")
        prepare(options.data, options.runs, needed(recipe.files, RUNS))
        run_recipe(recipe, options)


def kept(folder: Path) -> dict[str, dict[str, Any]]:
    """The results that there are, by name."""
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stem)
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def keep(result: dict[str, Any], options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    write_file(options.out / f"{result['name']}.json", text + "\n")


def run_styles(options: argparse.Namespace) -> None:
    """The three styles on the built-in corpus: a measurement, not a recipe."""
    command = ["lab", "styles", "--out", f"{RUNS}/styles"]
    found = json.loads(call([*command, "--json", "--quiet"], options))
    del found["files"]
    for style in found["styles"].values():
        del style["runs"]
    keep({"name": "styles", "date": str(date.today()), "train": shown(command),
          "machine": options.where, "evaluate": {}, **found}, options)  # fmt: skip


def run_ablation(options: argparse.Namespace) -> None:
    """The paper's Table 3 on Multi30k. A row that fails is part of the result, and said in it."""
    found = json.loads(call([*ABLATION, "--json"], options, may_fail=True))
    del found["files"]
    machine = options.where or found.pop("machine")
    keep({**found, "name": "ablate", "date": str(date.today()), "commit": commit(),
          "train": shown(ABLATION), "machine": machine, "evaluate": {}}, options)  # fmt: skip


def run_measured(options: argparse.Namespace) -> None:
    """What each ingredient buys."""
    prepare(options.data, options.runs, needed(TOKENISED["train"], RUNS))
    options = argparse.Namespace(**vars(options) | {"device": options.device or "cuda"})
    command = ["python", "-m", "benchmarks", "results", "run", "ingredients", "--data", DATA]
    command += extra(options)

    def keep_measured(found: dict[str, Any]) -> None:
        keep({"name": "ingredients", "set": [], **origin(options.device, options),
              "train": " ".join(command), "evaluate": {}, **found}, options)  # fmt: skip

    run_ingredients(options, lambda word: real_path(word, options), keep_measured)


MEASUREMENTS = {"styles": run_styles, "ablate": run_ablation, "ingredients": run_measured}


def run_recipe(recipe: Recipe, options: argparse.Namespace) -> None:
    """Train (or go on, or find it done) and evaluate; every figure is kept as it comes."""
    seeds = recipe.seeds or (None,)
    result: dict[str, Any] = {
        "name": recipe.name,
        "train": shown([*recipe.train_command(seeds[0]), *extra(options)]),
        "evaluate": {n: shown(recipe.test_command(f, seeds[0])) for n, f in recipe.tests.items()},
    }  # fmt: skip
    start = options.out / f"{recipe.start}.json"
    if recipe.start and start.exists():  # how long what it began as was trained
        began = json.loads(start.read_text(encoding="utf-8"))
        result["start"] = {k: began[k] for k in ("name", "train", "steps", "time", "machine")}
    about = options.runs / "data" / recipe.name / "about.json"
    if about.exists():
        result["data"] = json.loads(about.read_text(encoding="utf-8"))
    old = options.out / f"{recipe.name}.json"
    before = json.loads(old.read_text(encoding="utf-8")) if old.exists() else {}
    if recipe.seeds:  # those of before stay until they are made anew
        result["seeds"] = dict(before.get("seeds", {}))
    for seed in seeds:
        one, earlier = result, before
        if seed is not None:
            earlier = result["seeds"].get(str(seed), {})
            one = result["seeds"][str(seed)] = {}
        earlier = {**earlier, "evaluate": before.get("evaluate", {})}
        run_one(recipe, seed, one, earlier, result, options)
        print(f"{recipe.run(seed)}: {one['time']:.0f} s, {one['tests']}")


def run_one(
    recipe: Recipe,
    seed: int | None,
    one: dict[str, Any],
    before: dict[str, Any],
    result: dict[str, Any],
    options: argparse.Namespace,
) -> None:
    """One training of a recipe, into `one`, which is a part of `result`. Scores that an earlier
    call (`before`) has are not made again."""
    device = options.device or recipe.device
    # What a GPU trained may be scored where there is none.
    use = options.device or ("cpu" if recipe.device == "cpu" else "auto")
    folder = Path(real_path(recipe.run(seed), options))
    if not (folder / "model.safetensors").exists():
        words = [*recipe.train_command(seed), *extra(options), "--device", device, "--resume"]
        began, whole = time.monotonic(), not folder.exists()
        call(words, options)
        came = origin(device, options)
        if whole:  # reading, learning the vocabulary, compiling, averaging and all
            came["wall"] = round(time.monotonic() - began, 1)
        write_file(folder / TRAINED, json.dumps(came) + "\n")
    # A run may have come from another machine, with what is written there.
    trained = folder / TRAINED
    if trained.exists():
        came = json.loads(trained.read_text(encoding="utf-8"))
    elif options.where:
        came = origin(device, options)
    else:
        raise InputError(f"{folder} was not trained by this command: say --where it was")
    if came.pop("set", []) != options.assignments:
        raise InputError(f"{folder} was trained with other --set: remove it, or say --runs FOLDER")
    one |= {"wall": came.pop("wall")} if "wall" in came else {}
    result |= came
    final = final_scores(folder)
    one |= {
        "steps": final["step"], "time": final["seconds"], "weights": final["final"],
        "tokens_per_second": speed(folder),
        "validation": {k: v for k, v in final.items() if isinstance(v, float) and k != "seconds"},
        "model": checksum(folder / "model.safetensors"),
    }  # fmt: skip
    one["tests"] = known_scores(before, one["model"], result["evaluate"])

    def evaluate(words: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(call([*words, "--device", use, "--json"], options))
        return found

    for name, files in recipe.tests.items():
        if name not in one["tests"]:
            one["tests"][name] = evaluate(recipe.test_command(files, seed))
        keep(result, options)
    if recipe.box:
        known = before.get("packed", {})
        put_in_box(recipe, folder, result, known, options.box, evaluate)
        keep(result, options)
    if recipe.curve and before.get("model") == one["model"] and before.get("curve"):
        one["curve"] = before["curve"]
        keep(result, options)
    elif recipe.curve:
        paths = [Path(real_path(file, options)) for file in recipe.tests[recipe.curve]]
        one["curve"] = []
        for step in Checkpoints(folder).steps():
            one["curve"].append(point(folder, step, paths, use))
            keep(result, options)


def origin(device: str, options: argparse.Namespace) -> dict[str, Any]:
    """When, from which code and where a model was trained."""
    where = options.where or hardware(device)
    came = {"date": str(date.today()), "commit": commit(), "machine": where}
    return {**came, "set": options.assignments} if options.assignments else came


def extra(options: argparse.Namespace) -> list[str]:
    return [word for assignment in options.assignments for word in ("--set", assignment)]


def call(words: list[str], options: argparse.Namespace, may_fail: bool = False) -> str:
    """What `regard` prints. may_fail: exit code 1 is an answer, too."""
    real = [real_path(word, options) for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "regard", *real], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode and not (may_fail and done.returncode == 1 and done.stdout):
        raise InputError(f"regard {shlex.join(real)} ended with {done.returncode}")
    return done.stdout


def real_path(word: str, options: argparse.Namespace) -> str:
    word = word.replace(DATA, str(options.data))
    return str(options.runs) + word[len(RUNS) :] if word.startswith(f"{RUNS}/") else word


def shown(words: list[str]) -> str:
    return "regard " + " ".join(words)
