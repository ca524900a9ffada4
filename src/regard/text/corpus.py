"""Readers that turn data files into examples; every error names the file and the line.

Each reader is a generator over one row at a time, so a corpus may be larger than memory, and the
first invalid row is reported where it occurs. A `RowFormat` defines the fields of a row and checks
them; the same format reads files (tables.py) and objects in memory (`regard.tasks.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from regard.errors import InputError
from regard.text.reading import Position, open_text
from regard.text.records import Columns, Field, Record
from regard.text.tables import read_json_lines, read_records, table_format

LONGEST_DOCUMENT = 10_000_000  # characters; plain text without blank lines is cut at this size
Row = TypeVar("Row")


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
    negative: str | None = None  # a text that is similar to `a` but does not belong to it


@dataclass(frozen=True)
class RowFormat(Generic[Row]):
    """The rows of a task's data: their fields, and the check of a row.

    Attributes:
        fields: the fields of a row, in the order of a tuple that gives a row in memory.
        parse: checks a record and returns the row, a named tuple that begins with the line.
        headerless: the fields of a TSV file without a header, in order; empty: it needs a header.
        tabs: whether the last field of such a file may contain tabs.
    """

    fields: tuple[Field, ...]
    parse: Callable[[Record], Row]
    headerless: tuple[str, ...] = ()
    tabs: bool = False

    def read(
        self, path: Path | str, position: Position | None = None, columns: Columns | None = None
    ) -> Iterator[Row]:
        """Yield the rows of a CSV, TSV, JSON, JSON lines or Parquet file.

        Args:
            path: the file; tables.py describes the formats.
            position: called from time to time with the number of bytes read.
            columns: field name -> column name, for columns without a usual name.

        Raises:
            InputError: the file cannot be read, or a row is not valid.
        """
        records = read_records(path, self.fields, columns, self.headerless, self.tabs, position)
        return map(self.parse, records)


def _pair(record: Record) -> Pair:
    return Pair(record.line, record.text("source"), record.text("target"))


def _classified(record: Record) -> Classified:
    label = record.values["label"]
    whole = isinstance(label, float) and label.is_integer()  # pandas: a column with a missing value
    if whole or (isinstance(label, int) and not isinstance(label, bool)):
        record.values["label"] = str(int(label))  # classes are often numbered
    text, label = record.text("text"), record.text("label")
    if not label.strip():
        raise record.error("the label is empty")
    if not text.strip():
        raise record.error("the text is empty: remove the row")
    return Classified(record.line, text, label)


def _question(record: Record) -> Question:
    answers = _answers(record)
    answer = record.text("answer") if "answer" in record.values else answers[0]
    task = record.text("task") if "task" in record.values else ""
    context, question = record.text("context"), record.text("question")
    for name, text in (("question", question), ("answer", answer)):
        if not text.strip():
            raise record.error(f"the {name} is empty: remove the row")
    return Question(record.line, context, question, answer, tuple(answers), task)


def _answers(record: Record) -> list[str]:
    """All correct answers: a list of strings or, as in SQuAD, {"text": [...]} or a list of
    {"text"}."""
    if "answers" not in record.values:
        if "answer" not in record.values:
            raise record.error('no "answer" (expected {"context", "question", "answer"})')
        return [record.text("answer")]
    answers = record.values["answers"]
    if isinstance(answers, dict):
        answers = answers.get("text")
    if isinstance(answers, list):
        answers = [each.get("text") if isinstance(each, dict) else each for each in answers]
    if not isinstance(answers, list) or not all(isinstance(each, str) for each in answers):
        raise record.error('"answers" must be a list of strings')
    for answer in answers:
        record.check(answer, "answers")
    if not answers:
        raise record.error('"answers" is an empty list')
    return list(dict.fromkeys(answers)) if "answer" not in record.values else answers


def _document(record: Record) -> Document:
    text = record.text("text")
    if not text.strip():
        raise record.error("the document is empty: remove the row")
    return Document(record.line, text)


def _similar(record: Record) -> Similar:
    values = record.values
    score = record.number("score") if values.get("score") is not None else None
    texts = [
        name for name in ("a", "b", "negative") if values.get(name) is not None or name in "ab"
    ]
    # In STS-B, training texts end with a carriage return and test texts do not.
    stripped = {name: record.text(name).strip() for name in texts}
    for name, text in stripped.items():
        if not text:
            raise record.error(f'"{name}" is empty: remove the row')
    if score is not None and "negative" in stripped:
        raise record.error('has both "score" and "negative": give one of them')
    return Similar(record.line, stripped["a"], stripped["b"], score, stripped.get("negative"))


PAIRS = RowFormat(
    (Field("source", ("src",)), Field("target", ("tgt",))),
    _pair,
    ("source", "target"),
)
CLASSIFIED = RowFormat(
    (
        Field("text", ("sentence", "review", "content", "comment", "document")),
        Field("label", ("class", "category")),
    ),
    _classified,
    ("label", "text"),
    tabs=True,
)
QUESTIONS = RowFormat(
    (
        Field("context", ("passage", "paragraph")),
        Field("question", ("query",)),
        Field("answer", required=False),
        Field("answers", required=False),
        Field("task", required=False),
    ),
    _question,
)
DOCUMENTS = RowFormat(
    (Field("text", ("sentence", "review", "content", "comment", "document")),), _document
)
SIMILAR = RowFormat(
    (
        Field("a", ("anchor", "sentence1", "text1", "query")),
        Field("b", ("positive", "sentence2", "text2")),
        Field("score", ("label", "similarity", "similarity_score"), required=False, number=True),
        Field("negative", ("hard_negative",), required=False),
    ),
    _similar,
)
read_classified = CLASSIFIED.read
read_questions = QUESTIONS.read
read_similar = SIMILAR.read


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


def _unaligned(
    long: Path | str, long_lines: int, short: Path | str, short_lines: int
) -> InputError:
    return InputError(
        f"{long} has {long_lines:,} lines but {short} has {short_lines:,}: line "
        f"{short_lines + 1:,} of {long} has no counterpart (aligned files "
        "have the same number of lines)"
    )


def read_documents(
    path: Path | str,
    position: Position | None = None,
    whole: bool = False,
    columns: Columns | None = None,
) -> Iterator[Document]:
    """Yield documents: plain text with blank lines between them, or the rows of a table.

    Args:
        path: a table if its name or its first line says so (tables.py), else plain text.
        position: called from time to time with the number of bytes read.
        whole: a plain text is one document, blank lines and the newline at its end included.
        columns: {"text": column name}, if the column has no usual name.

    Raises:
        InputError: the file cannot be read, or a row is not valid.
    """
    if table_format(path) is not None:
        yield from DOCUMENTS.read(path, position, columns)
        return
    as_json, lines = _sniff(path, position)
    if as_json:
        records = read_json_lines(path, lines, DOCUMENTS.fields, columns or {})
        yield from map(DOCUMENTS.parse, records)
        return
    if columns:
        raise InputError(
            f"{path}: plain text has no columns: its name must end in .csv, .tsv, .jsonl, .json or "
            ".parquet"
        )
    start, parts, size = 0, list[str](), 0
    for number, line in lines:
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


def is_json_lines(path: Path | str) -> bool:
    """Whether the first line with text of a file is a JSON object."""
    return _sniff(path, None)[0]


def _sniff(path: Path | str, position: Position | None) -> tuple[bool, Iterator[tuple[int, str]]]:
    """Whether the first line with text is JSON, and all the lines; of the blank lines before it, at
    most LONGEST_DOCUMENT characters."""
    lines = open_text(path, position)
    before, size = list[str](), 0
    for number, line in lines:
        if line.strip():
            as_json = line.lstrip().startswith("{")
            return as_json, chain(enumerate(before, 1), [(number, line)], lines)
        if size < LONGEST_DOCUMENT:
            before.append(line)
            size += len(line) + 1
    return False, iter(())  # all lines are blank


FEW_PAIRS, MANY_SKIPPED = 20, 0.2  # pairs, and the fraction of skipped pairs to warn about


@dataclass
class CorpusReport:
    """How many examples of a corpus were kept, and how many were skipped for which reason."""

    kept: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)  # changes of examples that were kept

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def warning(self) -> str:
        """A warning if many pairs were skipped because one side is much longer than the other, as
        if the columns are not a text and its translation; otherwise empty."""
        count = self.skipped.get("bad ratio", 0)
        if self.total < FEW_PAIRS or count < MANY_SKIPPED * self.total:
            return ""
        return (
            f"{count:,} of {self.total:,} pairs ({count / self.total:.1%}) were skipped because "
            "one side is much longer than the other: check that they are source and target"
        )

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
