"""Print predictions for the texts of the command line, or for the lines of standard input.

There is one line of output for each line of input, in order. Lines are read in blocks, so memory
does not grow with their number. An error or a warning names the number of the line.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from regard.console import as_json, progress, warn
from regard.errors import InputError
from regard.predictor.model import Model
from regard.tasks.common import one_line
from regard.tasks.task import Task
from regard.text.lines import read_blocks

STDIN = "standard input"
Block = tuple[int, list[str], int]  # number of the first line, lines, bytes read so far


class Place(NamedTuple):
    """Where texts come from: what their lines are called, and the number of the first."""

    name: str
    first: int

    def line(self, i: int) -> str:
        return f"{self.name}:{self.first + i}"

    def warn(self, i: int, message: str) -> None:
        warn(f"{self.line(i)}: {message}")


def print_predictions(model: Model, task: Task, options: argparse.Namespace) -> None:
    """Print a prediction of the task for each text."""
    # The options are checked before anything is read.
    options.n_best = model.decoding(options.decoding).n_best
    task.check_model(model.config.model, options)
    with task.output(model.config.model, options) as store:
        streams = getattr(options, "stream", False)
        block = stream_block if streams else partial(print_block, store=store)
        run = partial(block, model, task, options)
        for_each_block(options, task.doing, run, task.block_size(options))


def print_block(
    model: Model,
    task: Task,
    options: argparse.Namespace,
    texts: list[str],
    place: Place,
    store: Callable[[Any], None] | None,
) -> None:
    """Print, or store, the predictions of a block of lines. The lines before one that is not valid
    are predicted before its error is raised."""
    inputs: list[Any] = []
    error: InputError | None = None
    for i, text in enumerate(texts):
        try:
            inputs.append(task.parse(text, options, model.longest, place.line(i)))
        except InputError as raised:
            error = raised
            break
    numbers = [i for i, one in enumerate(inputs) if one is not None]

    def warn(i: int, message: str) -> None:
        place.warn(numbers[i], message)

    predictions: dict[int, Any] = {}
    if numbers:
        arguments = {o.name: getattr(options, o.name) for o in task.options if o.argument}
        given = [inputs[i] for i in numbers]
        predicted = model.run(task, given, warn, options.decoding, **arguments)
        if store is not None:
            store(predicted)
            return
        predictions = dict(zip(numbers, predicted, strict=True))
    for i, text in enumerate(texts[: len(inputs)]):
        prediction = predictions.get(i)
        if options.json:
            print(as_json(task.to_json(text, prediction, options)))
        else:
            print(task.line(text, prediction, options))
    if error is not None:
        raise error


def stream_block(
    model: Model, task: Task, options: argparse.Namespace, texts: list[str], place: Place
) -> None:
    """Print the prediction of each text part by part."""
    prefix = getattr(options, "prefix", "")
    for i, text in enumerate(texts):
        warn = Place(place.name, place.first + i).warn
        if task.continues:
            print(text, end="", flush=True)
        for part in model.stream(text, prefix=prefix, warn=warn, **options.decoding):
            whole = task.continues and options.texts
            print(part if whole else one_line(part), end="", flush=True)
        print(flush=True)


def print_hits(model: Model, options: argparse.Namespace) -> None:
    """Print the best lines of --documents for each query."""
    model.decoding({})
    index = model.index(
        options.documents, options.index, quiet=options.quiet, rebuild=options.rebuild
    )

    def search(texts: list[str], place: Place) -> None:
        vectors = model.embed(texts, warn=place.warn)
        for query, hits in zip(texts, index.search(vectors, options.top), strict=True):
            if options.json:
                print(as_json({"query": query, "hits": [hit._asdict() for hit in hits]}))
                continue
            for score, line, text in hits:
                print(f"{score:.4f}\t{line}\t{one_line(text)}")
            if len(options.texts) != 1:  # several queries, or an unknown number of them
                print()

    for_each_block(options, "searching", search)


def for_each_block(
    options: argparse.Namespace,
    doing: str,
    run: Callable[[list[str], Place], None],
    size: int | None = None,
) -> None:
    """Run a function on the texts of the command line, or on blocks of lines of standard input, of
    at most `size` lines."""
    total: float | None = None
    blocks: Iterator[Block]
    if options.texts:
        blocks, name = iter([(1, options.texts, 0)]), "text"
    else:
        file = sys.stdin.fileno()
        status = os.fstat(file)
        total = status.st_size if stat.S_ISREG(status.st_mode) else None
        blocks, name = read_blocks(file, STDIN), STDIN
    # Predictions that appear on the screen show the progress themselves.
    quiet = options.quiet or sys.stdout.isatty() or bool(options.texts)
    with progress(doing, total, quiet) as show:
        for first, texts, read in blocks:
            for start in range(0, len(texts), size or len(texts)):
                some = texts[start : start + (size or len(texts))]
                run(some, Place(name, first + start))
                sys.stdout.flush()
            show(read)
