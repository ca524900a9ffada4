"""What every task is: files -> examples -> a packed batch -> a loss; and a score at the end.

A task knows its texts and its vocabulary, never the trainer. `Sequences` (sequences.py) is input
-> target for whichever style the model has; the others say what they do in their own file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.config.sections import Config, DecodingConfig
from regard.decoding.answers import Answer
from regard.decoding.engines.cpu import hidden
from regard.decoding.requests import by_size
from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.tasks.bootstrap import Metric
from regard.text.batching import Packed
from regard.text.corpus import Report
from regard.text.store import Store
from regard.text.tokenizer import Tokenizer
from regard.training.losses import Loss, token_loss

Ids = NDArray[np.int64]
Say = Callable[[str], None]
Row = TypeVar("Row", bound="tuple[Any, ...]")
EVALUATED_TOKENS = 16_384  # of one batch that is only looked at


@dataclass
class Evaluation:
    """The scores of a model on some examples, and what a bootstrap needs to know to doubt them."""

    scores: dict[str, Any]  # the first is the one that counts
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    count: int = 0
    samples: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)  # texts, where the task writes any
    references: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # tables for programs and pictures
    pieces: dict[int, int] = field(default_factory=dict)  # example -> pieces, if it was too long


def in_pieces(answers: Sequence[Answer]) -> dict[int, int]:
    """Which texts had to be cut, and into how many pieces."""
    return {i: len(answer.pieces) for i, answer in enumerate(answers) if answer.pieces}


class Task(ABC):
    """One of the six, with its vocabulary."""

    name: ClassVar[str]
    files: ClassVar[str] = "one or more files"
    counted: ClassVar[int] = -1  # the side of which training.batch_tokens says how much is read
    better: ClassVar[str]  # the score that validation compares weights by

    def __init__(self, tokenizer: Tokenizer, style: str) -> None:
        self.tokenizer, self.style = tokenizer, style

    # ---- data ---------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def read(cls, files: Sequence[Path], config: Config, say: Say | None = None) -> Iterator[Any]:
        """The examples of the files; whatever is wrong with one is said with its line."""

    @classmethod
    @abstractmethod
    def texts(cls, example: Any) -> Iterable[str]:
        """All text of an example: what a vocabulary is learned from."""

    def check(self, example: Any) -> None:  # noqa: B027
        """Refuse an example that could be read but cannot be used."""

    @classmethod
    def check_files(cls, files: Sequence[Path]) -> None:
        """How many files there have to be."""
        for i, path in enumerate(files):
            if path in files[:i]:
                raise InputError(f"{path} is given twice")

    @abstractmethod
    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, Report]:
        """The files as token ids."""

    def sizes(self, store: Store) -> list[NDArray[Any]]:
        """What each example takes of a row: for each stack, the tokens it reads."""
        return [*store.lengths]

    # ---- training -----------------------------------------------------------------------

    @abstractmethod
    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Any:
        """The examples of one row, packed. seed: of all that is left to chance; 0: nothing is."""

    @property
    def loss(self) -> Loss:
        """The loss of a batch (training/losses.py)."""
        return token_loss

    def model_options(self) -> dict[str, Any]:
        """What of a model's configuration only the files can tell."""
        size = self.tokenizer.size
        return {"vocabulary_size": size, "source_vocabulary_size": size}

    def prepare(self, store: Store, config: Config) -> None:  # noqa: B027
        """Look at the training data once, before the first step."""

    def finish(self, model: Transformer, examples: Sequence[Any]) -> bool:
        """Learn something from held-out examples once the weights are chosen; whether it did."""
        return False

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder / "tokenizer.json")

    # ---- use ----------------------------------------------------------------------------

    @abstractmethod
    def evaluate(
        self,
        model: Transformer,
        examples: Sequence[Any],
        config: Config,
        decoding: DecodingConfig,
    ) -> Evaluation:
        """The task's metrics on examples."""

    def check_comparable(self, other: Any) -> None:  # noqa: B027
        """Refuse a model of the same task whose figures cannot be set beside this one's."""

    def from_loss(self, loss: float, store: Store) -> dict[str, Any] | None:
        """What a validation says where the loss says everything."""
        return None


def packed(rows: Sequence[NDArray[Any]], device: torch.device) -> Packed:
    tokens, offsets = np.concatenate(rows).astype(np.int64), bounds(rows)
    return Packed(torch.from_numpy(tokens), torch.from_numpy(offsets)).to(device)


def bounds(rows: Sequence[NDArray[Any]]) -> Ids:
    """[B+1]: where each row begins when they stand end to end."""
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])])


@torch.no_grad()
def forward(
    model: Transformer, rows: Sequence[Sequence[int]], read: Callable[[Packed, Tensor], list[Any]]
) -> list[Any]:
    """Run one stack over sequences in batches of similar length, and `read` something off each
    batch's vectors [N, D]: a list with an entry for each sequence, given back in order."""
    device = model.output_matrix().device
    found: dict[int, Any] = {}
    for batch in by_size([len(row) for row in rows], EVALUATED_TOKENS):
        row = Packed.of([rows[i] for i in batch]).to(device)
        found.update(zip(batch, read(row, hidden(model, row)), strict=True))
    return [found[i] for i in range(len(rows))]


def without_duplicates(
    rows: Iterable[tuple[Path, Row]], what: str, say: Say | None
) -> Iterator[tuple[Path, Row]]:
    """The rows (line number first) of several files, after the rule of data.duplicates."""
    seen: dict[int, tuple[Path, int]] = {}
    count, first = 0, ""
    for path, row in rows:
        line = int(row[0])
        before = seen.setdefault(hash(row[1:]), (path, line))
        if before != (path, line):
            where = f"{path}:{line}: the same row as {before[0]}:{before[1]}"
            if what == "refuse":
                raise InputError(f"{where}: remove it, or --set data.duplicates=keep or drop")
            count, first = count + 1, first or where
            if what == "drop":
                continue
        yield path, row
    if count and say is not None:
        kept = "kept" if what == "keep" else "left out"
        more = f" ({count:,} such rows, all {kept}: see data.duplicates)"
        say(first + more)


def read_rows(
    files: Sequence[Path],
    reader: Callable[[Path], Iterator[Row]],
    config: Config,
    say: Say | None = None,
) -> Iterator[tuple[Path, Row]]:
    """The rows of all files with the file they stand in, duplicates treated as data.duplicates
    says."""
    rows = ((path, row) for path in files for row in reader(path))
    return without_duplicates(rows, config.data.duplicates, say)
