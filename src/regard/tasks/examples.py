"""The part of `Task` that turns files into examples, and examples into token ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from regard.config.sections import Config
from regard.errors import InputError
from regard.tasks.lazy import runtime
from regard.text.corpus import CorpusReport, RowFormat
from regard.text.pieces import in_chunks
from regard.text.reading import Position
from regard.text.records import Columns, check_columns
from regard.text.split import part_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.tasks.runtime import Chunk, Store

Array: TypeAlias = "NDArray[Any]"
Say = Callable[[str], None]
Row = TypeVar("Row", bound="tuple[Any, ...]")


class ExampleReader(ABC):
    """Reads the examples of files. The usual example is (path, row)."""

    name: ClassVar[str]  # of the task
    row_format: ClassVar[RowFormat[Any] | None] = None  # fields of a row; None: not by name

    @classmethod
    def read_file(cls, path: Path, columns: Columns | None = None) -> Iterator[Any]:
        """Read the rows of a file.

        Args:
            path: the file.
            columns: field name -> column name (data.columns). A task without a `row_format` that
                implements this method need not have this argument.

        Returns:
            An iterator over named tuples that begin with the line number.

        Raises:
            InputError: a row is not valid; the message names the file and the line.
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
            config: the configuration; its section `data` defines how they are read.
            say: called with messages about the data.
            position: called from time to time with the number of bytes read.

        Returns:
            An iterator over examples.

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
        """Read all examples of the files.

        Args:
            files: the files.
            config: the configuration; its section `data` defines how they are read.
            say: called with messages about the data.
            position: called from time to time with the number of bytes read.

        Returns:
            An iterator over (path, row).

        Raises:
            InputError: a row is not valid; the message names the file and the line.
        """
        columns = config.data.columns
        rows = (
            (path, row)
            for path in files
            for row in (cls.read_file(path, columns) if columns else cls.read_file(path))
        )
        return without_duplicates(rows, config.data.duplicates, say)

    @classmethod
    def format_of(cls, names: Sequence[str], columns: Columns) -> RowFormat[Any] | None:
        """The format of rows with these columns.

        Args:
            names: the names of the columns.
            columns: field name -> column name.

        Returns:
            The format; None if the task does not read columns by name.
        """
        return cls.row_format

    @classmethod
    def check_columns(cls, columns: Columns) -> None:
        """Refuse a mapping of columns with a field that the task does not have.

        Args:
            columns: field name -> column name (data.columns).

        Raises:
            InputError: the task does not have a field, or does not read columns by name.
        """
        if columns and cls.row_format is None:
            raise InputError(f"data.columns: the task {cls.name} does not read columns by name")
        if cls.row_format is not None:
            check_columns(columns, cls.row_format.fields)

    @classmethod
    def input_text(cls, example: Any) -> str:
        """The text of an example that validation data must not share with training data.

        Args:
            example: an example, as `read` returns it.

        Returns:
            The text.
        """
        return next(iter(cls.texts(example)))

    @classmethod
    def reading_identity(cls, files: Sequence[Path], config: Config) -> list[object]:
        """The options that the examples of files depend on beside the content of the files: the
        columns, and the part that is held out.

        Args:
            files: the files.
            config: the configuration of a run.

        Returns:
            JSON values; empty if neither option is used.
        """
        part, columns = part_of(files, config.data), config.data.columns
        identity: list[object] = [{"columns": dict(sorted(columns.items()))}] if columns else []
        return [*identity, {"share": part.share, "held_out": part.held_out}] if part else identity

    @classmethod
    def data_files(cls, files: Sequence[Path], config: Config) -> list[Path]:
        """The files to open: the training files instead of a percentage of them.

        Args:
            files: the files, or [Path("5%")].
            config: the configuration of a run.

        Returns:
            Paths of files.
        """
        part = part_of(files, config.data)
        return list(files) if part is None else part.paths

    @classmethod
    @abstractmethod
    def texts(cls, example: Any) -> Iterable[str]:
        """All text of an example, from which the vocabulary is learned.

        Args:
            example: an example, as `read` returns it.

        Returns:
            The texts; the first is the input.
        """

    @classmethod
    def place(cls, example: Any, files: Sequence[Path]) -> str:
        """The origin of an example, for messages.

        Args:
            example: an example, as `read` returns it.
            files: the files that were read.

        Returns:
            "FILE:LINE".
        """
        path, row = example
        return f"{path}:{row.line}"

    @classmethod
    def check_files(cls, files: Sequence[Path]) -> None:
        """Refuse a wrong number of files.

        Args:
            files: the files.

        Raises:
            InputError: a file is missing, or is listed twice.
        """
        for i, path in enumerate(files):
            if path in files[:i]:
                raise InputError(f"{path} is given twice")

    # ---- token ids ----------------------------------------------------------------------

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, CorpusReport]:
        """Encode the files as token ids, or open an earlier result.

        Args:
            files: the files.
            folder: the folder of the results.
            config: the configuration of a run.
            quiet: no progress bar.

        Returns:
            The token ids, and the number of examples that were left out, by reason.
        """

        def encode(report: CorpusReport, position: Position) -> Iterator[Chunk]:
            examples = self.read(files, config)
            for chunk in in_chunks(examples, lambda example: sum(map(len, self.texts(example)))):
                yield self.encode(chunk, config, report)

        identity = [*self.identity(config), *self.reading_identity(files, config)]
        types, paths = self.types(files, config), self.data_files(files, config)
        return runtime.build(paths, identity, types, encode, folder, quiet)

    def encode(self, examples: list[Any], config: Config, report: CorpusReport) -> Chunk:
        """Encode examples as token ids.

        Args:
            examples: examples, as `read` returns them.
            config: the configuration of a run.
            report: counts the examples that are left out.

        Returns:
            For each side of the store a list of sequences.
        """
        raise NotImplementedError

    def identity(self, config: Config) -> list[object]:
        """The values that the result of `encode` depends on beside the files.

        Args:
            config: the configuration of a run.

        Returns:
            JSON values.
        """
        raise NotImplementedError

    def types(self, files: Sequence[Path], config: Config) -> list[str]:
        """The number type of each side of the store.

        Args:
            files: the files.
            config: the configuration of a run.

        Returns:
            Names of NumPy dtypes.
        """
        raise NotImplementedError

    def sizes(self, store: Store) -> list[Array]:
        """The number of tokens that each stack reads of each example.

        Args:
            store: the token ids of all examples.

        Returns:
            An array for each stack.
        """
        return [*store.lengths]


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
