"""Readers that turn data files into examples; every error names the file and the line.

Each reader is a generator over one line at a time, so a corpus may be larger than memory, and the
first invalid line is reported where it occurs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import InputError
from regard.text.reading import Position, open_text

LONGEST_DOCUMENT = 10_000_000  # characters; plain text without blank lines is cut at this size


class Pair(NamedTuple):
    line: int
    source: str
    target: str


class Classified(NamedTuple):
    line: int
    text: str
    label: str


class Question(NamedTuple):
    line: int
    context: str
    question: str
    answer: str
    answers: tuple[str, ...]  # all correct answers; only `answer` if the file lists no others
    task: str = ""  # the kind of question, if the file names it


class Document(NamedTuple):
    line: int  # where it begins
    text: str


class Similar(NamedTuple):
    line: int
    a: str
    b: str
    score: float | None


def read_pairs(
    source_path: Path | str, target_path: Path | str, position: Position | None = None
) -> Iterator[Pair]:
    """Yield the pairs of two aligned files; line n of one belongs to line n of the other."""
    sources, targets = open_text(source_path, position), open_text(target_path)
    for number, source in sources:
        _, target = next(targets, (0, None))
        if target is None:
            more = sum(1 for _ in sources)
            raise _unaligned(source_path, number + more, target_path, number - 1)
        yield Pair(number, source, target)
    missing = next(targets, None)
    if missing is not None:
        more = sum(1 for _ in targets)
        raise _unaligned(target_path, missing[0] + more, source_path, missing[0] - 1)


def _unaligned(long: Path | str, most: int, short: Path | str, fewest: int) -> InputError:
    return InputError(
        f"{long} has {most:,} lines but {short} has {fewest:,}: line {fewest + 1:,} of {long} has "
        "no counterpart (aligned files have one line for each line of the other)"
    )


def read_classified(path: Path | str, position: Position | None = None) -> Iterator[Classified]:
    """Yield the examples of `label<TAB>text` or of JSON lines {"text", "label"}."""
    as_json, lines = _format(path, position)
    for number, line in lines:
        if as_json:
            where = _object(path, number, line, "text", "label")
            label = where.data["label"]
            if isinstance(label, int) and not isinstance(label, bool):
                where.data["label"] = str(label)  # classes are often numbered
            text, label = where.text("text"), where.text("label")
        else:
            label, tab, text = line.partition("\t")
            if not tab:
                raise InputError(f"{path}:{number}: no tab (expected label<TAB>text)")
        if not label.strip():
            raise InputError(f"{path}:{number}: the label is empty")
        if not text.strip():
            raise InputError(f"{path}:{number}: the text is empty: remove the row")
        yield Classified(number, text, label)


def read_questions(path: Path | str, position: Position | None = None) -> Iterator[Question]:
    """Yield JSON lines {"context", "question", "answer"}; "answers" may list all correct
    answers, and "task" may name the kind of question."""
    _, lines = _format(path, position)
    for number, line in lines:
        where = _object(path, number, line, "context", "question", "answer")
        answer = where.text("answer")
        answers = where.data.get("answers", [answer])
        if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
            raise where.error('"answers" must be a list of strings')
        for one in answers:
            where.check(one, "answers")
        if not answers:
            raise where.error('"answers" is an empty list')
        task = where.text("task") if "task" in where.data else ""
        context, question = where.text("context"), where.text("question")
        for name, text in (("question", question), ("answer", answer)):
            if not text.strip():
                raise where.error(f"the {name} is empty: remove the row")
        yield Question(number, context, question, answer, tuple(answers), task)


def read_documents(
    path: Path | str, position: Position | None = None, whole: bool = False
) -> Iterator[Document]:
    """Yield documents: plain text with blank lines between them, or JSON lines {"text"}.

    whole: the file is one document, blank lines and the newline at its end included.
    """
    as_json, lines = _format(path, position, blank=True)
    start, parts, size = 0, list[str](), 0
    for number, line in lines:
        if as_json:
            if line.strip():
                text = _object(path, number, line, "text").text("text")
                if not text.strip():
                    raise InputError(f"{path}:{number}: the document is empty: remove the row")
                yield Document(number, text)
            continue
        ends = size + len(line) > LONGEST_DOCUMENT or not (whole or line.strip())
        if parts and ends:
            yield Document(start, "\n".join([*parts, ""] if whole else parts))
            parts, size = [], 0
        if whole or line.strip():
            if not parts:
                start = number
            parts.append(line)
            size += len(line) + 1
    if parts:
        yield Document(start, "\n".join([*parts, ""] if whole else parts))


def read_similar(path: Path | str, position: Position | None = None) -> Iterator[Similar]:
    """Yield JSON lines {"a", "b"} of texts that belong together, with an optional "score"."""
    _, lines = _format(path, position)
    for number, line in lines:
        where = _object(path, number, line, "a", "b")
        score = where.data.get("score")
        if score is not None:
            number_like = isinstance(score, int | float) and not isinstance(score, bool)
            if not number_like or not math.isfinite(score):
                raise where.error(f'"score" must be a finite number, not {_kind(score)}')
            score = float(score)
        # In STS-B, training texts end with a carriage return and test texts do not.
        a, b = where.text("a").strip(), where.text("b").strip()
        for name, text in (("a", a), ("b", b)):
            if not text:
                raise where.error(f'"{name}" is empty: remove the row')
        yield Similar(number, a, b, score)


def _format(
    path: Path | str, position: Position | None = None, blank: bool = False
) -> tuple[bool, Iterator[tuple[int, str]]]:
    """Whether the lines are JSON (by the name, else by the first line), and all the lines.

    blank: keep blank lines; before the first text, at most LONGEST_DOCUMENT characters of them.
    """
    lines = open_text(path, position)
    if not blank:
        lines = ((number, line) for number, line in lines if line.strip())
    before, size = list[str](), 0
    as_json = ".jsonl" in Path(path).suffixes[-2:]
    for number, line in lines:
        if line.strip():
            as_json = as_json or line.lstrip().startswith("{")
            return as_json, chain(enumerate(before, 1), [(number, line)], lines)
        if size < LONGEST_DOCUMENT:
            before.append(line)
            size += len(line) + 1
    return as_json, iter(())  # all lines are blank


@dataclass
class _Object:
    """One JSON object and where it is, so that every error can name the place."""

    path: Path | str
    number: int
    data: dict[str, Any]

    def error(self, what: str) -> InputError:
        return InputError(f"{self.path}:{self.number}: {what}")

    def text(self, key: str) -> str:
        value = self.data[key]
        if not isinstance(value, str):
            raise self.error(f'"{key}" must be a string, not {_kind(value)}')
        return self.check(value, key)

    def check(self, value: str, key: str) -> str:
        try:
            value.encode("utf-8")  # JSON can contain half of a surrogate pair, UTF-8 cannot
        except UnicodeEncodeError as error:
            code = ord(value[error.start])
            raise self.error(f'"{key}" has a lone surrogate (U+{code:04X})') from None
        return value


def _object(path: Path | str, number: int, line: str, *keys: str) -> _Object:
    expected = "{" + ", ".join(f'"{key}"' for key in keys) + "}"
    try:
        data = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{number}: not JSON ({error.msg} at column {error.colno}; expected {expected})"
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of 5,000 digits
        raise InputError(f"{path}:{number}: JSON that cannot be read ({error})") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}:{number}: expected an object {expected}, not {_kind(data)}")
    for key in keys:
        if key not in data:
            raise InputError(f'{path}:{number}: no "{key}" (expected {expected})')
    return _Object(path, number, data)


def _kind(value: object) -> str:
    """The name of a JSON value's type."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    names = {str: "a string", bool: "a truth value", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a number")


@dataclass
class CorpusReport:
    """How many examples of a corpus were kept, and how many were skipped for which reason."""

    kept: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)  # changes of examples that were kept

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def note(self, what: str) -> None:
        self.notes[what] = self.notes.get(what, 0) + 1

    @property
    def total(self) -> int:
        return self.kept + sum(self.skipped.values())

    def __str__(self) -> str:
        """One line: `28,990 kept, 8 too long, 2 empty`."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.counts)

    @property
    def counts(self) -> list[tuple[str, int]]:
        """All counts with their reasons: what was kept first, then the largest."""
        rows = [*self.skipped.items(), *((f"{what} (kept)", n) for what, n in self.notes.items())]
        return [("kept", self.kept), *sorted(rows, key=lambda row: (-row[1], row[0]))]
