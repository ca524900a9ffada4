"""The stored results docs/results/NAME.json, and the options and calls that all experiments share.

`python -m tools results` writes docs/results.md from these files. No figure in them is entered by
hand, except in multi30k-tried.json, which contains what single trials printed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, hardware
from experiments.catalogue import DATA, RUNS
from regard.errors import InputError
from regard.files import write_file

FOLDER = Path("docs/results")
Results = dict[str, dict[str, Any]]  # by name


def load_results(folder: Path) -> Results:
    """All stored results, sorted by name."""
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stem)
    return {path.stem: load_result(path) for path in paths}


def load_result(path: Path) -> dict[str, Any]:
    """One stored result; empty if there is none."""
    if not path.exists():
        return {}
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def save_result(result: dict[str, Any], options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False)
    write_file(options.out / f"{result['name']}.json", text + "\n")


def experiment_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every experiment."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments {name}", description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=Path, default=Path(RUNS),
        help="folder of prepared data and trained models (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--where", default="", help="description of the machine")
    parser.add_argument(
        "--out", type=Path, default=FOLDER, help="folder of results (default: %(default)s)"
    )
    return parser


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the published data sets"
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """The options of experiments that train recipes."""
    add_data(parser)
    parser.add_argument("--device", default="", help="device (default: that of the recipe)")
    parser.add_argument(
        "--set", action="append", default=[], dest="assignments", metavar="SECTION.KEY=VALUE",
        help="change an option of every training, and of the command in the result",
    )  # fmt: skip


def set_options(options: argparse.Namespace) -> list[str]:
    return [word for assignment in options.assignments for word in ("--set", assignment)]


def origin(device: str, options: argparse.Namespace) -> dict[str, Any]:
    """The date, commit and machine of a training, and its --set options."""
    machine = options.where or hardware(device)
    values = {"date": str(date.today()), "commit": commit(), "machine": machine}
    return {**values, "set": options.assignments} if options.assignments else values


def run_regard(words: list[str], options: argparse.Namespace, may_fail: bool = False) -> str:
    """Run a command of regard and return its standard output.

    Args:
        may_fail: accept exit code 1 if there is output.

    Raises:
        InputError: the command failed.
    """
    real = [real_path(word, options) for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "regard", *real], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode and not (may_fail and done.returncode == 1 and done.stdout):
        raise InputError(f"regard {shlex.join(real)} failed with exit code {done.returncode}")
    return done.stdout


def real_path(word: str, options: argparse.Namespace) -> str:
    """Replace $REGARD_DATA and runs/ by the folders of this machine."""
    if DATA in word:
        word = word.replace(DATA, str(options.data))
    return str(options.runs) + word[len(RUNS) :] if word.startswith(f"{RUNS}/") else word


def command_line(words: list[str]) -> str:
    """A command as the results show it."""
    return "regard " + " ".join(words)
