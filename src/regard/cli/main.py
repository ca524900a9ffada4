"""`regard VERB`: thin. Parse, call, print.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 the work
failed, 2 the user's input is at fault (one line, no traceback; `--debug` shows it), 130
interrupted. torch is imported inside the verbs, so that every `--help` answers at once.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import io
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from regard import __version__
from regard.cli.interrupt import interruptible
from regard.cli.lab import LABS
from regard.cli.options import bounded, file_name, file_path, shortened
from regard.cli.predict import (
    VERBS,
    architecture_options,
    at_once,
    chosen_decoding,
    decoding_options,
    hurried,
    machine_options,
    model_to_use,
)
from regard.cli.view import VIEWS
from regard.config.model import PRESETS, STYLES, ModelConfig
from regard.config.sections import TASKS
from regard.config.settings import read_yaml, section_settings, settings
from regard.console import as_json, visible_line, warn
from regard.errors import InputError, TrainingFailed
from regard.files import CHOSEN, FULL
from regard.training.shipped import folder_of


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, which main() prints like all others."""

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stdout).write(message)  # argparse's own method ignores a full disk

    def error(self, message: str) -> NoReturn:
        # A message of options.py ("argument -m/--model: must be ...") needs no hint at --help.
        if bound := re.fullmatch(r"argument (?:-\w/)?(\S+): (must .*)", message, re.DOTALL):
            raise InputError(f"{bound[1]} {bound[2]}")
        raise InputError(f"{message} (see: {self.prog} --help)")


def build_parser() -> Parser:
    parser = Parser(
        prog="regard", description="The Transformer, whole: learn it, train it, use it."
    )
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
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
    text = run.__doc__ or ""
    verb = verbs.add_parser(name, help=text[0].lower() + text[1:].rstrip("."), description=text)
    options(verb)
    verb.add_argument("--json", action="store_true", help="print one JSON object per line")
    verb.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verb.set_defaults(run=run)


def demo_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--out", type=file_path, default=Path("regard-demo"), metavar="DIR")
    verb.add_argument("--quiet", action="store_true", help="no progress on standard error")


def demo(options: argparse.Namespace) -> int:
    """Train on the built-in corpus, translate and report, in a few minutes."""
    from regard.cli.demo import demo as run_demo

    scores = run_demo(options.out, options.quiet, to_stderr=options.json)
    if options.json:
        print(as_json(scores))
    return 0


def train_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--task", help=" | ".join(TASKS))
    verb.add_argument(
        "--train", nargs="+", type=file_name, metavar="FILE",
        help="translate: SOURCE TARGET; classify: label<tab>text; generate, fill: text; answer, "
        "embed: JSON lines (docs/tasks.md)",
    )  # fmt: skip
    verb.add_argument("--valid", nargs="+", type=file_name, metavar="FILE", help="held-out data")
    verb.add_argument(
        "--out", metavar="RUN", type=file_path, required=True, help="folder of the run"
    )
    verb.add_argument("--preset", help=" | ".join(PRESETS) + " (default: base)")
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
    from regard.config.sections import Config

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
            start = Config.load(existing_model(options.start_from) / "config.yaml")
            if options.resume and (options.out / "config.yaml").is_file():
                # What the run was begun with stays, even if its configuration was not checked then.
                start = replace(start, data=Config.load(options.out / "config.yaml").data)
        config = Config.build(task, options.preset, values, start)
    elif not options.resume or any(values.values()) or options.preset or options.start_from:
        raise InputError("--task and --train are needed (see: regard train --help)")
    from regard.tasks.train import train as run_training

    run_training(
        config, options.out, resume=options.resume, force=options.force,
        start_from=options.start_from, device=options.device, quiet=options.quiet,
        command=sys.argv[1:],
    )  # fmt: skip
    return 0


def existing_model(model: Path) -> Path:
    """The folder of a model; refuses a path without one."""
    folder = folder_of(model)
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} is not a model: it has no config.yaml")
    return folder


def evaluate_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--data",
        nargs="+",
        type=file_name,
        required=True,
        metavar="FILE",
        help="translate: SOURCE TARGET",
    )
    verb.add_argument("--against", type=file_path, metavar="MODEL", help="compare with it")
    verb.add_argument(
        "--samples", type=bounded(int, 1, 10_000), default=1000, metavar="N",
        help="bootstrap samples (default: 1000)",
    )  # fmt: skip
    decoding_options(verb)
    model_to_use(verb, "translate")


