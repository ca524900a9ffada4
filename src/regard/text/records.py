"""Rows of data by field name: which column of a file, or key of an object, is which field.

A task declares its fields (`Field`). A file or an object in memory has columns. `find_columns`
assigns columns to fields: by the mapping that the user gives (`columns`), by the field's own name,
or by a usual name of such a column, if exactly one column has one. The result of reading a row is
a `Record`, whose methods check single values; every error names the place of the row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from regard.errors import InputError, unknown

Columns = Mapping[str, str]  # field name -> column name
MOST_LISTED = 12  # columns that a message lists
LONGEST_NAME = 40  # characters of a column name in a message


@dataclass(frozen=True)
class Field:
    """A field of a row.

    Attributes:
        name: the name of the field, which is also the usual name of its column.
        aliases: other usual column names, in lower case.
        required: whether every row must have it.
        number: whether its values are numbers.
    """

    name: str
    aliases: tuple[str, ...] = ()
    required: bool = True
    number: bool = False


class Record:
    """One row: its values by field name, and its place for error messages.

    Attributes:
        origin: the place without the number: "train.csv:" or "row ".
        line: the number of the line; in data without lines, the number of the row.
        values: the values by field name; a field that the row does not have is absent.
    """

    __slots__ = ("line", "origin", "values")

    def __init__(self, origin: str, line: int, values: dict[str, Any]) -> None:
        self.origin, self.line, self.values = origin, line, values

    @property
    def where(self) -> str:
        """The place of the row: "train.csv:17" or "row 17"."""
        return f"{self.origin}{self.line}"

    def error(self, what: str) -> InputError:
        """An error that names the place of the row."""
        return InputError(f"{self.where}: {what}")

    def text(self, name: str) -> str:
        """The value of a field that must be a string.

        Raises:
            InputError: the value is not a string, or UTF-8 cannot encode it.
        """
        value = self.values[name]
        if not isinstance(value, str):
            raise self.error(f'"{name}" must be a string, not {kind_of(value)}')
        return self.check(value, name)

    def check(self, value: str, name: str) -> str:
        """The value, after an error for half of a surrogate pair, which JSON can contain."""
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(value[error.start])
            raise self.error(f'"{name}" has a lone surrogate (U+{code:04X})') from None
        return value

    def number(self, name: str) -> float:
        """The value of a field that must be a finite number, or the text of one in CSV or TSV."""
        value = self.values[name]
        if isinstance(value, _Cell):
            try:
                value = float(value)
            except ValueError:
                raise self.error(f'"{name}" must be a number, not {str(value)[:40]!r}') from None
        number_like = isinstance(value, int | float) and not isinstance(value, bool)
        if not number_like or not math.isfinite(value):
            raise self.error(f'"{name}" must be a finite number, not {kind_of(value)}')
        return float(value)


class _Cell(str):
    """A value of a CSV or TSV file, where everything is text, also a number."""

    __slots__ = ()


def as_cells(values: dict[str, str], names: Sequence[str]) -> dict[str, Any]:
    """The values of a CSV or TSV row. Empty cells of the optional fields `names` are absent, and
    the others may be read as numbers."""
    for name in names:
        if name in values:
            text = values.pop(name)
            if text.strip():
                values[name] = _Cell(text)
    return values


def expected(fields: Sequence[Field]) -> str:
    """The required fields for a message: {"text", "label"}."""
    return "{" + ", ".join(f'"{field.name}"' for field in fields if field.required) + "}"


def check_columns(columns: Columns, fields: Sequence[Field]) -> None:
    """Refuse a mapping of columns with a field that the rows do not have.

    Args:
        columns: field name -> column name.
        fields: the fields of a row.

    Raises:
        InputError: a key of `columns` is not the name of a field.
    """
    names = [field.name for field in fields]
    for name in columns:
        if name not in names:
            raise unknown("field in columns", name, names)


def column_value(row: Mapping[str, Any], column: str, where: str) -> Any:
    """The value of a column of an object; `translation.en` is the key "en" of the object
    "translation", as in translation data of Hugging Face.

    Raises:
        InputError: the object does not have this column.
    """
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    value = row.get(outer)
    if not isinstance(value, Mapping) or inner not in value:
        raise no_column(column, list(row), where)
    return value[inner]


def find_columns(
    names: Sequence[str],
    fields: Sequence[Field],
    columns: Columns,
    where: str,
    nested: bool = False,
    in_memory: bool = False,
) -> dict[str, str]:
    """The column of each field.

    Args:
        names: the columns of a file, or the keys of an object.
        fields: the fields of a row.
        columns: the user's mapping of field names to column names; it may be empty or incomplete.
        where: the place for error messages.
        nested: whether a column may be the key of an inner object (see `column_value`).
        in_memory: whether the row is a Python object, so that messages show `columns` as a dict.

    Returns:
        field name -> column name; without an optional field that has no column.

    Raises:
        InputError: a column does not exist, a required field has no column, or several columns
            have a usual name of a field. The message lists the columns.
    """
    chosen: dict[str, str] = {}
    used = set(columns.values())
    for field in fields:
        column = columns.get(field.name)
        if column is not None:
            if column not in names and not (nested and column.partition(".")[0] in names):
                raise no_column(column, names, where)
        elif field.name in names:
            column = field.name
        else:
            usual = {field.name, *field.aliases}
            near = [name for name in names if name.strip().lower() in usual and name not in used]
            if len(near) > 1:
                raise InputError(
                    f'{where}: several columns can be "{field.name}": {", ".join(near)}; name the '
                    f"column: {_columns_value({field.name: near[0]}, in_memory)}"
                )
            column = near[0] if near else None
        if column is not None:
            chosen[field.name] = column
    missing = [field.name for field in fields if field.required and field.name not in chosen]
    if missing:
        message = f'{where}: no "{missing[0]}" (expected {expected(fields)})'
        if set(names) - set(chosen.values()):
            if not nested and not chosen and any(map(_looks_like_data, names)):
                shown = ", ".join(repr(_short(name)) for name in names[:MOST_LISTED])
                header = ",".join(missing)
                raise InputError(
                    f"{where}: the first line must name the columns, but it is {shown}: insert a "
                    f"header line, such as {header}"
                )
            free = [name for name in names if name not in chosen.values()]
            free += ["NAME"] * len(missing)
            example = {name: _short(free[i]) for i, name in enumerate(missing)}
            named = _columns_value(example, in_memory)
            message += f"; {listed(names)}: name the missing ones, for example with {named}"
        raise InputError(message)
    return chosen


def no_column(column: str, names: Sequence[str], where: str) -> InputError:
    """The error for a column that does not exist; its message suggests a similar one."""
    near = get_close_matches(column, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(f"{where}: no column {column!r:.60}; {hint}{listed(names)}")


def _looks_like_data(name: str) -> bool:
    """Whether the cell of a first line is probably a value and not the name of a column."""
    try:
        float(name)
    except ValueError:
        return len(name) > LONGEST_NAME or len(name.split()) > 4
    return True


def _columns_value(columns: Columns, in_memory: bool) -> str:
    """The value of `columns` for a message: `columns label=NAME`, or a dict for Python."""
    if in_memory:
        return f"columns={json.dumps(columns, ensure_ascii=False)}"
    return f"columns {','.join(f'{name}={column}' for name, column in columns.items())}"


def listed(names: Sequence[str]) -> str:
    """The columns of a file for a message."""
    listing = ", ".join(_short(name) or '""' for name in names[:MOST_LISTED])
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"the columns are {listing}{more}" if names else "there are no columns"


def _short(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def kind_of(value: object) -> str:
    """The type of a value in the words of JSON, for messages."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    names = {str: "a string", bool: "a truth value", list: "a list", dict: "an object"}
    for kind, name in names.items():
        if isinstance(value, kind):
            return name
    if isinstance(value, int | float):
        return "a number"
    return "null" if value is None else f"a value of the type {type(value).__name__}"
