"""Validation data that is a part of the training data (`data.valid: ["5%"]`), and overlap.

Whether an example is held out depends only on its text: the hash of the text is below a limit or
not. So duplicates of an example are on the same side, and the split does not change if files are
reordered or examples are appended. It is computed again whenever the files are read and is not
stored.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from regard.config.sections import DataConfig
from regard.errors import InputError

SALT = b"regard split 1"  # changing it changes every split
CHUNK = 2**16  # hashes that are compared at once
Example = TypeVar("Example")


def text_hash(text: str) -> int:
    """A hash of 8 bytes that does not depend on white space or on the Python process."""
    content = " ".join(text.split()).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(content, digest_size=8, key=SALT).digest(), "little")


@dataclass(frozen=True)
class Part:
    """A part of the examples of the training files.

    Attributes:
        paths: the training files.
        share: the fraction of the examples that is held out.
        held_out: whether this is the held-out part or the rest.
    """

    paths: list[Path]
    share: float
    held_out: bool

    def select(
        self,
        read: Callable[[], Iterator[Example]],
        again: Callable[[], Iterator[Example]],
        text: Callable[[Example], str],
    ) -> Iterator[Example]:
        """The examples of this part.

        Args:
            read: reads the examples of all files.
            again: the same without messages; it is called first, for the smallest hash.
            text: the text that decides on which side an example is.
        """
        limit = int(self.share * 2**64)
        smallest = 2**64
        for example in again():  # stops at the first example that is held out
            smallest = min(smallest, text_hash(text(example)))
            if smallest < limit:
                break
        limit = max(limit, smallest + 1)  # at least one example is held out
        for example in read():
            if (text_hash(text(example)) < limit) == self.held_out:
                yield example


def part_of(files: Sequence[Path], data: DataConfig) -> Part | None:
    """The part of the training data that a list of files means.

    Args:
        files: the training files or, for the held-out part, the percentage: [Path("5%")].
        data: the section that defines the training files and the percentage.

    Returns:
        The part; None if the files are to be read completely.

    Raises:
        InputError: `files` is a percentage that is not the one of the configuration.
    """
    train = list(map(Path, data.train))
    names = [str(file) for file in files]
    if DataConfig.is_percentage(names):
        if names != data.valid:
            raise InputError(
                f"{names[0]}: the model was not trained with data.valid={names[0]}: use a file of "
                "test data"
            )
        return Part(train, data.valid_share, True)
    if data.valid_share and list(files) == train:
        return Part(train, data.valid_share, False)
    return None


class Overlap:
    """Counts validation examples whose text is also in the training data, up to white space. It
    stores a hash of 8 bytes for each validation example."""

    def __init__(self) -> None:
        self._hashes = array("Q")  # of the validation examples
        self._seen = array("Q")  # of training examples that have not been compared yet
        self._common: set[int] = set()

    def add_validation(self, text: str) -> None:
        """Add the text of a validation example; all of them come before those of training."""
        self._hashes.append(text_hash(text))

    def add_training(self, text: str) -> None:
        """Add the text of a training example."""
        self._seen.append(text_hash(text))
        if len(self._seen) >= CHUNK:
            self._compare()

    def count(self) -> int:
        """The number of validation examples with a text of the training data."""
        self._compare()
        return sum(1 for value in self._hashes if value in self._common)

    def message(self) -> str:
        """A warning about the overlap; empty if there is none."""
        count, total = self.count(), len(self._hashes)
        if not count:
            return ""
        are = "is" if count == 1 else "are"
        return (
            f"{count:,} of {total:,} validation examples ({count / total:.1%}) {are} also in the "
            "training data, which makes validation scores too high: remove them from the training "
            "data"
        )

    def _compare(self) -> None:
        import numpy as np

        seen, known = (np.frombuffer(side, np.uint64) for side in (self._seen, self._hashes))
        self._common.update(seen[np.isin(seen, known)].tolist())
        self._seen = array("Q")
