"""Special tokens: their ids, and their positions around a text.

The models that regard trains share six special tokens. A model from another toolkit has its own
(imported.py), so everything outside this package uses the attributes and methods of its tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError

SPECIALS = ("<unk>", "<bos>", "<eos>", "<cls>", "<sep>", "<mask>")
NAMES = {
    "unk": "a token for unknown text", "bos": "a token that begins an output",
    "eos": "a token that ends a text", "cls": "a token for the class of a text",
    "sep": "a token that separates two texts", "mask": "a mask token",
}  # fmt: skip


class Framing:
    """The special tokens of a tokenizer, and the rows of token ids that a model reads.

    Attributes:
        unk: the token for text that the vocabulary does not cover. An id of -1 means that a model
            has no such token.
        bos: the first token that a decoder reads; for an encoder-decoder, its start token.
        eos: the token that ends an output.
        cls: the first token of an encoder-only model.
        sep: the token between two texts.
        mask: the token to be filled in.
        size: the number of tokens.
    """

    unk, bos, eos, cls, sep, mask = range(len(SPECIALS))
    size: int

    def require(self, task: str, *names: str) -> None:
        """Check that the model has the special tokens that a task needs.

        Args:
            task: the name of the task.
            *names: names of special tokens, such as "mask".

        Raises:
            InputError: the model has no such token.
        """
        for name in names:
            if getattr(self, name) < 0:
                raise InputError(
                    f"the task {task} needs {NAMES[name]} ({name}), but the vocabulary of this "
                    "model has none: use a different model or task"
                )

    # Rows that a model reads

    def around(self, style: str) -> tuple[Sequence[int], Sequence[int]]:
        """The special tokens that a model reads before and after a text.

        Args:
            style: the style of the model.

        Returns:
            An encoder reads <cls> and the text, an encoder-decoder the text and <eos>, a decoder
            <bos> and the text.
        """
        if style == "encoder-decoder":
            return (), (self.eos,)
        return (self.cls if style == "encoder" else self.bos,), ()

    def frame(self, ids: Sequence[int], style: str) -> list[int]:
        """The token ids that a model reads for a text: the text with its special tokens.

        Args:
            ids: the token ids of the text.
            style: the style of the model.

        Returns:
            The token ids.
        """
        begin, end = self.around(style)
        return [*begin, *ids, *end]

    def frame_array(self, ids: NDArray[Any], style: str) -> NDArray[np.int64]:
        """`frame` for an array.

        Args:
            ids: the token ids of the text.
            style: the style of the model.

        Returns:
            The token ids.
        """
        if not len(ids):
            return np.array(self.frame([], style))
        begin, end = (np.array(part, dtype=np.int64) for part in self.around(style))
        return np.concatenate([begin, ids, end])

    def frame_size(self, style: str) -> int:
        """The number of special tokens that the model reads around a text.

        Args:
            style: the style of the model.

        Returns:
            The number of tokens.
        """
        return sum(map(len, self.around(style)))

    def frame_pooled(self, ids: Sequence[int], style: str) -> list[int]:
        """The token ids that a model reads to compute the vector of a text.

        Args:
            ids: the token ids of the text.
            style: the style of the model.

        Returns:
            Like `frame`, but a decoder reads the text and <eos>, so that one token can represent
            the complete text.
        """
        return [*ids, self.eos] if style == "decoder" else self.frame(ids, style)

    def prompt(self, ids: Sequence[int], longest: int) -> list[int]:
        """The token ids that a decoder reads before it continues a text.

        Args:
            ids: the token ids of the text.
            longest: the largest number of tokens.

        Returns:
            <bos> and the text, or the last `longest` tokens of a longer text.
        """
        return [self.bos, *ids] if len(ids) < longest else list(ids[-longest:])

    @property
    def begin(self) -> tuple[int, ...]:
        """The tokens at the beginning of a row with several texts, such as a question and its
        answer."""
        return ()

    @property
    def first_read(self) -> int:
        """The token that a decoder reads before the first token of a document."""
        return self.bos

    @property
    def target_prefix(self) -> tuple[int, ...]:
        """The tokens with which an encoder-decoder begins every output, after `bos`."""
        return ()

    @property
    def end(self) -> int:
        """The token that ends a text in a stored corpus. A model without `eos` never reads it."""
        return self.eos

    # Sets of tokens

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the special tokens."""
        return frozenset(range(len(SPECIALS)))

    @cached_property
    def text_ids(self) -> NDArray[np.int64]:
        """The ids of the tokens that a text can have, in order: all but the special tokens."""
        return np.arange(len(SPECIALS), self.size)
