"""`regard VERB`: thin. Parse, call, print.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 the work
failed, 2 the user's input is at fault (one line, no traceback; `--debug` shows it), 130
interrupted. torch is imported inside the verbs, so that every `--help` answers at once.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from regard import __version__
from regard.box import folder_of
from regard.config import TASKS
from regard.errors import InputError, TrainingFailed
from regard.interrupt import interruptible
from regard.lab.verbs import LABS
from regard.model.config import PRESETS, STYLES, ModelConfig
from regard.settings import read_yaml, section_settings, settings
from regard.verbs import (
    VERBS,
    architecture_options,
    at_once,
    chosen_decoding,
    decoding_options,
    hurried,
    machine_options,
    model_to_use,
)
from regard.view.verbs import VIEWS


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one line, like all our errors."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see: {self.prog} --help)")


def build_parser() -> Parser:
    parser = Parser(
        prog="regard", description="The Transformer, whole: learn it, train it, use it."
    )
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    add_verb(verbs, "demo", demo, demo_options)
    add_verb(verbs, "train", train, train_options)
    for name, run, options in VERBS:
        add_verb(verbs, name, run, options)
    add_verb(verbs, "evaluate", evaluate, evaluate_options)
    add_verb(verbs, "info", info, info_options)
    add_verb(verbs, "pack", pack, pack_options)
    view = verbs.add_parser("view", help="pictures and tables to look at")
    views = view.add_subparsers(title="views", metavar="VIEW", required=True)
    for name, run, options in VIEWS:
        add_verb(views, name, run, options)
    lab = verbs.add_parser("lab", help="measurements of the architecture")
    labs = lab.add_subparsers(title="measurements", metavar="WHAT", required=True)
    for name, run, options in LABS:
        add_verb(labs, name, run, options)
    return parser


def add_verb(
    verbs: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    options: Callable[[argparse.ArgumentParser], None],
) -> None:
    """A verb is a function of the parsed options that returns the exit code; its docstring is
    its help."""
    said = run.__doc__ or ""
    verb = verbs.add_parser(name, help=said[0].lower() + said[1:].rstrip("."), description=said)
    options(verb)
    verb.add_argument("--json", action="store_true", help="one JSON object a line, for programs")
    verb.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verb.set_defaults(run=run)


def demo_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--out", type=Path, default=Path("regard-demo"), metavar="DIR")
    verb.add_argument("--quiet", action="store_true", help="no progress on standard error")


def demo(options: argparse.Namespace) -> int:
    """Train on the built-in corpus, translate, report: the whole story in minutes."""
    from regard.demo import demo as run_demo

    scores = run_demo(options.out, options.quiet, to_stderr=options.json)
    if options.json:
        print(json.dumps(scores))
    return 0


def train_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--task", help=" | ".join(TASKS))
    verb.add_argument(
        "--train", nargs="+", metavar="FILE",
        help="translate: SOURCE TARGET; classify: label<tab>text; generate, fill: text; answer, "
        "embed: JSON lines (docs/tasks.md)",
    )  # fmt: skip
    verb.add_argument("--valid", nargs="+", metavar="FILE", help="held-out data")
    verb.add_argument("--out", metavar="RUN", type=Path, required=True, help="the model's folder")
    verb.add_argument("--preset", help=" | ".join(PRESETS) + " (default: base)")
    verb.add_argument("--config", type=Path, metavar="FILE.yaml", help="sections of options")
    verb.add_argument("--from", type=Path, metavar="MODEL", dest="start_from", help="fine-tune it")
    verb.add_argument("--resume", action="store_true", help="go on with the run at --out")
    verb.add_argument("--seed", type=int, help="of weights, order and dropout")
    verb.add_argument("--dtype", choices=("auto", "float32", "bfloat16"))
    architecture_options(verb)
    machine_options(verb)


def train(options: argparse.Namespace) -> int:
    """Learn from text files and leave a model folder."""
    from regard.config import Config

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
            folder = folder_of(options.start_from)
            if not (folder / "config.yaml").is_file():
                raise InputError(f"{folder} is not a model: it has no config.yaml")
            start = Config.load(folder / "config.yaml")
            if options.resume and (options.out / "config.yaml").is_file():
                # What the run was begun with stays, even if its configuration was not checked then.
                start = replace(start, data=Config.load(options.out / "config.yaml").data)
        config = Config.build(task, options.preset, values, start)
    elif not options.resume or any(values.values()) or options.preset or options.start_from:
        raise InputError("--task and --train are needed (see: regard train --help)")
    from regard.run import train as run_training

    run_training(
        config, options.out, resume=options.resume, start_from=options.start_from,
        device=options.device, quiet=options.quiet, command=sys.argv[1:],
    )  # fmt: skip
    return 0


def evaluate_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--data", nargs="+", required=True, metavar="FILE", help="translate: SOURCE TARGET"
    )
    verb.add_argument("--against", type=Path, metavar="MODEL", help="is the difference real?")
    verb.add_argument("--samples", type=int, default=1000, metavar="N", help="of the bootstrap")
    decoding_options(verb)
    model_to_use(verb, "translate")


def evaluate(options: argparse.Namespace) -> int:
    """The task's metrics on given data, with confidence intervals; --against: compare two."""
    if options.samples < 1:
        raise InputError(f"--samples must be at least 1, not {options.samples}")
    decoding = chosen_decoding(options)
    from regard.evaluating import Report, evaluate_model

    report: Report = evaluate_model(options, decoding)
    print(json.dumps(report.to_dict(), ensure_ascii=False)) if options.json else report.show()
    return 0


