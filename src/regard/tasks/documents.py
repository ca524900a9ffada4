"""Documents as training examples: the base class of the tasks generate and fill.

A document of more than data.max_length tokens is read in windows of that length. In training the
windows are shifted at random, so that the model sees each token at different positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from regard.config.sections import Config
from regard.errors import InputError
from regard.tasks.examples import Say
from regard.tasks.lazy import np, runtime
from regard.tasks.task import Array, Ids, Task
from regard.text.corpus import DOCUMENTS, CorpusReport, Document, read_documents
from regard.text.pieces import in_chunks
from regard.text.reading import Position
from regard.text.tables import table_format

if TYPE_CHECKING:
    from regard.tasks.runtime import Chunk, Store


@dataclass(eq=False, repr=False)
class Documents(Task):
    """A task whose training data is plain text."""

    files = "text"
    better = "loss"
    row_format = DOCUMENTS
    ends: ClassVar[int]  # 1 if <eos> counts as a token of the document, otherwise 0

    _windows: dict[str, Windows] = field(default_factory=dict, init=False)

    @classmethod
    def read_all(
        cls,
        files: Sequence[Path],
        config: Config,
        say: Say | None = None,
        position: Position | None = None,
    ) -> Iterator[Document]:
        whole, columns = config.data.documents == "file", config.data.columns
        for path in files:
            yield from read_documents(path, position, whole, columns)

    @classmethod
    def texts(cls, example: Document) -> Iterable[str]:
        return [example.text]

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, CorpusReport]:
        whole, tokenizer = config.data.documents == "file", self.tokenizer
        if self.ends:
            tokenizer.require(self.name, "eos")

        def encode(report: CorpusReport, position: Position) -> Iterator[Chunk]:
            documents = self.read(files, config, position=position)
            for chunk in in_chunks((document.text for document in documents), len):
                yield [[[*ids, tokenizer.end] for ids in tokenizer.encode_batch(chunk)]]

        identity = ["documents", tokenizer.fingerprint, whole]
        identity += self.reading_identity(files, config)
        paths, types = self.data_files(files, config), [runtime.token_type(tokenizer.size)]
        return runtime.build(paths, identity, types, encode, folder, quiet)

    @classmethod
    def reading_identity(cls, files: Sequence[Path], config: Config) -> list[object]:
        paths = cls.data_files(files, config)
        tables = any(table_format(path) not in (None, "jsonl") for path in paths)
        return [*super().reading_identity(files, config), *(["table"] if tables else [])]

    def check_comparable(self, other: Documents) -> None:
        same = self.tokenizer.fingerprint == other.tokenizer.fingerprint
        if not same or self.longest != other.longest:
            raise InputError(
                "the two models have different vocabularies or window lengths: evaluate them "
                "separately, and compare bits_per_byte"
            )

    def windows(self, store: Store) -> Windows:
        """Return the windows of all documents of a store."""
        if store.fingerprint not in self._windows:
            lengths = self._lengths(store)
            self._windows[store.fingerprint] = windows(lengths, self.window)
        return self._windows[store.fingerprint]

    @property
    def window(self) -> int:
        """The largest number of tokens of a window."""
        return self.longest

    def _lengths(self, store: Store) -> Array:
        return store.lengths[0] - (1 - self.ends)

    def sizes(self, store: Store) -> list[Array]:
        return [self.windows(store).lengths + self.longest - self.window]

    def chosen(self, store: Store, examples: Ids, seed: int) -> Windows:
        """Return the windows of a batch, shifted at random unless the seed is 0."""
        all_windows = self.windows(store)
        if seed:
            return all_windows.shifted(examples, self._lengths(store), seed)
        return Windows(*(column[examples] for column in all_windows))


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean loss per token."""
    from regard.training.progress import perplexity  # imports rich

    return perplexity(loss)


class Windows(NamedTuple):
    """Sections of documents: window i has `lengths[i]` tokens of document `documents[i]`, from the
    token `starts[i]`."""

    documents: Ids
    starts: Ids
    lengths: Ids

    def shifted(self, chosen: Ids, sizes: Array, seed: int) -> Windows:
        """Return the chosen windows, each shifted at random by up to half its length within its
        document."""
        documents, starts, lengths = (column[chosen] for column in self)
        random = np.random.default_rng(seed)
        half = lengths // 2
        moved = starts + random.integers(-half, half + 1)
        return Windows(documents, np.clip(moved, 0, sizes[documents] - lengths), lengths)


def windows(sizes: Array, longest: int) -> Windows:
    """Divide documents of these sizes into consecutive windows of at most `longest` tokens."""
    sizes = sizes.astype(np.int64)
    counts = -(-sizes // longest)
    documents = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = number * longest
    return Windows(documents, starts, np.minimum(longest, sizes[documents] - starts))
