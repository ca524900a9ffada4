"""Make docs/results.md: train, evaluate, and write down data, command, machine, time and score.

    python -m benchmarks results run NAME ... --data DIR [--runs runs] [--where "a machine"]
    python -m benchmarks results write

`run` trains each recipe (benchmarks/recipes.py) by the command line, as a user would, evaluates it,
and leaves docs/results/NAME.json. `write` makes the tables from these files. Nothing in them is
written by hand. NAME may end with * (`sst2-*`).
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.ratios import commit
from benchmarks.recipes import ABLATION, DATA, RECIPES, RUNS, Recipe, split
from benchmarks.tables import tables
from regard.errors import InputError
from regard.files import write_file
from regard.view.info import final_scores

FOLDER = Path("docs/results")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks results", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    run = steps.add_parser("run")
    run.add_argument("names", nargs="+")
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--runs", type=Path, default=Path(RUNS))
    run.add_argument("--where", default="")
    run.add_argument("--out", type=Path, default=FOLDER)
    write = steps.add_parser("write")
    write.add_argument("--out", type=Path, default=Path("docs/results.md"))
    options = parser.parse_args(arguments)
    if options.step == "write":
        found = {
            p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted(FOLDER.glob("*.json"))
        }
        write_file(options.out, tables(found))
        print(f"{options.out} written")
        return
    for name, measure in (("styles", run_styles), ("ablate", run_ablation)):
        if name in options.names:
            measure(options)
            options.names.remove(name)
    if options.names:
        split(options.data, options.runs)
    chosen = [r for r in RECIPES if any(fnmatch.fnmatch(r.name, n) for n in options.names)]
    if options.names and not chosen:
        raise InputError(f"no recipe {options.names}: {', '.join(r.name for r in RECIPES)}")
    for recipe in chosen:
        result = run_recipe(recipe, options)
        keep(result, options)
        print(f"{recipe.name}: {result['time']:.0f} s, {result['tests']}")


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


def run_recipe(recipe: Recipe, options: argparse.Namespace) -> dict[str, Any]:
    """Train (or go on, or find it done) and evaluate."""
    folder = options.runs / recipe.name
    if not (folder / "model.safetensors").exists():
        call([*recipe.train_command(), "--device", recipe.device, "--resume"], options)
    final = final_scores(folder)
    tests = {}
    for name, files in recipe.tests.items():
        said = call([*recipe.test_command(files), "--json"], options)
        tests[name] = json.loads(said)
    return {
        "name": recipe.name, "date": str(date.today()), "commit": commit(),
        "machine": options.where or f"{os.cpu_count()} cores, {platform.machine()}",
        "train": shown(recipe.train_command()),
        "evaluate": {n: shown(recipe.test_command(f)) for n, f in recipe.tests.items()},
        "steps": final["step"], "time": final["seconds"], "weights": final["final"],
        "validation": {k: v for k, v in final.items() if isinstance(v, float) and k != "seconds"},
        "tests": tests,
    }  # fmt: skip


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
