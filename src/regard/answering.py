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
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from regard.decoding.answers import Answer
from regard.errors import InputError
from regard.models import Model, Warn
from regard.text.corpus import progress
from regard.text.lines import read_blocks
from regard.text.tokenizer import Tokenizer

STDIN = "standard input"
DETAILED = 64  # lines that are worked on together when everything about them is told
Block = tuple[int, list[str], int]  # number of the first line, lines, bytes read so far


def answer_lines(model: Model, options: argparse.Namespace, decoding: dict[str, Any]) -> None:
    """Print an answer for each text of the command line, or for each line of standard input."""
    chosen = model.decoding(decoding)  # complain before anything is read
    total: float | None = None
    blocks: Iterator[Block]
    if options.texts:
        for i, text in enumerate(options.texts, 1):
            if any("\ud800" <= sign <= "\udfff" for sign in text):
                raise InputError(f"text:{i}: not UTF-8")
        blocks, name = iter([(1, options.texts, 0)]), "text"
    else:
        file = sys.stdin.fileno()
        status = os.fstat(file)
        total = status.st_size if stat.S_ISREG(status.st_mode) else None
        blocks, name = read_blocks(file, STDIN), STDIN
    printer = Printer(model, options, decoding | {"n_best": chosen.n_best}, name)
    work = printer.stream if options.stream else printer.score if options.score else printer.answer
    # Where answers appear on the screen they are their own progress.
    quiet = options.quiet or sys.stdout.isatty() or bool(options.texts)
    with progress("translating", total, quiet) as show:
        # Details of a line are many numbers: fewer lines at a time.
        detailed = options.attention or options.history or options.alternatives
        size = DETAILED if detailed else sys.maxsize
        for first, texts, read in blocks:
            for start in range(0, len(texts), size):
                work(texts[start : start + size], first + start)
                sys.stdout.flush()
            show(read)


def warner(name: str, first: int) -> Warn:
    """Says on standard error what is to be said of a line."""

    def warn(i: int, said: str) -> None:
        print(f"regard: {name}:{first + i}: {said}", file=sys.stderr)

    return warn


@dataclass(frozen=True)
class Printer:
    """Prints what was asked for of a block of lines, of which the first has the number `first`."""

    model: Model
    options: argparse.Namespace
    decoding: dict[str, Any]
    name: str  # of where the lines come from

    def stream(self, texts: list[str], first: int) -> None:
        for i, text in enumerate(texts):
            warn = warner(self.name, first + i)
            for part in self.model.stream(
                text, prefix=self.options.prefix, warn=warn, **self.decoding
            ):
                print(one_line(part), end="", flush=True)
            print(flush=True)

    def score(self, texts: list[str], first: int) -> None:
        bad = next((i for i, t in enumerate(texts) if t.strip() and "\t" not in t), None)
        numbers = [i for i, text in enumerate(texts[:bad]) if text.strip()]
        pairs = [texts[i].partition("\t")[::2] for i in numbers]

        def warn(i: int, said: str) -> None:
            warner(self.name, first)(numbers[i], said)

        scored = dict(zip(numbers, self.model.score(pairs, warn=warn), strict=True))
        for i, text in enumerate(texts[:bad]):
            source, _, target = text.partition("\t")
            answer = scored.get(i, Answer([], [], 0.0, "empty"))
            told = {"text": source, "translation": target} | details(answer, self.model)
            plain = f"{answer.logprob:.6f}" if i in scored else ""
            print(self._json(told) if self.options.json else plain)
        if bad is not None:
            where = f"{self.name}:{first + bad}"
            raise InputError(f"{where}: --score needs SOURCE<tab>TRANSLATION, but there is no tab")

    def answer(self, texts: list[str], first: int) -> None:
        names = ("alternatives", "history", "attention")
        wanted = {name: getattr(self.options, name) for name in names}
        answers = self.model.answers(
            texts, prefix=self.options.prefix, warn=warner(self.name, first), **wanted,
            **self.decoding,
        )  # fmt: skip
        asked = {name for name, value in wanted.items() if value}
        asked |= {"n_best"} if self.decoding["n_best"] > 1 else set()
        for text, answer in zip(texts, answers, strict=True):
            if self.options.json:
                told = {"text": text, "translation": answer.text}
                print(self._json(told | details(answer, self.model, asked)))
            else:
                print("\t".join(one_line(one.text) for one in (answer, *answer.others)))

    @staticmethod
    def _json(told: dict[str, Any]) -> str:
        return json.dumps(told, ensure_ascii=False)


def one_line(text: str) -> str:
    """A model may write anything, but a line end or a tab would look like another answer."""
    return text.replace("\n", " ").replace("\r", " ").replace("\t", " ")


def details(answer: Answer, model: Model, asked: Collection[str] = ()) -> dict[str, Any]:
    """An answer for programs; `asked`: what to tell beside the usual."""
    spell = model.task.target.tokens

    def brief(one: Answer) -> dict[str, Any]:
        return {
            "score": one.score, "logprob": one.logprob, "stopped": one.stopped,
            "tokens": spell(one.tokens), "logprobs": one.logprobs,
        }  # fmt: skip

    told = brief(answer)
    if answer.pieces:
        told["pieces"] = [
            {"text": model.task.source.decode(piece.source), "translation": piece.text}
            | details(piece, model, asked)
            for piece in answer.pieces
        ]
        return told
    if "n_best" in asked:
        every = (answer, *answer.others)
        told["n_best"] = [{"translation": one.text} | brief(one) for one in every]
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
        # Row i of a head is where it looked when token i was chosen: the decoder had read <bos>
        # and the tokens before it.
        told["source_tokens"] = model.task.source.tokens(answer.source)
        told["read_tokens"] = spell([Tokenizer.bos, *answer.tokens])[:-1]
        told["attention"] = {
            part: [[rounded(head) for head in layer.float().tolist()] for layer in layers]
            for part, layers in answer.attention.items()
        }
    return told


def rounded(matrix: list[list[float]]) -> list[list[float]]:
    return [[round(weight, 6) for weight in row] for row in matrix]
