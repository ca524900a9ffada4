"""Files with rows and named columns: CSV, TSV, JSON lines, JSON arrays and Parquet.

The name of a file determines its format (`train.csv.gz` is CSV). Every other name is TSV, unless
the first line begins with `{`, which is JSON lines. Rows are read one at a time, so that a file may
be larger than memory, except a JSON array, which is one value and has a limit.

CSV has a header and may quote cells, with newlines inside quotes. TSV has no quotes: a tab always
ends a cell. Its first line is a header if it names all required fields; otherwise the columns are
in the order that the row format defines.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.text.compression import COMPRESSED
from regard.text.reading import LONGEST_LINE, Position, check_file, open_text, read_text
from regard.text.records import (
    Columns,
    Field,
    Record,
    as_cells,
    column_value,
    expected,
    find_columns,
    kind_of,
    listed,
)

LARGEST_JSON = 10**9  # bytes of a .json file, which is read as a whole
BATCH = 1024  # rows of a Parquet file that are read at once
DELIMITERS = ",;\t"  # of a CSV file; its header decides
FORMATS = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".json": "json", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
SPACE = re.compile(r"[ \t\n\r]*")
csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))

Lines = Iterator[tuple[int, str]]  # line number, line


def table_format(path: Path | str) -> str | None:
    """The format of a file by its name: csv, tsv, jsonl, json or parquet; None: another name."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return FORMATS.get(suffixes[-1]) if suffixes else None


def read_records(
    path: Path | str,
    fields: Sequence[Field],
    columns: Columns | None = None,
    headerless: Sequence[str] = (),
    tabs: bool = False,
    position: Position | None = None,
) -> Iterator[Record]:
    """Yield the rows of a file.

    Args:
        path: the file; its name determines the format.
        fields: the fields of a row.
        columns: field name -> column name, for columns without a usual name.
        headerless: the fields of a TSV file without a header, in order; empty: it needs a header.
        tabs: whether the last field of a TSV file without a header may contain tabs.
        position: called from time to time with the number of bytes read.

    Raises:
        InputError: the file cannot be read, or a row is not valid.
    """
    columns = columns or {}
    kind = table_format(path)
    if kind == "parquet":
        return _objects(_parquet(Path(path)), f"{path}: row ", fields, columns)
    if kind == "json":
        return _read_json(Path(path), fields, columns, position)
    filled = ((number, line) for number, line in open_text(path, position) if line.strip())
    first = next(filled, None)
    if first is None:
        return iter(())
    lines = chain([first], filled)
    if kind == "jsonl" or first[1].lstrip().startswith("{"):
        return read_json_lines(path, lines, fields, columns)
    if kind == "csv":
        return _read_csv(path, fields, columns, position)
    return _read_tsv(path, lines, fields, columns, headerless, tabs)


def read_json_lines(
    path: Path | str, lines: Lines, fields: Sequence[Field], columns: Columns
) -> Iterator[Record]:
    """The rows of JSON lines. lines: numbered lines; blank ones are skipped."""

    def values() -> Iterator[tuple[int, Any]]:
        for number, line in lines:
            if line.strip():
                yield number, _parse(line, f"{path}:{number}", expected(fields))

    return _objects(values(), f"{path}:", fields, columns)


