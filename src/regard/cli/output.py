"""From texts to printed answers: what the verbs do with arguments and with lines.

One line out for one line in, in order; lines come in blocks, so memory does not grow with their
number. Whatever is wrong is said with the number of the line it is wrong in.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from regard.cli.details import brief, details, every_answer, numbers_of, one_line, rounded
from regard.console import as_json, progress, warn
from regard.decoding.answers import Answer
from regard.errors import InputError
from regard.predictor import Model
from regard.tasks.answer import Asked, Questions
from regard.tasks.classify import Classify
from regard.tasks.fill import MASK, Fill
from regard.tasks.generate import Generate
from regard.tasks.task import Task
from regard.tasks.translate import Translate
from regard.text.lines import read_blocks
from regard.text.vectors import VectorFile

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


class Printer(ABC):
    """Prints the answers to a block of lines."""

    kind: ClassVar[type[Task] | None] = None  # what the model must have been trained to do

    def __init__(
        self, model: Model, options: argparse.Namespace, decoding: dict[str, Any] | None = None
    ) -> None:
        if self.kind is not None:
            model.of(self.kind)
        self.model, self.options = model, options
        self.decoding = decoding or {}
        model.decoding(self.decoding)  # complain before anything is read

    @abstractmethod
    def print(self, texts: list[str], place: Place) -> None:
        """Print an answer for each text, in order."""


def answer_lines(
    printer: Printer, options: argparse.Namespace, doing: str, size: int | None = None
) -> None:
    """Print an answer for each text of the command line, or for each line of standard input;
    `size`: so many lines at a time at most."""
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
    with progress(doing, total, quiet) as show:
        for first, texts, read in blocks:
            for start in range(0, len(texts), size or len(texts)):
                some = texts[start : start + (size or len(texts))]
                printer.print(some, Place(name, first + start))
                sys.stdout.flush()
            show(read)


class Translations(Printer):
    kind = Translate

    def __init__(self, model: Model, options: argparse.Namespace, decoding: dict[str, Any]) -> None:
        super().__init__(model, options, decoding)
        self.decoding = decoding | {"n_best": model.decoding(decoding).n_best}

    def print(self, texts: list[str], place: Place) -> None:
        if self.options.stream:
            self.stream(texts, place)
        elif self.options.score:
            self.score(texts, place)
        else:
            self.answer(texts, place)

    def stream(self, texts: list[str], place: Place) -> None:
        for i, text in enumerate(texts):
            warn = Place(place.name, place.first + i).warn
            for part in self.model.stream(
                text, prefix=self.options.prefix, warn=warn, **self.decoding
            ):
                print(one_line(part), end="", flush=True)
            print(flush=True)

    def score(self, texts: list[str], place: Place) -> None:
        bad = next((i for i, t in enumerate(texts) if t.strip() and "\t" not in t), None)
        numbers = [i for i, text in enumerate(texts[:bad]) if text.strip()]
        pairs = [texts[i].partition("\t")[::2] for i in numbers]

        def warn(i: int, said: str) -> None:
            place.warn(numbers[i], said)

        scored = dict(zip(numbers, self.model.score(pairs, warn=warn), strict=True))
        for i, text in enumerate(texts[:bad]):
            source, _, target = text.partition("\t")
            answer = scored.get(i, Answer([], [], 0.0, "empty"))
            told = {"text": source, "translation": target} | details(answer, self.model)
            plain = f"{answer.logprob:.6f}" if i in scored else ""
            print(as_json(told) if self.options.json else plain)
        if bad is not None:
            raise InputError(
                f"{place.line(bad)}: --score needs SOURCE<tab>TRANSLATION, but there is no tab"
            )

    def answer(self, texts: list[str], place: Place) -> None:
        names = ("alternatives", "history", "attention")
        wanted = {name: getattr(self.options, name) for name in names}
        answers = self.model.answers(
            texts, prefix=self.options.prefix, warn=place.warn, **wanted, **self.decoding
        )
        asked = {name for name, value in wanted.items() if value}
        asked |= {"n_best"} if self.decoding["n_best"] > 1 else set()
        for text, answer in zip(texts, answers, strict=True):
            if self.options.json:
                told = {"text": text, "translation": answer.text}
                print(as_json(told | details(answer, self.model, asked)))
            else:
                print("\t".join(one_line(one.text) for one in (answer, *answer.others)))


class Replies(Printer):
    """Answers to questions: an empty line for an empty one."""

    kind = Questions

    def print(self, texts: list[str], place: Place) -> None:
        asked: dict[int, Asked] = {}
        task = self.model.of(Questions)

        def check(i: int, text: str) -> None:
            if text.strip():
                asked[i] = Asked.of(text, self.options.context, place.line(i))
                try:
                    task.room(task.target.encode(asked[i][1]), self.model.longest, place.line(i))
                except InputError:
                    del asked[i]
                    raise

        texts, bad = until_bad(texts, check)

        def warn(i: int, said: str) -> None:
            place.warn(list(asked)[i], said)

        contexts, questions = ([pair[side] for pair in asked.values()] for side in (0, 1))
        found = []
        if asked:
            found = self.model.answer(questions, contexts, warn=warn, **self.decoding)
        answers = dict(zip(asked, zip(questions, found, strict=True), strict=True))
        for i in range(len(texts)):
            question, answer = answers.get(i, ("", Answer([], [], 0.0, "empty")))
            if self.options.json:
                told = {"question": question, "answer": answer.text} | brief(answer, task.target)
                if answer.others:
                    told["n_best"] = every_answer(answer, task.target, "answer")
                print(as_json(told))
            else:
                print("\t".join(one_line(one.text) for one in (answer, *answer.others)))
        if bad is not None:
            raise bad


class Continuations(Printer):
    """What follows each prompt: as it is for texts of the command line, in one line for lines."""

    kind = Generate

    def print(self, texts: list[str], place: Place) -> None:
        given = place.name != STDIN
        if self.options.stream:
            for i, text in enumerate(texts):
                print(text, end="", flush=True)
                warn = Place(place.name, place.first + i).warn
                for part in self.model.stream(text, warn=warn, **self.decoding):
                    print(part if given else one_line(part), end="", flush=True)
                print(flush=True)
            return
        answers = self.model.generate(
            texts, until=self.options.until, warn=place.warn, **self.decoding
        )
        for text, answer in zip(texts, answers, strict=True):
            every = (answer, *answer.others)
            if self.options.json:
                tokenizer = self.model.task.tokenizer
                told = {"prompt": text, "text": answer.text} | brief(answer, tokenizer)
                if answer.others:
                    told["n_best"] = every_answer(answer, tokenizer, "text")
                print(as_json(told))
            elif given:
                print("\n\n".join(text + one.text for one in every))
            else:
                print("\t".join(one_line(text + one.text) for one in every))


class Labels(Printer):
    """A label for each text, an empty line for an empty one."""

    kind = Classify

    def print(self, texts: list[str], place: Place) -> None:
        numbers = [i for i, text in enumerate(texts) if text.strip()]

        def warn(i: int, said: str) -> None:
            place.warn(numbers[i], said)

        found = self.model.classify([texts[i] for i in numbers], warn=warn)
        labels = dict(zip(numbers, found, strict=True))
        for i, text in enumerate(texts):
            label = labels.get(i)
            if self.options.json:
                empty: dict[str, Any] = {"label": None, "probability": None, "probabilities": {}}
                print(as_json({"text": text} | (vars(label) if label else empty)))
            else:
                print(f"{one_line(label.label)}\t{label.probability:.4f}" if label else "")


class Gaps(Printer):
    kind = Fill

    def print(self, texts: list[str], place: Place) -> None:
        task = self.model.of(Fill)

        def check(i: int, text: str) -> None:
            task.encode(text.split(MASK), self.model.longest, place.line(i))

        texts, bad = until_bad(texts, check)
        found = self.model.fill(texts, self.options.top, place.line)
        for text, filled in zip(texts, found, strict=True):
            if self.options.json:
                gaps = [
                    [{"word": word, "probability": p} for word, p in gap.candidates]
                    for gap in filled.gaps
                ]
                print(as_json({"text": text, "filled": filled.text, "gaps": gaps}))
            else:
                words = [
                    ", ".join(f"{word.strip() or repr(word)} {p:.3f}" for word, p in gap.candidates)
                    for gap in filled.gaps
                ]
                print("\t".join(map(one_line, [filled.text, *words])))
        if bad is not None:
            raise bad


class Vectors(Printer):
    """Vectors as numbers, or into a numpy file."""

    def __init__(self, model: Model, options: argparse.Namespace) -> None:
        super().__init__(model, options)
        model.embedder()
        model.check_pooling(options.pooling)
        self.file = None
        if options.out is not None:
            self.file = VectorFile(options.out, model.config.model.d_model)

    def __enter__(self) -> Vectors:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.file is not None:
            self.file.close(whole=kind is None)

    def print(self, texts: list[str], place: Place) -> None:
        if self.options.tokens:
            found = self.model.embed_tokens(texts, warn=place.warn)
            for text, (tokens, vectors) in zip(texts, found, strict=True):
                if self.options.json:
                    told = {"text": text, "tokens": tokens, "vectors": rounded(vectors.tolist())}
                    print(as_json(told))
                else:
                    for token, vector in zip(tokens, vectors.tolist(), strict=True):
                        print(f"{token}\t{numbers_of(vector)}")
                    print()
            return
        vectors = self.model.embed(texts, pooling=self.options.pooling, warn=place.warn)
        if self.file is not None:
            self.file.write(vectors)
            return
        for text, vector in zip(texts, vectors.tolist(), strict=True):
            if self.options.json:
                print(as_json({"text": text, "vector": rounded([vector])[0]}))
            else:
                print(numbers_of(vector))


class Hits(Printer):
    """The best lines of a file for each query."""

    def __init__(self, model: Model, options: argparse.Namespace) -> None:
        super().__init__(model, options)
        self.index = model.index(
            options.documents, options.index, quiet=options.quiet, rebuild=options.rebuild
        )

    def print(self, texts: list[str], place: Place) -> None:
        vectors = self.model.embed(texts, warn=place.warn)
        for query, hits in zip(texts, self.index.search(vectors, self.options.top), strict=True):
            if self.options.json:
                told = [hit._asdict() for hit in hits]
                print(as_json({"query": query, "hits": told}))
                continue
            for score, line, text in hits:
                print(f"{score:.4f}\t{line}\t{one_line(text)}")
            if len(self.options.texts) != 1:  # several queries, or who knows how many
                print()


def until_bad(
    texts: list[str], check: Callable[[int, str], None]
) -> tuple[list[str], InputError | None]:
    """The texts before the first one that is refused, and why it is: they are answered first."""
    for i, text in enumerate(texts):
        try:
            check(i, text)
        except InputError as error:
            return texts[:i], error
    return texts, None
