"""The commands that use a trained model: one for each task, and `regard search`.

Each reads texts, or lines of standard input, and prints one prediction for each, in order. A task
declares its own options and the format of its predictions. output.py prints them; it is imported
with torch when a command runs.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from regard.cli import options as shared
from regard.console import warn
from regard.errors import InputError
from regard.tasks.task import Task

if TYPE_CHECKING:
    from regard.predictor.model import Model

FEW = 2**18  # bytes of documents to search that are embedded while a person waits


def predict_options(verb: argparse.ArgumentParser, task: type[Task]) -> None:
    """The options of a task's command."""
    shared.text_options(verb, task.name, task.input_name)
    for option in task.options:
        shared.add_option(verb, option)
    if task.decodes:
        shared.decoding_options(verb, task.name)
    verb.set_defaults(task=task)


def predict(options: argparse.Namespace) -> int:
    """Print one prediction for each text; `options.task` is the task."""
    options.decoding = shared.chosen_decoding(options) if options.task.decodes else {}
    options.task.check_options(options)
    warn_file_name(options)
    from regard.cli.output import print_predictions

    model = opened(options)
    print_predictions(model, model.of(options.task), options)
    return 0


def search_options(verb: argparse.ArgumentParser) -> None:
    shared.text_options(verb, "embed", "QUERY")
    verb.add_argument(
        "--documents", required=True, type=shared.file_path, metavar="FILE",
        help="file with one document per line",
    )  # fmt: skip
    verb.add_argument(
        "--top", type=shared.bounded(int, 1, 1_000_000), default=5, metavar="N",
        help="number of results per query (default: 5)",
    )  # fmt: skip
    verb.add_argument(
        "--index", type=shared.file_path, metavar="DIR",
        help="folder to store the index in (default: the cache)",
    )  # fmt: skip
    verb.add_argument(
        "--rebuild", action="store_true", help="rebuild the index even if it is up to date"
    )


def search(options: argparse.Namespace) -> int:
    """Find the lines of a file that are most similar to a query; print score, line number, text."""
    warn_file_name(options)
    from regard.cli.output import print_hits

    print_hits(opened(options), options)
    return 0


def warn_file_name(options: argparse.Namespace) -> None:
    """Warn if the only text is the name of an existing file, whose lines were probably meant."""
    if len(options.texts) == 1 and os.path.isfile(name := options.texts[0]):
        verb = options.task.name if hasattr(options, "task") else "search"
        warn(
            f"{name!r} is the name of a file, but is used as a text; to read the lines of the "
            f"file: regard {verb} < {name}"
        )


def hurried(options: argparse.Namespace) -> bool:
    """Whether a person waits for one prediction. False if native code is required, or if there is
    so much input that compiling native code first is faster."""
    if not hasattr(options, "texts") or options.dtype == "int8":
        return False
    documents = getattr(options, "documents", None)
    if documents is not None and documents.is_file() and documents.stat().st_size > FEW:
        return False
    return bool(options.texts) or sys.stdin.isatty()


@contextmanager
def at_once(hurried: bool) -> Iterator[None]:
    """If a person waits: do not compile native code, and disable the garbage collector, which would
    visit the million objects that torch creates when it is imported."""
    if not hurried:
        yield
        return
    collecting = gc.isenabled()
    gc.disable()
    try:
        from regard.ops.cpu.build import later  # imports torch

        with later(True):
            yield
    finally:
        if collecting:
            gc.enable()


def opened(options: argparse.Namespace) -> Model:
    """The model that the options name."""
    from regard.device import keep_freed_memory
    from regard.predictor.loading import load

    if options.model is None:
        task = options.task.name if hasattr(options, "task") else "embed"
        raise InputError(f"-m is required: no model for the task {task} comes with the package")
    keep_freed_memory()
    return load(options.model, options.device, options.dtype)