def evaluate(options: argparse.Namespace) -> int:
    """Compute the task's metrics with confidence intervals; --against: compare two models."""
    decoding = chosen_decoding(options)
    from regard.cli.evaluating import Report, evaluate_model

    report: Report = evaluate_model(options, decoding)
    print(as_json(report.to_dict())) if options.json else report.show()
    return 0


def info_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "model", nargs="?", type=file_path, metavar="MODEL", help="a model folder or box:translate"
    )
    verb.add_argument("--preset", help=" | ".join(PRESETS) + " (default: base)")
    verb.add_argument(
        "--vocab", type=bounded(int, 1, 10_000_000), metavar="N",
        help="vocabulary size (default: 37000)",
    )  # fmt: skip
    verb.add_argument(
        "--accept-changes", action="store_true",
        help="record the files of MODEL as they are now, after an intended change",
    )  # fmt: skip
    architecture_options(verb)


def info(options: argparse.Namespace) -> int:
    """Show the parameters of a model by part; without arguments: list the models in the box."""
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
        from regard.training.model_folder import read_config

        if options.accept_changes:
            from regard.predictor import accept_changes

            names = ", ".join(accept_changes(options.model))
            warn(f"{options.model} now accepts {names} as they are")
        config = read_config(existing_model(options.model)).model
    from regard.training.model_folder import final_scores
    from regard.view.info import parameter_table

    table = parameter_table(config)
    scores = final_scores(folder_of(options.model)) if options.model else {}
    if options.json:
        print(as_json(table.to_dict() | ({"scores": scores} if scores else {})))
    else:
        table.show(str(options.model or preset))
        for name, value in scores.items():
            print(visible_line(f"{name:16} {value}"))
    return 0 if table.agrees else 1  # a disagreement is a bug in regard


def pack_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("model", type=file_path, metavar="RUN", help="the folder of a finished model")
    verb.add_argument(
        "--out", type=file_path, required=True, metavar="FOLDER", help="folder of the packed model"
    )


def pack(options: argparse.Namespace) -> int:
    """Write a copy of a model with int8 weights, a quarter of the size."""
    from regard.box.pack import pack as pack_model

    made = pack_model(options.model, options.out)
    if options.json:
        print(as_json(vars(made) | {"folder": str(made.folder)}))
    else:
        print(
            f"{visible_line(str(made.folder))} is ready: {made.parameters:,} parameters, all files "
            f"{made.size:,} bytes (the weights alone were {made.before:,})"
        )
    return 0


def main() -> None:
    """Run the command line and turn every way it can end into an exit code."""
    # How long a thread spins before it sleeps, read when torch is loaded. The default spins for
    # milliseconds: on a machine that also does something else, training ran at half the speed.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    atexit.register(gc.freeze)  # do not collect torch's objects when the process ends
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Independent of the locale, as all files of regard are UTF-8.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        with interruptible():
            code = run(sys.argv[1:])
            sys.stdout.flush()  # inside of `try`: a closed pipe or a full disk is reported below
    except (InputError, TrainingFailed, OSError) as error:
        if isinstance(error, BrokenPipeError):  # `regard ... | head`: the reader is done
            code = 0
        else:
            if "--debug" in sys.argv:
                traceback.print_exc()
            warn(describe(error))
            code = exit_code(error)
        if output_fails():  # the buffer cannot be written, not even at exit: discard it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as stopped:
        if str(stopped):
            warn(str(stopped))
        code = 130
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Parse the command line and run its verb."""
    for word in arguments:
        if any("\ud800" <= sign <= "\udfff" for sign in word):
            raise InputError(f"an argument is not UTF-8: {shortened(word)!r}")
    try:
        options = build_parser().parse_args(arguments or ["--help"])
    except SystemExit:  # --help or --version, which has been printed
        return 0
    with at_once(hurried(options)):
        code: int = options.run(options)
    return code


def exit_code(error: Exception) -> int:
    """2 if a different command line would help, 1 if the work failed.

    A full disk is always 1, even if a component reports it as an InputError.
    """
    if isinstance(error, OSError):
        return 2 if error.errno in CHOSEN else 1
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return 1
        cause = cause.__context__
    return 2 if isinstance(error, InputError) else 1


def describe(error: Exception) -> str:
    """The message of an error in one line; an OSError is described with its file."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    # Errors of file writers have a file name (files.named): this one came from print().
    where = "standard output: " if error.errno in FULL | {errno.EIO} else ""
    return f"{where}{error.strerror}"


def output_fails() -> bool:
    """Whether buffered text cannot be written to standard output."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False
