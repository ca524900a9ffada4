"""The data arguments of `regard.train` and `Model.evaluate`: file names, a share, or rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.errors import InputError
from regard.text.compression import COMPRESSED
from regard.text.tables import table_format

SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


def as_share(data: Any, name: str) -> str | None:
    """A share of the training data as a percentage, for example "5%"; None if `data` is not a
    share.

    Args:
        data: the argument, of any type.
        name: the name of the argument, for messages.

    Raises:
        InputError: `data` is a number that is not a share.
    """
    if isinstance(data, bool | int):
        raise InputError(
            f'{name}={data!r} is not data: name files or give rows, or a share such as "5%" or 0.05'
        )
    if isinstance(data, float):
        return f"{100 * data:g}%"
    if isinstance(data, str) and (match := SHARE.fullmatch(data)):
        return f"{match[1]}%"
    return None


def as_paths(data: Any) -> list[str] | None:
    """The names of data files; None if `data` are rows in memory.

    A list of strings is a list of file names if one of them is an existing file, or if all of them
    end like the name of a data file, so that a misspelt name is never used as text.
    """
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, list | tuple) and data:
        paths = all(isinstance(item, os.PathLike) for item in data)
        texts = all(isinstance(item, str | os.PathLike) for item in data)
        if paths or (texts and (isinstance(data, tuple) or _are_files(data))):
            return [os.fspath(item) for item in data]
    return None


def _are_files(names: list[Any]) -> bool:
    return all(map(_has_data_suffix, names)) or any(map(os.path.isfile, names))


def _has_data_suffix(name: str | os.PathLike[str]) -> bool:
    """Whether a string ends like the name of a data file."""
    text = os.fspath(name).lower()
    for suffix in COMPRESSED:
        text = text.removesuffix(suffix)
    return re.search(r"\w\.\w+$", text) is not None and (
        text.endswith(".txt") or table_format(text) is not None
    )


def column_names(columns: Any) -> dict[str, str]:
    """The argument `columns` as a dictionary.

    Raises:
        InputError: `columns` is not a mapping of strings to strings.
    """
    if columns is None:
        return {}
    if not isinstance(columns, Mapping) or not all(
        isinstance(name, str) for item in columns.items() for name in item
    ):
        raise InputError(
            "columns must be a dict of field names and column names, for example "
            f'{{"label": "stars"}}, not {columns!r:.60}'
        )
    return dict(columns)


@contextmanager
def row_errors(folder: Path) -> Iterator[None]:
    """Name the row in an error about a file that was written for rows in memory.

    Args:
        folder: the temporary folder of the files train.jsonl, valid.jsonl, ...
    """
    try:
        yield
    except InputError as error:
        place = re.compile(re.escape(str(folder) + os.sep) + r"(\w+)\.jsonl:(\d+)")
        message = place.sub(r"\1: row \2", str(error))
        if message == str(error):
            raise
        raise InputError(message) from None
