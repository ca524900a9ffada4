"""External tokenizers: Hugging Face tokenizers, and Python objects with `encode` and `decode`.

The ids of a tokenizer are shifted by the number of special tokens: id i of the tokenizer is id
i + 6 of the model, and ids 0 to 5 are the special tokens of `Tokenizer`. So a tokenizer needs no
special tokens of its own, and no text becomes a special token of the model.

A Hugging Face tokenizer is saved as its own tokenizer.json. Any other object cannot be saved
without executing code from a file when it is loaded, so `regard.load` needs the object again and
compares its vocabulary with the one that the model was trained with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tokenizers
from numpy.typing import NDArray

from regard.errors import InputError
from regard.text.arguments import utf8
from regard.text.tokenizer import (
    FORMAT,
    MOST_TOKENS,
    SPECIALS,
    VERSION,
    Tokenizer,
)

FIRST = len(SPECIALS)
KIND = "external"
LONGEST = 2**31
PROBE = "The quick brown fox jumps over 13 lazy dogs. Größe, 数, \t\n"


@runtime_checkable
class TextTokenizer(Protocol):
    """The interface of a user-defined tokenizer. The number of its tokens is its `vocab_size`,
    `vocabulary_size` or `size`, or its length; its ids are 0 to this number minus 1."""

    def encode(self, text: str) -> Sequence[int]:
        """The token ids of a text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        ...


class ExternalTokenizer(Tokenizer):
    """A `Tokenizer` that calls an external tokenizer. See `as_tokenizer`."""

    first = FIRST  # the model's id for id 0 of the tokenizer
    exact = False
    longest = LONGEST  # the characters of a token are not limited

    def __init__(self, tokenizer: Any, copy: bool = True) -> None:
        """copy: copy a tokenizer of the library, because its settings are changed."""
        self.kind = KIND
        self.inner, self.fast = tokenizer, _backend(tokenizer, copy)
        # Slow tokenizers of transformers add their special tokens by default.
        slow = self.fast is None and hasattr(tokenizer, "all_special_ids")
        self._encode_options = {"add_special_tokens": False} if slow else {}
        self._decode_options = {"skip_special_tokens": True} if slow else {}
        self.size = self.first + _vocabulary_size(tokenizer, self.fast)

    # Text to ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if self.fast is not None:
            for text in texts:
                utf8(text)
            with library_errors("the tokenizer cannot encode the text"):
                encodings = self.fast.encode_batch_fast(list(texts), add_special_tokens=False)
            if not self.first:
                return [encoding.ids for encoding in encodings]
            return [[self.first + id for id in encoding.ids] for encoding in encodings]
        return [self._checked(text) for text in texts]

    def _checked(self, text: str) -> list[int]:
        try:
            ids = [int(id) for id in self.inner.encode(text, **self._encode_options)]
        except InputError:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise InputError(
                f"the tokenizer cannot encode {text!r:.60} ({message:.100})"
            ) from error
        for id in ids:
            if not 0 <= id < self.size - self.first:
                raise InputError(
                    f"the tokenizer returned the id {id} for {text!r:.60}: its ids must be from 0 "
                    f"to {self.size - self.first - 1}"
                )
        return [self.first + id for id in ids]

    def words(self, text: str) -> list[bytes]:
        raise InputError("an external tokenizer has no merges: set data.bpe_dropout=0")

    # Ids to text

    def decode(self, ids: Sequence[int]) -> str:
        own = [int(id) - self.first for id in ids if self._check(id) >= self.first]
        if self.fast is not None:
            return self.fast.decode(own, skip_special_tokens=True) if own else ""
        return str(self.inner.decode(own, **self._decode_options)) if own else ""

    def spelling(self, id: int) -> str:
        return self.decode([id])

    def is_unused(self, id: int) -> bool:
        return self.fast is not None and not self.fast.id_to_token(id - self.first)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Each token in readable form."""
        return [self._token(self._check(id)) for id in ids]

    def _token(self, id: int) -> str:
        if id < self.first:
            return SPECIALS[id]
        token = None if self.fast is None else self.fast.id_to_token(id - self.first)
        return self.decode([id]) if token is None else token

    def _check(self, id: int) -> int:
        if not 0 <= id < self.size:
            raise InputError(
                f"token id {id} is outside the vocabulary of {self.size} (0 to {self.size - 1})"
            )
        return id

    @cached_property
    def pieces(self) -> list[bytes]:  # type: ignore[override]
        """The bytes of each token alone, which need not add up to those of a text."""
        return [b"" if id < self.first else self._alone(id).encode() for id in range(self.size)]

    def _alone(self, id: int) -> str:
        try:
            return self.decode([id])
        except Exception:  # noqa: BLE001  an object may refuse an id that no text has
            return ""

    def word_starts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every token is a word of its own."""
        return np.arange(len(ids))

    # Saving

    @cached_property
    def _content(self) -> bytes:
        if self.fast is not None:
            return (self.fast.to_str(pretty=True) + "\n").encode()
        digest = hashlib.sha256(b"\0".join(self.pieces))
        for probe in (PROBE, " ".join(piece.decode() for piece in self.pieces[self.first :])):
            try:
                digest.update(repr(self._checked(probe)).encode())
            except InputError:  # it does not support all characters
                digest.update(b"not encoded")
        whole = {
            "format": FORMAT, "version": VERSION, "kind": KIND, "specials": SPECIALS,
            "size": self.size, "vocabulary": digest.hexdigest(),
        }  # fmt: skip
        return (json.dumps(whole, indent=0) + "\n").encode()

    def __repr__(self) -> str:
        return f"ExternalTokenizer({type(self.inner).__name__}, {self.size:,} tokens)"


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """A `Tokenizer` for any supported object.

    Args:
        tokenizer: a `Tokenizer`, a tokenizer of the library `tokenizers` or of `transformers`, or a
            `TextTokenizer`.

    Raises:
        InputError: the object has no `encode`, `decode` or vocabulary size.
    """
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if not isinstance(tokenizer, TextTokenizer) or isinstance(tokenizer, str | bytes):
        raise InputError(
            f"a tokenizer needs the methods encode and decode: {type(tokenizer).__name__} does not "
            "have both"
        )
    return ExternalTokenizer(tokenizer)


