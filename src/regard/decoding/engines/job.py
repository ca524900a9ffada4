"""The interface between a search and the decoding engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from regard.config.sections import DecodingConfig


@dataclass(frozen=True)
class Job:
    """The batch of sentences that one search decodes; each sequence has one entry per sentence."""

    options: DecodingConfig
    limits: Sequence[int]  # the largest number of steps
    prefixes: Sequence[Sequence[int]]  # the tokens of the output that are given
    noise_keys: Sequence[bytes]  # for sampling; empty otherwise
    sources: Sequence[Sequence[int]] | None  # the encoder's input, where there is an encoder
    read: Sequence[Sequence[int]]  # what the decoder reads before the first step: all or none
    newest: Sequence[int]  # the token that the first step reads

    @property
    def longest_prefix(self) -> int:
        return max(len(tokens) for tokens in self.prefixes)


class Engine(Protocol):
    """One search on one engine. Iterating over it runs the search and yields after each step."""

    def __iter__(self) -> Iterator[None]: ...

    def records(self) -> NDArray[Any]:
        """The candidates of all steps so far (see `Beams.records`): [steps, B, C, 4]."""
