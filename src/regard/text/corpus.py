"""Files become examples here, and whatever is wrong with a file is said with its line number.

Every reader is a generator over one line at a time, so a corpus may be larger than memory and
the first bad line is reported where it stands. Only a newline ends a line: other characters
that Python's `splitlines` would cut at occur inside real sentences, and cutting there would
shift one side of a parallel corpus against the other.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import math
import os
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from regard.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_LINE = 10_000_000  # bytes; without a bound, a file without newlines fills the memory
LONGEST_DOCUMENT = 10_000_000  # characters; plain text without blank lines is cut at this size
XZ_MEMORY = 2**28  # bytes for decompression; `xz -9` needs 65 MiB
READ = 2**16  # bytes
BOM = b"\xef\xbb\xbf"
Position = Callable[[int], None]  # called now and then with how many bytes have been read
PATIENCE = 2.0  # seconds of work before a progress bar is worth showing


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
    answers: tuple[str, ...]  # all that count as right; only `answer` where the file has no others
    task: str = ""  # the kind of question, where the file says it


class Document(NamedTuple):
    line: int  # where it begins
    text: str


class Similar(NamedTuple):
    line: int
    a: str
    b: str
    score: float | None


def open_text(path: Path | str, position: Position | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a plain, .gz or .xz file.

    `position` is called now and then with how many bytes of the file have been read: beside
    the file's size that is a progress bar without knowing how many lines there are. The file may
    be a pipe, which can be read only once; `check_file` refuses it where that is not enough.
    """
    path = Path(path)
    check_file(path, again=False)
    number = 0
    try:
        with path.open("rb") as raw, _decompressed(path, raw) as stream:
            while line := stream.readline(LONGEST_LINE + 2):  # 2: the line end is not counted
                number += 1
                if number == 1:
                    line = line.removeprefix(BOM)
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                if len(line) > LONGEST_LINE:
                    raise InputError(f"{path}:{number}: line longer than {LONGEST_LINE:,} bytes")
                if position is not None and number % 1024 == 0:
                    position(raw.tell())
                yield number, decode_line(line, f"{path}:{number}")
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        reached = f"after line {number}" if number else "at its beginning"
        how = "is cut off" if isinstance(error, EOFError) else "is damaged"
        raise InputError(f"{path}: the compressed file {how} {reached} ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def check_file(path: Path | str, again: bool = True) -> None:
    """Refuse what is not a file of text, before it is opened: to open a named pipe can wait
    forever, and a device can have no end.

    again: the file is read more than once, so a pipe is refused as well. Otherwise a pipe that
    this process inherited (`<(command)`, /dev/stdin) is accepted.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason})") from None
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: is a folder, not a file")
    if stat.S_ISFIFO(mode):
        named = os.path.exists(os.path.realpath(path))  # an inherited pipe has no name
        if again or named:
            raise InputError(
                f"{path}: is a pipe, which cannot be read twice: write its content to a file first"
            )
        return
    kind = "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise InputError(f"{path}: is {kind}, not a file")


def decode_line(line: bytes, where: str) -> str:
    """A line as text, or an error that says where it is none."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        byte = line[error.start]
        raise InputError(f"{where}: not UTF-8 (byte 0x{byte:02x} at column {column})") from None


def _decompressed(path: Path, raw: BinaryIO) -> io.BufferedReader:
    opened: Any = raw
    if path.suffix == ".gz":
        opened = gzip.GzipFile(fileobj=raw)
    elif path.suffix == ".xz":
        opened = _Xz(path, raw)
    # Their own readline is a Python call a line; a buffer around them reads lines in C.
    return io.BufferedReader(opened, 1 << 18)


class _Xz(io.RawIOBase):
    """The content of an .xz file, decompressed in at most XZ_MEMORY bytes. Without a limit the
    file itself would say how much memory it takes, up to 4 GB."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        self._path, self._raw = path, raw
        self._decoder: lzma.LZMADecompressor | None = None  # of the stream that is being read
        self._begun, self._rest = False, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data = self._rest
            if not data and (self._decoder is None or self._decoder.needs_input):
                data = self._raw.read(READ)
                if not data and self._begun and self._decoder is None:
                    return 0
                if not data:
                    raise EOFError("the compressed data has no end")
            self._rest = b""
            if self._decoder is None:
                data = data.lstrip(b"\0") if self._begun else data  # padding between two streams
                if not data:
                    continue
                self._decoder, self._begun = lzma.LZMADecompressor(memlimit=XZ_MEMORY), True
            try:
                found = self._decoder.decompress(data, len(buffer))
            except lzma.LZMAError as error:
                if "emory" not in str(error):
                    raise
                raise InputError(
                    f"{self._path}: needs more than {XZ_MEMORY // 2**20} MiB of memory to be "
                    "decompressed: compress it with a smaller dictionary (xz -9)"
                ) from None
            if self._decoder.eof:
                self._rest, self._decoder = self._decoder.unused_data, None
            if found:
                buffer[: len(found)] = found
                return len(found)


def read_pairs(
    source_path: Path | str,
    target_path: Path | str,
    position: Position | None = None,
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
    """Yield JSON lines {"context", "question", "answer"}; "answers" may list all that are right,
    "task" names the kind of question."""
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
        # STS-B's end in a carriage return where they are to be learned from, not in its tests.
        a, b = where.text("a").strip(), where.text("b").strip()
        for name, text in (("a", a), ("b", b)):
            if not text:
                raise where.error(f'"{name}" is empty: remove the row')
        yield Similar(number, a, b, score)


def _format(
    path: Path | str, position: Position | None = None, blank: bool = False
) -> tuple[bool, Iterator[tuple[int, str]]]:
    """Whether the lines are JSON (by the name, else by the first line), and all the lines.

    blank: keep blank lines; of those before the first text, at most LONGEST_DOCUMENT characters.
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
    return as_json, iter(())  # nothing but blank lines


@dataclass
class _Object:
    """One JSON object with the place it stands at, so that every complaint can name it."""

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
            value.encode("utf-8")  # JSON can write half of a surrogate pair; UTF-8 cannot
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
    """A JSON value's type in the words of JSON."""
    names = {str: "a string", bool: "a truth value", list: "a list", dict: "an object"}
    if value is None:
        return "null"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return names.get(type(value), "a number")


@dataclass
class Report:
    """How many examples were kept, and how many were left out for which reason."""

    kept: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)  # what else was done, to those kept

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def note(self, what: str) -> None:
        self.notes[what] = self.notes.get(what, 0) + 1

    @property
    def total(self) -> int:
        return self.kept + sum(self.skipped.values())

    def __str__(self) -> str:
        """One line: `28,990 kept, 8 too long, 2 empty`."""
        parts = [f"{count:,} {reason}" for reason, count in self._rows()]
        return ", ".join([f"{self.kept:,} kept", *parts])

    def show(self, console: Console | None = None) -> None:
        """Print a short table on `console` (default: standard error)."""
        from rich.table import Table

        from regard.console import make_console

        table = Table("examples", "", "", box=None, show_header=False, pad_edge=False)
        for reason, count in [("kept", self.kept), *self._rows()]:
            share = count / self.total if self.total else 0.0
            table.add_row(reason, f"{count:,}", f"{share:.1%}")
        table.columns[1].justify = table.columns[2].justify = "right"
        (console or make_console(stderr=True)).print(table)

    def _rows(self) -> list[tuple[str, int]]:
        rows = [*self.skipped.items(), *((f"{what} (kept)", n) for what, n in self.notes.items())]
        return sorted(rows, key=lambda row: (-row[1], row[0]))


def fingerprint_files(paths: Iterable[Path | str]) -> str:
    """sha256 over the bytes of each file, in order; content moved across files changes it."""
    whole = hashlib.sha256()
    for path in map(Path, paths):
        check_file(path)  # a pipe would be empty after this
        try:
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(cast(Any, file), "sha256").digest())
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return whole.hexdigest()


@contextmanager
def progress(what: str, total: float | None, quiet: bool) -> Iterator[Callable[[float], None]]:
    """A bar on standard error once the work has taken two seconds; call the result with how far.

    A timer shows it, so that it appears as well during one long call into a library. A `total`
    of None is a bar that only says that something is going on.
    """
    if quiet:
        yield lambda done: None
        return
    from regard.console import make_console, make_progress

    console = make_console(stderr=True)
    # Standard output is not the bar's: it may be a file that answers go to.
    bar = make_progress(console, disable=not console.is_terminal, redirect_stdout=False)
    task = bar.add_task(what, total=total)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: bar.update(task, completed=done)
    finally:
        timer.cancel()
        timer.join()  # it may be starting the bar just now; stop it only after that
        bar.stop()
