"""How a task reads its files: the part of `Task` that turns files into examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from regard.config.sections import Config
from regard.errors import InputError
from regard.text.corpus import RowFormat
from regard.text.reading import Position
from regard.text.records import Columns, check_columns
from regard.text.split import part_of

Say = Callable[[str], None]
Row = TypeVar("Row", bound="tuple[Any, ...]")


class ExampleReader(ABC):
    """Reads the examples of files. The usual example is (path, row)."""

    name: ClassVar[str]  # of the task
    row_format: ClassVar[RowFormat[Any] | None] = None  # fields of a row; None: not by name

    @classmethod
    def read_file(cls, path: Path, columns: Columns | None = None) -> Iterator[Any]:
        """The rows of a file: named tuples that begin with the line number.

        columns: field name -> column name (data.columns). A task without a `row_format` that
            implements this method need not have this argument.
        """
        if cls.row_format is None:
            raise NotImplementedError
        return cls.row_format.read(path, columns=columns)

    @classmethod
    def read(
        cls,
        files: Sequence[Path],
        config: Config,
        say: Say | None = None,
        position: Position | None = None,
    ) -> Iterator[Any]:
        """The examples of the files, as `read_all` returns them.

        If data.valid is a percentage, the training files have only the examples that are not held
        out, and [Path("5%")] has the others.

        Args:
            files: the files.
            config: the configuration; the section `data` says how to read them.
            say: called with messages about the data.
            position: called from time to time with the number of bytes read.

        Raises:
            InputError: a row is not valid; the message names the file and the line.
        """
        part = part_of(files, config.data)
        if part is None:
            return cls.read_all(files, config, say, position)

        def read() -> Iterator[Any]:
            return cls.read_all(part.paths, config, say, position)

        def again() -> Iterator[Any]:
            return cls.read_all(part.paths, config)

        return part.select(read, again, lambda example: next(iter(cls.texts(example))))

    @classmethod
    def read_all(
        cls,
        files: Sequence[Path],
        config: Config,
        say: Say | None = None,
        position: Position | None = None,
    ) -> Iterator[Any]:
        """All examples of the files: (path, row). An error names the file and the line."""
        columns = config.data.columns
        rows = (
            (path, row)
            for path in files
            for row in (cls.read_file(path, columns) if columns else cls.read_file(path))
        )
        return without_duplicates(rows, config.data.duplicates, say)

    @classmethod
    def check_columns(cls, columns: Columns) -> None:
        """Refuse a mapping of columns (data.columns) with a field that the task does not have."""
        if columns and cls.row_format is None:
            raise InputError(f"data.columns: the task {cls.name} does not read columns by name")
        if cls.row_format is not None:
            check_columns(columns, cls.row_format.fields)

    @classmethod
    def input_text(cls, example: Any) -> str:
        """The text of an example that validation data must not share with training data."""
        return next(iter(cls.texts(example)))

    @classmethod
    def reading_identity(cls, files: Sequence[Path], config: Config) -> list[object]:
        """What the examples of the files depend on beside their content: the columns, and the part
        that is held out. Empty if neither is used."""
        part, columns = part_of(files, config.data), config.data.columns
        identity: list[object] = [{"columns": dict(sorted(columns.items()))}] if columns else []
        return [*identity, {"share": part.share, "held_out": part.held_out}] if part else identity

    @classmethod
    def data_files(cls, files: Sequence[Path], config: Config) -> list[Path]:
        """The files to open: the training files instead of a percentage of them."""
        part = part_of(files, config.data)
        return list(files) if part is None else part.paths

    @classmethod
    @abstractmethod
    def texts(cls, example: Any) -> Iterable[str]:
        """All text of an example, from which the vocabulary is learned."""

    @classmethod
    def place(cls, example: Any, files: Sequence[Path]) -> str:
        """FILE:LINE of an example."""
        path, row = example
        return f"{path}:{row.line}"

    @classmethod
    def check_files(cls, files: Sequence[Path]) -> None:
        """Refuse a wrong number of files."""
        for i, path in enumerate(files):
            if path in files[:i]:
                raise InputError(f"{path} is given twice")


def without_duplicates(
    rows: Iterable[tuple[Path, Row]], rule: str, say: Say | None
) -> Iterator[tuple[Path, Row]]:
    """The rows (line number first) of several files. rule: data.duplicates."""
    seen: dict[int, tuple[Path, int]] = {}
    count, first = 0, ""
    for path, row in rows:
        line = int(row[0])
        before = seen.setdefault(hash(row[1:]), (path, line))
        if before != (path, line):
            where = f"{path}:{line}: the same row as {before[0]}:{before[1]}"
            if rule == "refuse":
                raise InputError(f"{where}: remove it, or set data.duplicates to keep or drop")
            count, first = count + 1, first or where
            if rule == "drop":
                continue
        yield path, row
    if count and say is not None:
        outcome = "kept" if rule == "keep" else "left out"
        say(f"{first} ({count:,} such rows, all {outcome}: see data.duplicates)")