def as_tokenizers(tokenizer: Any) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target from one object for both, or from a pair of them."""
    if isinstance(tokenizer, type):
        raise InputError(
            f"tokenizer must be an object, not the class {tokenizer.__name__}: create an instance"
        )
    if isinstance(tokenizer, tuple | list):
        if len(tokenizer) != 2:
            raise InputError(f"tokenizer must be one object or two, not {len(tokenizer)}")
        return as_tokenizer(tokenizer[0]), as_tokenizer(tokenizer[1])
    return (as_tokenizer(tokenizer),) * 2


@contextmanager
def library_errors(message: str) -> Iterator[None]:
    """Turn the errors of the library `tokenizers` into InputErrors.

    Args:
        message: what failed; the library's error is appended.

    Raises:
        InputError: the library raised an exception, or panicked.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001  a panic of the library is not an Exception
        raise InputError(f"{message} ({error!s:.100})") from None


def _backend(tokenizer: Any, copy: bool) -> Any:
    """The tokenizer of the library `tokenizers` in an object, or a copy of it, or None.

    It neither truncates nor pads, and treats the names of special tokens in a text as text.
    """
    library = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of a tokenizer of transformers
    if not isinstance(library, tokenizers.Tokenizer):
        return None
    own: Any = tokenizers.Tokenizer.from_str(library.to_str()) if copy else library
    own.no_truncation()
    own.no_padding()
    own.encode_special_tokens = True
    return own


def _vocabulary_size(tokenizer: Any, fast: Any) -> int:
    if fast is not None:
        ids = fast.get_vocab(with_added_tokens=True).values()
        return max(ids, default=-1) + 1
    size: Any = None
    if hasattr(tokenizer, "all_special_ids") and hasattr(tokenizer, "__len__"):
        size = len(tokenizer)  # vocab_size of transformers does not count added tokens
    else:
        for name in ("vocab_size", "vocabulary_size", "size", "__len__"):
            if hasattr(tokenizer, name):
                size = getattr(tokenizer, name)
                size = size() if callable(size) else size
                break
    if type(size) is not int or not 1 <= size <= MOST_TOKENS:
        raise InputError(
            f"the tokenizer {type(tokenizer).__name__} needs vocab_size, a number from 1 to "
            f"{MOST_TOKENS:,}, not {size!r:.60}"
        )
    return size