def _parse(text: str, where: str, form: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: not JSON ({error.msg} at column {error.colno}; expected {form})"
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of 5,000 digits
        raise InputError(f"{where}: JSON that cannot be read ({error})") from None


def _objects(
    rows: Iterator[tuple[int, Any]], origin: str, fields: Sequence[Field], columns: Columns
) -> Iterator[Record]:
    """Numbered JSON values as records; each must be an object with the required fields."""
    names: tuple[str, ...] = ()
    chosen: list[tuple[str, str]] = []
    nested = False
    for number, value in rows:
        if not isinstance(value, dict):
            raise InputError(
                f"{origin}{number}: expected an object {expected(fields)}, not {kind_of(value)}"
            )
        if not chosen or names != tuple(value):
            names = tuple(value)
            where = f"{origin}{number}"
            chosen = [*find_columns(names, fields, columns, where, nested=True).items()]
            nested = any(column not in value for _, column in chosen)
        if nested:
            where = f"{origin}{number}"
            values = {name: column_value(value, column, where) for name, column in chosen}
        else:
            values = {name: value[column] for name, column in chosen}
        yield Record(origin, number, values)


def _read_json(
    path: Path, fields: Sequence[Field], columns: Columns, position: Position | None
) -> Iterator[Record]:
    """The rows of a .json file: an array of objects, JSON lines, or SQuAD's nested format."""
    text = read_text(path, LARGEST_JSON)
    start = SPACE.match(text).end()  # type: ignore[union-attr]
    if start == len(text):
        return
    if text[start] == "[":
        yield from _objects(_array(path, text, start), f"{path}:", fields, columns)
        return
    decoder = json.JSONDecoder()
    try:
        value, end = decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise _not_json(path, error, fields) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: JSON that cannot be read ({error})") from None
    nested = isinstance(value, dict) and isinstance(value.get("data"), list)
    if nested and SPACE.fullmatch(text, end):
        rows = enumerate(_squad(value["data"], path), 1)
        yield from _objects(rows, f"{path}: row ", fields, columns)
        return
    del text, value
    yield from read_json_lines(path, open_text(path, position), fields, columns)


def _array(path: Path, text: str, start: int) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON array, one at a time, each with the number of its first line."""
    decoder = json.JSONDecoder()
    at, line, counted = start + 1, 1, 0
    try:
        while True:
            at = SPACE.match(text, at).end()  # type: ignore[union-attr]
            if text[at : at + 1] == "]" and counted == 0:
                break
            line, counted = line + text.count("\n", counted, at), at
            value, at = decoder.raw_decode(text, at)
            yield line, value
            at = SPACE.match(text, at).end()  # type: ignore[union-attr]
            if text[at : at + 1] != ",":
                break
            at += 1
        if text[at : at + 1] != "]" or not SPACE.fullmatch(text, at + 1):
            raise json.JSONDecodeError("Expecting ',' or the end of the array", text, at)
    except json.JSONDecodeError as error:
        raise _not_json(path, error, ()) from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}:{line}: JSON that cannot be read ({error})") from None


def _not_json(path: Path, error: json.JSONDecodeError, fields: Sequence[Field]) -> InputError:
    form = f"; expected an array of objects {expected(fields)}" if fields else ""
    where = f"{path}:{error.lineno}"
    return InputError(f"{where}: not JSON ({error.msg} at column {error.colno}{form})")


def _squad(articles: list[Any], path: Path) -> Iterator[dict[str, Any]]:
    """The questions of SQuAD's original format (data, paragraphs, qas); objects without
    "paragraphs" are rows."""
    for i, article in enumerate(articles, 1):
        if not isinstance(article, dict) or "paragraphs" not in article:
            yield article
            continue
        try:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield {"context": paragraph["context"], **question}
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{path}: article {i} is not in SQuAD's format ({type(error).__name__}: {error}; "
                'expected "paragraphs" with "context" and "qas")'
            ) from None


def _read_tsv(
    path: Path | str, lines: Lines, fields: Sequence[Field], columns: Columns,
    headerless: Sequence[str], tabs: bool,
) -> Iterator[Record]:  # fmt: skip
    number, first = next(lines)
    header = first.split("\t")
    origin, optional = f"{path}:", [field.name for field in fields if not field.required]
    try:
        chosen = find_columns(header, fields, columns, f"{path}:{number}")
    except InputError:
        if columns or not headerless:
            raise
        chosen = {}
    if chosen:
        indices = _column_indices(header, chosen, f"{path}:{number}")
        for number, line in lines:
            cells = line.split("\t")
            if len(cells) != len(header):
                raise _wrong_width(f"{path}:{number}", cells, header, "a tab")
            values = {name: cells[i] for name, i in indices}
            yield Record(origin, number, as_cells(values, optional) if optional else values)
        return
    width, form = len(headerless), "<TAB>".join(headerless)
    every = chain([(number, first)], lines)
    for number, line in every:
        cells = line.split("\t", width - 1 if tabs else -1)
        if len(cells) < width:
            raise InputError(f"{path}:{number}: no tab (expected {form})")
        if len(cells) > width:
            raise InputError(
                f"{path}:{number}: {len(cells)} cells (expected {form}); a file with more columns "
                "needs a first line with their names"
            )
        yield Record(origin, number, dict(zip(headerless, cells, strict=True)))


def _read_csv(
    path: Path | str, fields: Sequence[Field], columns: Columns, position: Position | None
) -> Iterator[Record]:
    """The rows of a CSV file. A quoted cell may have several lines, so it is read again from the
    beginning, with its blank lines."""
    source = _CsvLines(path, position)
    try:
        line = next(source)
        while not line.strip():
            line = next(source)
        delimiter = max(DELIMITERS, key=line.count)
        number = source.number
        rows = csv.reader(chain([line], source), delimiter=delimiter, strict=True)
        source.start = number
        header = next(rows)
        chosen = find_columns(header, fields, columns, f"{path}:{number}")
        indices = _column_indices(header, chosen, f"{path}:{number}")
        origin, optional = f"{path}:", [field.name for field in fields if not field.required]
        while True:
            source.start = source.number + 1
            cells = next(rows)
            if not cells or (len(cells) < len(header) and not "".join(cells).strip()):
                continue  # a blank line
            number = source.start
            if len(cells) != len(header):
                separator = {",": "a comma", ";": "a semicolon"}.get(delimiter, "a tab")
                raise _wrong_width(f"{path}:{number}", cells, header, separator)
            values = {name: cells[i] for name, i in indices}
            yield Record(origin, number, as_cells(values, optional) if optional else values)
    except StopIteration:
        return
    except csv.Error as error:
        raise InputError(f"{path}:{source.start}: not valid CSV ({error})") from None


class _CsvLines:
    """The lines of a CSV file for `csv.reader`; bounds the size of one row, because a quote that
    is not closed makes the rest of the file one cell."""

    def __init__(self, path: Path | str, position: Position | None) -> None:
        self.path, self.lines = path, open_text(path, position)
        self.number = 0  # of the last line
        self.size = 0  # characters of the current row
        self._start = 1

    @property
    def start(self) -> int:
        """The first line of the current row."""
        return self._start

    @start.setter
    def start(self, number: int) -> None:
        self._start, self.size = number, 0

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        self.number, line = next(self.lines)
        self.size += len(line) + 1
        if self.size > LONGEST_LINE:
            raise InputError(
                f"{self.path}:{self.start}: a row longer than {LONGEST_LINE:,} characters: a "
                "quotation mark is probably not closed"
            )
        return line + "\n"


def _column_indices(header: list[str], chosen: dict[str, str], where: str) -> list[tuple[str, int]]:
    """The index of the column of each field."""
    for column in chosen.values():
        if header.count(column) > 1:
            raise InputError(f"{where}: the column {column!r:.60} is duplicated")
    return [(name, header.index(column)) for name, column in chosen.items()]


def _wrong_width(where: str, cells: list[str], header: list[str], delimiter: str) -> InputError:
    cause = f": {delimiter} inside a cell must be in quotation marks"
    if delimiter == "a tab":
        cause = ": a cell cannot contain a tab or a newline"
    return InputError(
        f"{where}: {len(cells)} cells, but the header has {len(header)} ({listed(header)}){cause}"
    )


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of a Parquet file, read in batches."""
    check_file(path)
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: needs another package: pip install pyarrow") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        message = " ".join(str(error).split())
        raise InputError(f"{path}: not a valid Parquet file ({message:.200})") from None
