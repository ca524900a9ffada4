"""Print predictions for the texts of the command line, or for the lines of standard input.

There is one line of output for each line of input, in order, and it is written as soon as it and
all lines before it are known (ordered.py). Lines are read in blocks, so memory does not grow with
their number. An error or a warning names the number of the line.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

from regard.cli.ordered import Pace, results_in_order
from regard.console import as_json, progress, warn
from regard.errors import InputError
from regard.predictor.model import Model
from regard.tasks.common import one_line
from regard.tasks.task import Task
from regard.text.lines import read_blocks

STDIN = "standard input"
Block = tuple[int, list[str], int]  # number of the first line, lines, bytes read so far
Advance = Callable[[Sequence[str]], None]  # called with lines that have been processed
GPU_POOL = 4096  # a GPU needs large batches, and computes this many lines in a few seconds


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
    on_gpu = model.transformer.output_matrix().is_cuda
    pace = Pace(inf, GPU_POOL) if on_gpu else Pace()
    pace.pool = min(pace.pool, task.block_size(options) or pace.pool)
    with task.output(model.config.model, options) as store:
        streams = getattr(options, "stream", False)
        block = stream_block if streams else partial(print_block, pace=pace, store=store)
        for_each_block(options, task.doing, partial(block, model, task, options))


def print_block(
    model: Model,
    task: Task,
    options: argparse.Namespace,
    texts: list[str],
    place: Place,
    advance: Advance,
    pace: Pace,
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
    samples = bool(model.decoding(options.decoding).temperature)
    arguments = {o.name: getattr(options, o.name) for o in task.options if o.argument}
    warnings: dict[int, list[str]] = {}

    def compute(group: list[int]) -> list[Any]:
        numbers = [i for i in group if inputs[i] is not None]

        def warn(i: int, message: str) -> None:
            warnings.setdefault(numbers[i], []).append(message)

        predictions: dict[int, Any] = {}
        if numbers:
            chosen = [inputs[i] for i in numbers]
            predicted = model.run(task, chosen, warn, options.decoding, **arguments)
            predictions = dict(zip(numbers, predicted, strict=True))
        return [predictions.get(i) for i in group]

    sizes = [len(text) for text in texts[: len(inputs)]]
    for group, finished in results_in_order(sizes, compute, pace):
        for i, prediction in finished:
            for message in warnings.pop(i, []):
                place.warn(i, message)
            outputs = len(getattr(prediction, "n_best", ())) or options.n_best
            if samples and outputs < options.n_best and texts[i].strip():
                place.warn(i, few_outputs(outputs, options.n_best))
        if store is not None and finished:
            store([prediction for _, prediction in finished])
        for i, prediction in finished if store is None else ():
            if options.json:
                print(as_json(task.to_json(texts[i], prediction, options)))
            else:
                print(task.line(texts[i], prediction, options))
        sys.stdout.flush()
        advance([texts[i] for i in group])
    if error is not None:
        raise error


def few_outputs(count: int, requested: int) -> str:
    """The warning that a search or sampling has returned fewer outputs than requested."""
    different = "output was" if count == 1 else "outputs were"
    return f"only {count} different {different} found, but {requested} were requested"


def stream_block(
    model: Model,
    task: Task,
    options: argparse.Namespace,
    texts: list[str],
    place: Place,
    advance: Advance,
) -> None:
    """Print the prediction of each text part by part."""
    own = {name: getattr(options, name) for name in ("prefix", "split") if name in options}
    for i, text in enumerate(texts):
        warn = Place(place.name, place.first + i).warn
        if task.continues:
            print(text, end="", flush=True)
        for part in model.stream(text, **own, warn=warn, **options.decoding):
            whole = task.continues and options.texts
            print(part if whole else one_line(part), end="", flush=True)
        print(flush=True)
        advance([text])


def print_hits(model: Model, options: argparse.Namespace) -> None:
    """Print the best lines of --documents for each query."""
    model.decoding({})
    index = model.index(
        options.documents, options.index, quiet=options.quiet, rebuild=options.rebuild
    )

    def search(texts: list[str], place: Place, advance: Advance) -> None:
        vectors = model.embed(texts, warn=place.warn)
        for query, hits in zip(texts, index.search(vectors, options.top), strict=True):
            if options.json:
                print(as_json({"query": query, "hits": [hit._asdict() for hit in hits]}))
                continue
            for score, line, text in hits:
                print(f"{score:.4f}\t{line}\t{one_line(text)}")
            if len(options.texts) != 1:  # several queries, or an unknown number of them
                print()
        sys.stdout.flush()
        advance(texts)

    for_each_block(options, "searching", search)


def for_each_block(
    options: argparse.Namespace, doing: str, run: Callable[[list[str], Place, Advance], None]
) -> None:
    """Run a function on the texts of the command line, or on blocks of lines of standard input."""
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
    done = 0  # bytes
    with progress(doing, total, quiet) as show:

        def advance(lines: Sequence[str]) -> None:
            nonlocal done
            done += sum(len(line.encode(errors="replace")) + 1 for line in lines)
            show(done)

        for first, texts, _ in blocks:
            run(texts, Place(name, first), advance)
