"""Documents as training examples: what `generate` and `fill` have in common.

A document of more than data.max_length tokens is read in windows of that length. Their starts are
shifted at random each time, so that every token is seen at every position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from regard.config.sections import Config
from regard.errors import InputError
from regard.tasks.examples import Array, Say
from regard.tasks.lazy import np, runtime
from regard.tasks.task import Ids, Task
from regard.text.corpus import DOCUMENTS, CorpusReport, Document, read_documents
from regard.text.pieces import in_chunks
from regard.text.reading import Position
from regard.text.tables import table_format

if TYPE_CHECKING:
    from regard.tasks.runtime import Chunk, Store


@dataclass(eq=False, repr=False)
class Documents(Task):
    """A task that learns from text alone."""

    files = "text"
    better = "loss"
    row_format = DOCUMENTS
    ends: ClassVar[int]  # whether a document's <eos> is one of its tokens
    before: ClassVar[int]  # number of tokens before those of a window

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

        def encode(report: CorpusReport, position: Position) -> Iterator[Chunk]:
            documents = self.read(files, config, position=position)
            for chunk in in_chunks((document.text for document in documents), len):
                yield [[[*ids, tokenizer.eos] for ids in tokenizer.encode_batch(chunk)]]

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
                "the two models have other vocabularies or windows: only bits_per_byte of two "
                "separate calls can be compared"
            )

    def windows(self, store: Store) -> Windows:
        """The windows of a store."""
        if store.fingerprint not in self._windows:
            every = windows(self._lengths(store), self.longest - self.before)
            self._windows[store.fingerprint] = every
        return self._windows[store.fingerprint]

    def _lengths(self, store: Store) -> Array:
        return store.lengths[0] - (1 - self.ends)

    def sizes(self, store: Store) -> list[Array]:
        return [self.windows(store).lengths + self.before]

    def chosen(self, store: Store, examples: Ids, seed: int) -> Windows:
        """The windows of a batch; seed: of the random shifts, 0: no shifts."""
        every = self.windows(store)
        if seed:
            return every.shifted(examples, self._lengths(store), seed)
        return Windows(*(column[examples] for column in every))


def perplexity(loss: float) -> float:
    from regard.training.progress import perplexity  # imports rich

    return perplexity(loss)


class Windows(NamedTuple):
    """Sections of documents: window i is `lengths[i]` tokens of document `documents[i]`."""

    documents: Ids
    starts: Ids
    lengths: Ids

    def shifted(self, chosen: Ids, sizes: Array, seed: int) -> Windows:
        """The chosen windows, each moved at random by up to half its length in its document."""
        documents, starts, lengths = (column[chosen] for column in self)
        random = np.random.default_rng(seed)
        half = lengths // 2
        moved = starts + random.integers(-half, half + 1)
        return Windows(documents, np.clip(moved, 0, sizes[documents] - lengths), lengths)


def windows(sizes: Array, longest: int) -> Windows:
    """Documents of these sizes, end to end in windows of at most `longest` tokens."""
    sizes = sizes.astype(np.int64)
    counts = -(-sizes // longest)
    documents = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = number * longest
    return Windows(documents, starts, np.minimum(longest, sizes[documents] - starts))
