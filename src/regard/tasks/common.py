"""Functions that several tasks share: checks, warnings, and parts of printed predictions."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from regard.errors import InputError

if TYPE_CHECKING:
    from regard.tasks.runtime import Prediction, Tokenizer
    from regard.tasks.task import Context


def in_pieces(answers: Sequence[Prediction]) -> dict[int, int]:
    """The texts with a sentence that is too long for one piece, and the pieces of the text."""
    counts = {}
    for i, answer in enumerate(answers):
        parts = answer.sentences or [answer]
        if any(part.pieces for part in parts):
            counts[i] = sum(len(part.pieces) or 1 for part in parts)
    return counts


def count_cut(tokenizer: Tokenizer, longest: int, texts: Sequence[str]) -> int:
    """The number of texts of which a model that reads `longest` tokens, one of them special, reads
    only the beginning."""
    return sum(len(ids) >= longest for ids in tokenizer.encode_batch(list(texts)))


def warn_cut(tokenizer: Tokenizer, texts: Sequence[str], context: Context) -> None:
    """Warn about texts of which only the beginning is read."""
    for i, ids in enumerate(tokenizer.encode_batch(list(texts))):
        if len(ids) >= context.longest:
            context.warn_long(i, "only its beginning was read")


def refuse_nan(values: Iterable[float]) -> None:
    """Raise an error if a model computed NaN, which is possible with finite weights."""
    if any(map(math.isnan, values)):
        raise InputError(
            "the model computed NaN: its weights are damaged or too large for its precision; load "
            "it with dtype float32, or train it again"
        )


def exclude(options: Namespace, one: str, *others: str) -> None:
    """Refuse options of a command that cannot be combined."""
    for other in others:
        if getattr(options, one.replace("-", "_")) and getattr(options, other.replace("-", "_")):
            raise InputError(f"--{one} and --{other} cannot be combined")


def one_line(text: str) -> str:
    """A text without line ends and tabs, which would look like further predictions."""
    return text.replace("\n", " ").replace("\r", " ").replace("\t", " ")


def fields_of(answer: Prediction, tokenizer: Tokenizer) -> dict[str, Any]:
    """The fields that every output of a search has in JSON."""
    return {
        "score": answer.score, "logprob": answer.logprob, "stopped": answer.stopped,
        "tokens": tokenizer.tokens(answer.token_ids), "logprobs": answer.logprobs,
    }  # fmt: skip


def n_best(answer: Prediction, tokenizer: Tokenizer, name: str) -> dict[str, Any]:
    """The field of the n-best list, including the first; name: the key of a text."""
    outputs = answer.n_best
    return {"n_best": [{name: output.text} | fields_of(output, tokenizer) for output in outputs]}


def rounded(matrix: list[list[float]]) -> list[list[float]]:
    """Numbers for JSON, with six digits after the point."""
    return [[round(value, 6) for value in row] for row in matrix]
