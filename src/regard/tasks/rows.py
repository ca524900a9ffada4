"""Rows in memory as the training file of a task.

`rows_to_file` accepts what Python programs have: a list or an iterator of dicts, tuples or strings,
a pandas or Polars DataFrame, an Arrow table, or a Hugging Face `datasets.Dataset`. It checks every
row as the reader of the task's files does and writes JSON lines, so training in memory and from
files is the same code, and the run folder has its data. The types of other packages are recognised
by their attributes; the packages are not imported.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.files import named, sync_folder, temporary_name
from regard.tasks.registry import find_task
from regard.text.records import (
    Columns,
    Field,
    Record,
    column_value,
    find_columns,
    kind_of,
)

Rename = Callable[[str, Any], Any]  # a column name and a value -> the value to use


def rows_to_file(
    task_name: str, data: Any, path: Path, columns: Mapping[str, str] | None = None
) -> Path:
    """Write rows as JSON lines with the field names of a task.

    The file is written under a temporary name and renamed when it is complete. It is then read
    without `columns`, because its keys are the names of the fields.

    Args:
        task_name: the task, for example "classify".
        data: the rows: a list or an iterator of dicts, of tuples in the order of the task's fields
            or (generate, fill) of strings; a pandas or Polars DataFrame; an Arrow table; a Hugging
            Face `Dataset`, of which a column of the type `ClassLabel` is written with the names of
            its classes.
        path: the file to write; its name should end in ".jsonl".
        columns: field name -> column name, for columns without a usual name.

    Returns:
        `path`.

    Raises:
        InputError: `data` is not rows, it is empty, a column does not exist, or a row is not valid;
            the message names the row, counted from 1.
    """
    task, columns = find_task(task_name), dict(columns or {})
    form = task.row_format
    if form is None:
        raise InputError(f"the task {task_name} reads only files, not rows in memory")
    task.check_columns(columns)
    rows, rename = _rows(data, form.fields)
    every = iter(rows)
    first = next(every, None)
    if isinstance(first, Mapping) and all(isinstance(name, str) for name in first):
        form = task.format_of(list(first), columns) or form
    rows = every if first is None else chain([first], every)
    temporary, count = temporary_name(path), 0
    with named(path):
        try:
            with temporary.open("w", encoding="utf-8") as file:
                for record in _records(rows, rename, form.fields, columns):
                    form.parse(record)
                    file.write(json.dumps(record.values, ensure_ascii=False) + "\n")
                    count += 1
                file.flush()
                os.fsync(file.fileno())
            if not count:
                raise InputError("the data is empty: it has no rows")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    return path


def _records(
    rows: Iterable[Any], rename: Rename, fields: Sequence[Field], columns: Columns
) -> Iterator[Record]:
    names: tuple[str, ...] = ()
    chosen: list[tuple[str, str]] = []
    for number, row in enumerate(rows, 1):
        where = f"row {number}"
        if hasattr(row, "_asdict"):  # a named tuple
            row = row._asdict()
        if isinstance(row, Mapping):
            if not chosen or names != tuple(row):
                names = tuple(row)
                if not all(isinstance(name, str) for name in names):
                    raise InputError(f"{where}: the names of the columns must be strings")
                column_of = find_columns(names, fields, columns, where, nested=True, in_memory=True)
                chosen = [*column_of.items()]
            values = {name: rename(c, column_value(row, c, where)) for name, c in chosen}
        else:
            if columns:
                raise InputError(
                    f"{where}: columns names the columns of the data, but the row is "
                    f"{kind_of(row)} without column names"
                )
            values = _by_position(row, fields, where)
        plain = {name: _plain(value) for name, value in values.items()}
        required = {field.name for field in fields if field.required}
        missing = (name for name in plain if plain[name] is None and name not in required)
        for name in list(missing):
            del plain[name]
        yield Record("row ", number, plain)


def _rows(data: Any, fields: Sequence[Field]) -> tuple[Iterable[Any], Rename]:
    """The rows of an object, and how to name the values of its columns."""
    keep: Rename = lambda _, value: value  # noqa: E731
    if isinstance(data, str | bytes | os.PathLike):
        raise InputError(
            f"the data is {kind_of(data)}, not rows: give a list of rows, or a list of file names"
        )
    if hasattr(data, "itertuples") and hasattr(data, "columns"):  # a pandas DataFrame
        names = [str(name) for name in data.columns]
        cells = data.itertuples(index=False, name=None)
        return (dict(zip(names, row, strict=True)) for row in cells), keep
    if hasattr(data, "iter_rows") and hasattr(data, "columns"):  # a Polars DataFrame
        return data.iter_rows(named=True), keep
    if hasattr(data, "to_pylist"):  # an Arrow table
        return data.to_pylist(), keep
    names_of = getattr(data, "column_names", None)
    if isinstance(names_of, Mapping):  # a Hugging Face DatasetDict
        splits = ", ".join(map(str, names_of))
        raise InputError(f"the data has several splits ({splits}): choose one of them")
    if names_of is not None:  # a Hugging Face Dataset
        return data, _class_names(getattr(data, "features", None) or {})
    if isinstance(data, Mapping):
        example = ", ".join(f'"{field.name}": ...' for field in fields if field.required)
        raise InputError(
            "the data is an object with columns, not rows: give a list of rows, for example "
            f"[{{{example}}}]"
        )
    if not isinstance(data, Iterable):
        raise InputError(f"the data is {kind_of(data)}, not rows")
    return data, keep


def _class_names(features: Mapping[str, Any]) -> Rename:
    """Replace the numbers of the classes of `ClassLabel` columns by their names."""
    labels = {
        column: feature.names for column, feature in features.items() if hasattr(feature, "int2str")
    }

    def rename(column: str, value: Any) -> Any:
        names = labels.get(column)
        if names is None or not isinstance(value, int) or not 0 <= value < len(names):
            return value
        return names[value]

    return rename


def _by_position(row: Any, fields: Sequence[Field], where: str) -> dict[str, Any]:
    """The values of a tuple, in the order of the fields; of a string, if there is one field."""
    required = [field.name for field in fields if field.required]
    order = ", ".join(required)
    if isinstance(row, str):
        if len(required) > 1:
            raise InputError(f"{where}: a string, but a row has {len(required)} values ({order})")
        return {required[0]: row}
    if hasattr(row, "tolist"):  # a NumPy array
        row = row.tolist()
    if not isinstance(row, tuple | list):
        raise InputError(f"{where}: expected a dict or a tuple ({order}), not {kind_of(row)}")
    values: dict[str, Any] = {}
    rest = list(row)
    for field in fields:
        # A text is not an optional number: (a, b, score) or (a, b, negative).
        if rest and (field.required or field.number != isinstance(rest[0], str)):
            if not field.required and not field.number and _is_number(rest[0]):
                raise InputError(
                    f'{where}: "{field.name}" is the text of a number ({rest[0]!r:.40}): give a '
                    f'number, or a dict with "{field.name}" if it is a text'
                )
            values[field.name] = rest.pop(0)
    if rest or len(row) < len(required):
        raise InputError(
            f"{where}: {len(row)} values, but a row has {len(required)} ({order}): use a dict for "
            "other columns"
        )
    return values


def _is_number(text: str) -> bool:
    """Whether a string is the text of a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(value: Any) -> Any:
    """A value without the types of NumPy and pandas; a missing value (NaN, NaT, NA) is None."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # a NumPy array or number
        return _plain(value.tolist())
    try:
        return None if value != value else value
    except TypeError:  # the truth value of pandas.NA
        return None
