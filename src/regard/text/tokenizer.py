"""Text to token ids and back: BPE, character and byte vocabularies, learned here.

The six special tokens have ids 0 to 5 and are not part of the vocabulary that text is matched
against: the BPE library numbers its tokens from 0, and 6 is added. So no text, not even `<eos>`,
becomes a special token, and BPE and bytes decode to the same text. There is no padding token,
because nothing is padded.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.console import progress
from regard.errors import InputError, unknown
from regard.files import read_json, write_file
from regard.text.arguments import check_ids, check_string, utf8
from regard.text.byte_level import BYTES, LONGEST_TOKEN, byte_level_bpe, readable
from regard.text.byte_level import SIGNS as SIGNS  # re-exported
from regard.text.framing import SPECIALS as SPECIALS  # re-exported
from regard.text.framing import Framing
from regard.text.learning import learn_characters, learn_merges
from regard.text.pieces import in_chunks, pieces

KINDS = ("bpe", "character", "byte")
FORMAT, VERSION = "regard tokenizer", 1
MOST_TOKENS = 1_000_000
LARGEST_FILE = 32 * 2**20  # bytes; a vocabulary of a million tokens takes about 20 MiB
UNKNOWN = "\ufffd"


class Tokenizer(Framing):
    """Converts text to token ids and back; created by `learn` or `load`.

    The six special tokens have the ids 0 to 5, which are also attributes of the class: `unk`,
    `bos`, `eos`, `cls`, `sep` and `mask`.

    Attributes:
        kind: "bpe", "character" or "byte".
        size: the number of tokens, including the six special ones.
        longest: the largest number of bytes of one token.
        pieces: the bytes of each token.
        exact: whether the pieces of the tokens of a text add up to the text.
        byte_ids: if it is not exact, the tokens that are single bytes.
    """

    exact = True
    byte_ids: frozenset[int] = frozenset()

    def __init__(self, kind: str, entries: Sequence[str] = ()) -> None:
        """entries: the merges of BPE in order ("a b"), or the characters; empty for bytes."""
        if kind not in KINDS:
            raise unknown("data.vocabulary", kind, KINDS)
        self.kind = kind
        self._entries = tuple(entries)
        signs = list(entries) if kind == "character" else list(SIGNS)
        self._ranks: dict[tuple[str, str], int] = {}
        # The id of each character, or of each BPE token written with one character per byte.
        self._ids = {sign: id for id, sign in enumerate(signs, len(SPECIALS))}
        if kind == "character":
            if any(len(sign) != 1 for sign in signs) or len(self._ids) != len(signs):
                raise InputError("an entry is not one character, or is duplicated")
            pieces = [utf8(sign) for sign in signs]
        else:
            self._number_merges()
            pieces = [bytes(BYTES[sign] for sign in token) for token in self._ids]
        # Bytes and BPE cover every text. An unknown character stays visible in the decoded text.
        unk = UNKNOWN.encode() if kind == "character" else b""
        self.pieces = [unk, *[b""] * (len(SPECIALS) - 1), *pieces]
        self.size = len(self.pieces)
        self.longest = 4 if kind == "character" else max(map(len, self.pieces))
        own = self._ids.items() if kind == "bpe" else ()
        vocabulary = {token: id - len(SPECIALS) for token, id in own}
        self._library = byte_level_bpe(vocabulary, list(self._ranks))

    def _number_merges(self) -> None:
        """Check each merge, and number merges and new tokens; two may make the same token."""
        for rank, entry in enumerate(self._entries):
            left, _, right = entry.partition(" ")
            if left not in self._ids or right not in self._ids:
                raise InputError(f"merge {rank + 1} ({entry!r:.40}) joins unknown tokens")
            if len(left) + len(right) > LONGEST_TOKEN:
                raise InputError(f"merge {rank + 1} makes a token of over {LONGEST_TOKEN} bytes")
            if (left, right) in self._ranks:
                raise InputError(f"merge {rank + 1} ({entry!r:.40}) is duplicated")
            self._ids.setdefault(left + right, len(self._ids) + len(SPECIALS))
            self._ranks[left, right] = rank

    # Learning

    @classmethod
    def learn(
        cls, lines: Iterable[str], kind: str = "bpe", size: int = 8_000, quiet: bool = False
    ) -> Tokenizer:
        """Learn a vocabulary from text. The same lines give the same vocabulary.

        Args:
            lines: the text, line by line.
            kind: "bpe", "character" or "byte"; the byte vocabulary is fixed.
            size: the largest number of tokens, including the special ones; too little text gives
                fewer.
            quiet: show no progress.

        Returns:
            The new tokenizer.

        Raises:
            InputError: the kind is unknown, the size is too small or too large, or there is no
                text.
        """
        if kind not in KINDS:
            raise unknown("data.vocabulary", kind, KINDS)
        minimum = {"bpe": len(SPECIALS) + 256 + 1, "character": len(SPECIALS) + 1, "byte": 0}[kind]
        if size < minimum:
            raise InputError(
                f"data.vocabulary_size is {size} but {kind} needs at least {minimum} "
                f"({len(SPECIALS)} special tokens, {'256 bytes, ' if kind == 'bpe' else ''}and one "
                "more)"
            )
        if size > MOST_TOKENS:
            raise InputError(f"data.vocabulary_size must be at most {MOST_TOKENS:,}, not {size}")
        if kind == "byte":
            return cls(kind)
        with progress("learning the vocabulary", None, quiet):
            learn = learn_merges if kind == "bpe" else learn_characters
            return cls(kind, learn(lines, size - len(SPECIALS)))

    # Text to ids

    def encode(self, text: str) -> list[int]:
        """The token ids of a text.

        Args:
            text: any text; special tokens such as `<eos>` in it are ordinary text.

        Returns:
            The token ids, without special tokens.

        Raises:
            InputError: the text is not a string, or it has a lone surrogate.
        """
        check_string(text)
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text.

        The library encodes BPE on all cores, a long text in pieces (pieces.py), so that memory is
        bounded.

        Args:
            texts: any number of texts.

        Returns:
            The token ids of each text, as `encode` returns them.
        """
        first = len(SPECIALS)
        if self.kind == "byte":
            return [[byte + first for byte in utf8(text)] for text in texts]
        if self.kind == "character":
            for text in texts:
                utf8(text)
            ids, unk = self._ids, self.unk
            return [[ids.get(character, unk) for character in text] for text in texts]
        numbers, ids_of = self._numbers, [list[int]() for _ in texts]
        parts = ((i, piece) for i, text in enumerate(texts) for piece in pieces(text))
        for chunk in in_chunks(parts, lambda part: len(part[1])):
            batch = [piece for _, piece in chunk]
            try:
                encoded = self._library.encode_batch_fast(batch, add_special_tokens=False)
            except TypeError:  # the library's error for a lone surrogate
                for text in texts:
                    utf8(text)
                raise
            for (i, _), encoding in zip(chunk, encoded, strict=True):
                ids_of[i].extend(map(numbers.__getitem__, encoding.ids))
        return ids_of

    @cached_property
    def _numbers(self) -> list[int]:
        """The id of each token of the library. Lists of millions of ids share these objects instead
        of creating one for each occurrence."""
        return list(range(len(SPECIALS), self.size))

    def words(self, text: str) -> list[bytes]:
        """The parts of a text that BPE splits separately: no token crosses their boundaries.

        Args:
            text: any text.

        Returns:
            The UTF-8 bytes of each part.
        """
        pieces = self._library.pre_tokenizer.pre_tokenize_str(text)
        return [bytes(BYTES[sign] for sign in piece) for piece, _ in pieces]

    @cached_property
    def merges(self) -> list[tuple[int, int, int]]:
        """For each merge, by rank: the ids of the left token, the right token, and the result."""
        ids = self._ids
        return [(ids[left], ids[right], ids[left + right]) for left, right in self._ranks]

    # Ids to text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids.

        Args:
            ids: token ids.

        Returns:
            The text without special tokens. Bytes that are not UTF-8 and unknown characters become
            U+FFFD.

        Raises:
            InputError: an id is outside the vocabulary, or `ids` is a string.
        """
        check_ids(ids)
        return b"".join(self._piece(id) for id in ids).decode("utf-8", "replace")

    @property
    def includes_space(self) -> bool:
        """Whether a token can include the space before a word."""
        return self.kind == "bpe"

    def spelling(self, id: int) -> str:
        """The text of one token in the middle of a text.

        Args:
            id: the token id.

        Returns:
            The text, with the space before it if the token includes one.

        Raises:
            InputError: the id is outside the vocabulary.
        """
        return self._piece(id).decode("utf-8", "replace")

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """The text of token ids that continue a text.

        Args:
            before: the token ids of the text before, with or without special tokens.
            ids: the token ids of the continuation.

        Returns:
            The text of `ids`, as `decode` returns it, or with a space at the beginning.
        """
        return self.decode(ids)

    def is_unused(self, id: int) -> bool:
        """Whether an id of the vocabulary belongs to no token. A model can have more ids than its
        tokenizer.

        Args:
            id: a token id.

        Returns:
            True if `decode` ignores it.
        """
        return False

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Each token in readable form.

        Args:
            ids: token ids.

        Returns:
            One string for each id: ▁ for a space, \\n or \\xc3 for what cannot be printed.

        Raises:
            InputError: an id is outside the vocabulary.
        """
        return [
            SPECIALS[id] if 0 <= id < len(SPECIALS) else readable(self._piece(id)) for id in ids
        ]

    def _piece(self, id: int) -> bytes:
        if not 0 <= id < self.size:
            raise InputError(
                f"token id {id} is outside the vocabulary of {self.size} (0 to {self.size - 1})"
            )
        return self.pieces[id]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of bytes of each token."""
        return np.array([len(piece) for piece in self.pieces])

    def word_starts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position where the word of each token begins.

        A word is letters and digits with the space before it; every other character is a word.

        Args:
            ids: token ids of a row, [N].

        Returns:
            The positions, [N].
        """
        begins, ends = self._inside
        joined = np.zeros(len(ids), dtype=bool)
        joined[1:] = begins[ids[1:]] & ends[ids[:-1]]
        positions = np.arange(len(ids))
        return np.maximum.accumulate(np.where(joined, 0, positions))

    @cached_property
    def _inside(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether each token begins, and ends, with a letter or a digit (any byte of a character
        that is not ASCII counts as one)."""

        def letter(byte: bytes) -> bool:
            return byte.isalnum() or byte >= b"\x80"

        begins = [letter(piece[:1]) for piece in self.pieces]
        return np.array(begins), np.array([letter(piece[-1:]) for piece in self.pieces])

    # Saving

    @cached_property
    def _content(self) -> bytes:
        whole = {
            "format": FORMAT, "version": VERSION, "kind": self.kind, "specials": SPECIALS,
            "entries": self._entries,
        }  # fmt: skip
        return (json.dumps(whole, ensure_ascii=False, indent=0) + "\n").encode("utf-8")

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the saved file."""
        return hashlib.sha256(self._content).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as a JSON file, atomically.

        Args:
            path: the file, usually tokenizer.json.

        Raises:
            InputError: the file cannot be written.
        """
        try:
            write_file(Path(path), self._content)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str], size: int | None = None) -> Tokenizer:
        """Read a file that `save` wrote.

        Args:
            path: the file.
            size: the number of tokens that the model needs; None: any number.

        Returns:
            The tokenizer.

        Raises:
            InputError: the file is not a vocabulary, is damaged, or does not have this size. It is
                refused before it takes time or memory.
        """
        return tokenizer_from_json(read_content(Path(path), size), Path(path), size)

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {self.size:,} tokens)"


def read_content(path: Path | str, size: int | None) -> Any:
    """The JSON value of a saved tokenizer of at most `size` tokens."""
    most = MOST_TOKENS if size is None else min(size, MOST_TOKENS)
    # Two merges may create the same token, and any token may contain a comma.
    most_values = min(16 * most, 3 * MOST_TOKENS) + 10_000
    return read_json(Path(path), LARGEST_FILE, "a regard tokenizer", most_values)


def tokenizer_from_json(content: Any, path: Path | str, size: int | None = None) -> Tokenizer:
    """`Tokenizer.load` with the JSON value of the file; path: for messages."""
    most = MOST_TOKENS if size is None else min(size, MOST_TOKENS)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f'{path}: not a regard tokenizer (no "format": "{FORMAT}")')
    if content.get("version") != VERSION:
        raise InputError(
            f"{path}: tokenizer version {content.get('version')!r:.20}, but this regard reads "
            f"version {VERSION}"
        )
    kind, entries = content.get("kind"), content.get("entries")
    if (
        content.get("specials") != list(SPECIALS)
        or kind not in KINDS
        or not isinstance(entries, list)
        or len(entries) > 2 * most
        or not all(isinstance(entry, str) for entry in entries)
        or (kind == "byte" and entries)
    ):
        raise InputError(f"{path}: damaged tokenizer (kind, specials or entries are not valid)")
    try:
        tokenizer = Tokenizer(kind, entries)
    except InputError as error:
        raise InputError(f"{path}: damaged tokenizer ({error})") from None
    if size not in (None, tokenizer.size):
        raise InputError(f"{path}: {tokenizer.size:,} tokens, but the model needs {size:,}")
    return tokenizer
