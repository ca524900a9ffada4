"""From texts to printed answers: what `regard translate` does with arguments and with lines.

One line out for one line in, in order; lines come in blocks, so memory does not grow with their
number. Whatever is wrong is said with the number of the line it is wrong in.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

from regard.decoding.answers import Answer
from regard.errors import InputError
from regard.models import Model
from regard.text.corpus import progress
from regard.text.lines import read_blocks
from regard.text.tokenizer import SPECIALS, Tokenizer

STDIN = "standard input"
Block = tuple[int, list[str], int]  # number of the first line, lines, bytes read so far


def answer_lines(model: Model, options: argparse.Namespace, decoding: dict[str, Any]) -> None:
    """Print an answer for each text of the command line, or for each line of standard input."""
    model.decoding(decoding)  # complain before anything is read
    total: float | None = None
    blocks: Iterator[Block]
    if options.texts:
        blocks, name = iter([(1, options.texts, 0)]), "text"
    else:
        file = sys.stdin.fileno()
        status = os.fstat(file)
        total = status.st_size if stat.S_ISREG(status.st_mode) else None
        blocks, name = read_blocks(file, STDIN), STDIN
    # Where answers appear on the screen they are their own progress.
    quiet = options.quiet or sys.stdout.isatty() or bool(options.texts)
    with progress("translating", total, quiet) as show:
        for first, texts, read in blocks:
            _answer_block(model, options, decoding, texts, name, first)
            sys.stdout.flush()
            show(read)


def _answer_block(
    model: Model,
    options: argparse.Namespace,
    decoding: dict[str, Any],
    texts: list[str],
    name: str,
    first: int,
) -> None:
    if options.stream:
        for text in texts:
            for part in model.stream(text, prefix=options.prefix, **decoding):
                print(one_line(part), end="", flush=True)
            print(flush=True)
        return
    if options.score:
        pairs = [_pair(text, f"{name}:{first + i}") for i, text in enumerate(texts)]
        for (source, target), answer in zip(pairs, model.score(pairs), strict=True):
            about = {"text": source, "translation": target}
            told = about | details(answer, model.task.target)
            print(json.dumps(told, ensure_ascii=False) if options.json else f"{answer.score:.6f}")
        return

    def warn(i: int, said: str) -> None:
        print(f"regard: {name}:{first + i}: {said}", file=sys.stderr)

    answers = model.answers(
        texts, prefix=options.prefix, alternatives=options.alternatives, history=options.history,
        attention=options.attention, warn=warn, **decoding,
    )  # fmt: skip
    for text, answer in zip(texts, answers, strict=True):
        if options.json:
            told = {"text": text, "translation": answer.text} | details(answer, model.task.target)
            if options.attention:
                tokenizer = model.task.source
                ids = [*tokenizer.encode(text), tokenizer.eos]
                told["source_tokens"] = tokenizer.tokens(ids)
            print(json.dumps(told, ensure_ascii=False))
        else:
            print("\t".join(one_line(one.text) for one in (answer, *answer.others)))


def _pair(text: str, where: str) -> tuple[str, str]:
    source, tab, target = text.partition("\t")
    if not tab:
        raise InputError(f"{where}: --score needs SOURCE<tab>TRANSLATION, but there is no tab")
    return source, target


def one_line(text: str) -> str:
    """A model may write anything, but a line end or a tab would look like another answer."""
    return text.replace("\n", " ").replace("\r", " ").replace("\t", " ")


def details(answer: Answer, tokenizer: Tokenizer) -> dict[str, Any]:
    """An answer for programs; only what was asked for is there."""

    def brief(one: Answer) -> dict[str, Any]:
        return {
            "score": one.score, "logprob": one.logprob, "stopped": one.stopped,
            "tokens": tokenizer.tokens(one.tokens), "logprobs": one.logprobs,
        }  # fmt: skip

    told = brief(answer)
    if answer.others:
        every = (answer, *answer.others)
        told["n_best"] = [{"translation": one.text} | brief(one) for one in every]
    if answer.alternatives:
        told["alternatives"] = [
            [{"token": tokenizer.tokens([token])[0], "logprob": value} for token, value in place]
            for place in answer.alternatives
        ]
    if answer.history:
        told["history"] = [
            [vars(one) | {"token": tokenizer.tokens([one.token])[0]} for one in step]
            for step in answer.history
        ]
    if answer.attention:
        # Row i of a head is where it looked when token i was chosen: the decoder had read <bos>
        # and the tokens before it.
        told["read_tokens"] = [SPECIALS[tokenizer.bos], *told["tokens"][:-1]]
        told["attention"] = {
            part: [[rounded(head) for head in layer.float().tolist()] for layer in layers]
            for part, layers in answer.attention.items()
        }
    if answer.pieces:
        told["pieces"] = [{"translation": p.text} | details(p, tokenizer) for p in answer.pieces]
    return told


def rounded(matrix: list[list[float]]) -> list[list[float]]:
    return [[round(weight, 6) for weight in row] for row in matrix]
