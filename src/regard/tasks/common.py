"""Functions that several tasks share: checks, warnings, and the output of predictions."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from regard.errors import DamagedModel, InputError

if TYPE_CHECKING:
    from regard.tasks.runtime import Prediction, Tokenizer
    from regard.tasks.task import Context, Task


def in_pieces(predictions: Sequence[Prediction]) -> dict[int, int]:
    """Find the texts that were decoded in pieces: {index of the text: number of its pieces}."""
    counts = {}
    for i, prediction in enumerate(predictions):
        parts = prediction.sentences or [prediction]
        if any(part.pieces for part in parts):
            counts[i] = sum(len(part.pieces) or 1 for part in parts)
    return counts


def count_cut(task: Task, texts: Sequence[str], longest: int | None = None) -> int:
    """Count the texts that, with their special tokens, do not fit into the input of a model;
    longest: the largest number of input tokens, if it is not that of the task."""
    room = task.text_room(longest)
    return sum(len(ids) > room for ids in task.tokenizer.encode_batch(list(texts)))


def warn_cut(task: Task, texts: Sequence[str], context: Context) -> None:
    """Warn about texts that are too long, of which the model reads only the beginning."""
    room = task.text_room(context.longest)
    for i, ids in enumerate(task.tokenizer.encode_batch(list(texts))):
        if len(ids) > room:
            context.warn_long(i, "only its beginning was read")


def refuse_nan(values: Iterable[float]) -> None:
    """Raise a DamagedModel if a value is NaN, which a model can compute from finite weights."""
    if any(map(math.isnan, values)):
        raise DamagedModel(
            "the model computed NaN: its weights are damaged or too large for its precision; load "
            "it with dtype float32, or train it again"
        )


def exclude(options: Namespace, name: str, *others: str) -> None:
    """Raise an InputError if the option `name` of a command is combined with one of the others."""
    for other in others:
        if getattr(options, name.replace("-", "_")) and getattr(options, other.replace("-", "_")):
            raise InputError(f"--{name} and --{other} cannot be combined")


def check_stream(options: Namespace) -> None:
    """Raise an InputError if the options of a command ask for a stream of several outputs."""
    if options.stream and options.decoding.get("n_best", 1) != 1:
        raise InputError("--stream and --n-best cannot be combined: a stream has one output")


def one_line(text: str) -> str:
    """Replace line breaks and tabs, which separate predictions in the output, by spaces."""
    return text.replace("\n", " ").replace("\r", " ").replace("\t", " ")


def fields_of(prediction: Prediction, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the fields that the output of every search has in JSON."""
    return {
        "score": prediction.score, "logprob": prediction.logprob, "stopped": prediction.stopped,
        "tokens": tokenizer.tokens(prediction.token_ids), "logprobs": prediction.logprobs,
    }  # fmt: skip


def n_best(prediction: Prediction, tokenizer: Tokenizer, name: str) -> dict[str, Any]:
    """Return the n-best list for JSON, including the best output; `name` is the key of a text."""
    outputs = prediction.n_best
    return {"n_best": [{name: output.text} | fields_of(output, tokenizer) for output in outputs]}


def rounded(matrix: list[list[float]]) -> list[list[float]]:
    """Round the numbers of a matrix to six decimal places, for JSON."""
    return [[round(value, 6) for value in row] for row in matrix]