def info_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "model", nargs="?", type=Path, metavar="MODEL", help="a folder, or box:translate, or:"
    )
    verb.add_argument("--preset", help=" | ".join(PRESETS) + " (default: base)")
    verb.add_argument("--vocab", type=int, help="vocabulary size (37000)")
    verb.add_argument(
        "--accept-changes", action="store_true",
        help="record the files of MODEL as they are now: after an intended change, load it again",
    )  # fmt: skip
    architecture_options(verb)


def info(options: argparse.Namespace) -> int:
    """Parameters by part, formula beside tensors; without anything: what is in the box."""
    chosen = (options.preset, options.vocab, options.style)
    if options.accept_changes and options.model is None:
        raise InputError("--accept-changes needs MODEL: the folder whose files were changed")
    if options.model is None and not options.assignments and set(chosen) == {None}:
        from regard.box.listing import show_box

        show_box(options.json)
        return 0
    preset, vocabulary = options.preset or "base", options.vocab
    values = {
        "style": options.style or STYLES[0],
        "vocabulary_size": 37_000 if vocabulary is None else vocabulary,
    }
    if options.model is None:
        config = ModelConfig.preset(
            preset, **values | section_settings(options.assignments, "model")
        )
    else:
        from regard.model_files import read_config

        if options.accept_changes:
            from regard.models import accept_changes

            names = ", ".join(accept_changes(options.model))
            print(f"{options.model} is accepted with {names} as they are now", file=sys.stderr)
        config = read_config(folder_of(options.model)).model
    from regard.view.info import final_scores, parameter_table

    table = parameter_table(config)
    scores = final_scores(folder_of(options.model)) if options.model else {}
    if options.json:
        print(json.dumps(table.to_dict() | ({"scores": scores} if scores else {})))
    else:
        table.show(str(options.model or preset))
        for name, value in scores.items():
            print(f"{name:16} {value}")
    return 0 if table.agrees else 1  # a formula that is not the model's is our fault


def pack_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("model", type=Path, metavar="RUN", help="the folder of a finished model")
    verb.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="of the small one")


def pack(options: argparse.Namespace) -> int:
    """Write a model's folder again with its weights in 8 bits: a quarter of the size."""
    from regard.box.pack import pack as pack_model

    made = pack_model(options.model, options.out)
    if options.json:
        print(json.dumps(vars(made) | {"folder": str(made.folder)}))
    else:
        print(
            f"{made.folder} is ready: {made.parameters:,} parameters, all files {made.size:,} "
            f"bytes (the weights alone were {made.before:,})"
        )
    return 0


def main() -> None:
    """Run the command line and turn every way it can end into an exit code."""
    # How long a thread spins before it sleeps, read when torch is loaded. The default spins for
    # milliseconds: on a machine that also does something else, training ran at half the speed.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    atexit.register(gc.freeze)  # what torch is made of goes with the process: no last look at it
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by who started us
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale is: so are our files
    try:
        with interruptible():
            options = build_parser().parse_args(sys.argv[1:] or ["--help"])
            with at_once(hurried(options)):
                code = options.run(options)
            sys.stdout.flush()  # here, where a closed pipe is understood
        sys.exit(code)
    except (InputError, TrainingFailed) as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more is written
        if isinstance(error, BrokenPipeError):  # `regard ... | head`: the reader has enough
            sys.exit(0)
        if "--debug" in sys.argv:
            traceback.print_exc()
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as stopped:
        if str(stopped):
            print(f"regard: {stopped}", file=sys.stderr)
        sys.exit(130)
