"""Answers as they are printed: one line for a person, one JSON object for a program."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from regard.decoding.answers import Answer
from regard.predictor import Model
from regard.tasks.translate import Translate
from regard.text.tokenizer import Tokenizer


def numbers_of(vector: list[float]) -> str:
    return " ".join(f"{number:.6f}" for number in vector)


def one_line(text: str) -> str:
    """A model may write anything, but a line end or a tab would look like another answer."""
    return text.replace("\n", " ").replace("\r", " ").replace("\t", " ")


def brief(answer: Answer, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "score": answer.score, "logprob": answer.logprob, "stopped": answer.stopped,
        "tokens": tokenizer.tokens(answer.tokens), "logprobs": answer.logprobs,
    }  # fmt: skip


def every_answer(answer: Answer, tokenizer: Tokenizer, name: str) -> list[dict[str, Any]]:
    """The n-best list, the first included; name: what an answer is called."""
    return [{name: one.text} | brief(one, tokenizer) for one in (answer, *answer.others)]


def details(answer: Answer, model: Model, asked: Collection[str] = ()) -> dict[str, Any]:
    """An answer for programs; `asked`: what to tell beside the usual."""
    task = model.of(Translate)
    spell = task.target.tokens
    told = brief(answer, task.target)
    if answer.pieces:
        told["pieces"] = [
            {"text": task.source.decode(piece.source), "translation": piece.text}
            | details(piece, model, asked)
            for piece in answer.pieces
        ]
        return told
    if "n_best" in asked:
        told["n_best"] = every_answer(answer, task.target, "translation")
    if "alternatives" in asked:
        told["alternatives"] = [
            [{"token": spell([token])[0], "logprob": value} for token, value in place]
            for place in answer.alternatives
        ]
    if "history" in asked:
        told["history"] = [
            [vars(one) | {"token": spell([one.token])[0]} for one in step]
            for step in answer.history
        ]
    if "attention" in asked:
        # Row i of a head is where it looked after it had read token i of these: <bos> and what it
        # had written; of a decoder by itself the source, and what it had written.
        alone = task.style == "decoder"
        told["source_tokens"] = task.source.tokens(answer.source)
        begin = list(answer.source) if alone else [Tokenizer.bos]
        told["read_tokens"] = spell([*begin, *answer.tokens])[:-1]
        told["attention"] = {
            part: [[rounded(head) for head in layer.float().tolist()] for layer in layers]
            for part, layers in answer.attention.items()
        }
    return told


def rounded(matrix: list[list[float]]) -> list[list[float]]:
    return [[round(weight, 6) for weight in row] for row in matrix]
