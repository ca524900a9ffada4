"""Tokenizers of models from other toolkits, with the ids and the special tokens of these toolkits.

A model that was trained elsewhere has its own special tokens with its own ids, and it expects them
in certain places: BERT reads `[CLS] text [SEP]`, Marian `text </s>`, and GPT-2 the text alone. An
`ImportedTokenizer` combines a tokenizer of the library `tokenizers` with these special tokens. Text
never becomes a special token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from regard.errors import InputError
from regard.text.arguments import check_ids
from regard.text.byte_level import readable
from regard.text.external import ExternalTokenizer, library_errors
from regard.text.stream import context
from regard.text.token_pieces import FALLBACK, Spelling
from regard.text.tokenizer import FORMAT, MOST_TOKENS, VERSION, Tokenizer

KIND = "imported"
NAMES = ("unk", "bos", "eos", "cls", "sep", "mask")
MOST_ADDED = 16  # special tokens before or after a text


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of the special tokens of a model, and where the model expects them.

    An id of -1 means that the model has no such token.

    Attributes:
        unk: the token for text that the vocabulary does not cover.
        bos: the first token that a decoder reads; for an encoder-decoder, its start token.
        eos: the token that ends an output.
        cls: the first token of an encoder-only model.
        sep: the token between two texts.
        mask: the token to be filled in.
        begin: the tokens before each text that the model reads.
        end: the tokens after each text that the model reads.
        target: the tokens with which an encoder-decoder begins every output, after `bos`.
    """

    unk: int = -1
    bos: int = -1
    eos: int = -1
    cls: int = -1
    sep: int = -1
    mask: int = -1
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    target: tuple[int, ...] = ()

    @property
    def ids(self) -> set[int]:
        """All special tokens that the model has."""
        single = {getattr(self, name) for name in NAMES}
        return (single | {*self.begin, *self.end, *self.target}) - {-1}


class ImportedTokenizer(ExternalTokenizer):
    """A tokenizer of the library `tokenizers` that keeps its own ids.

    Args:
        library: the tokenizer. Its post-processor, padding and truncation are not used.
        specials: the special tokens of the model.
        size: the number of tokens of the model; the library's tokenizer can have fewer.
        copy: whether to copy the tokenizer, because its settings are changed.

    Raises:
        InputError: an id is outside the vocabulary.
    """

    first = 0

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        specials: SpecialTokens,
        size: int,
        copy: bool = True,
    ) -> None:
        super().__init__(library, copy)
        self.kind, self.specials = KIND, specials
        if self.size > size:
            raise InputError(
                f"the tokenizer has {self.size:,} tokens, but the model has {size:,}: they must "
                "belong together"
            )
        if size > MOST_TOKENS:
            raise InputError(
                f"the model has {size:,} tokens, but at most {MOST_TOKENS:,} are allowed"
            )
        self.size = size
        for id in sorted(specials.ids):
            if not 0 <= id < size:
                raise InputError(
                    f"the special token id {id:,} is outside the vocabulary of {size:,} tokens"
                )
        self.unk, self.bos, self.eos = specials.unk, specials.bos, specials.eos
        self.cls, self.sep, self.mask = specials.cls, specials.sep, specials.mask
        self._spelling = Spelling.of(self.fast)
        self.exact = self._spelling.exact

    # Special tokens

    def around(self, style: str) -> tuple[Sequence[int], Sequence[int]]:
        return self.specials.begin, self.specials.end

    def frame(self, ids: Sequence[int], style: str) -> list[int]:
        return super().frame(ids, style) or [self.first_read]

    def frame_pooled(self, ids: Sequence[int], style: str) -> list[int]:
        return self.frame(ids, style)

    def prompt(self, ids: Sequence[int], longest: int) -> list[int]:
        begin = self.specials.begin
        start = max(0, len(begin) + len(ids) - longest)
        return [*begin, *ids[start:]] or [self.first_read]

    @property
    def begin(self) -> tuple[int, ...]:
        return self.specials.begin

    @property
    def first_read(self) -> int:
        if max(self.bos, self.eos) < 0:
            raise InputError(
                "the text is empty, and this model has no start token: enter some text"
            )
        return self.eos if self.bos < 0 else self.bos

    @property
    def target_prefix(self) -> tuple[int, ...]:
        return self.specials.target

    @property
    def end(self) -> int:
        return next(id for id in (self.eos, self.sep, self.cls, 0) if id >= 0)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The special tokens of the model, and all that the library marks as special."""
        added = self.fast.get_added_tokens_decoder()
        marked = (id for id, token in added.items() if token.special)
        return frozenset(self.specials.ids.union(marked))

    @cached_property
    def text_ids(self) -> NDArray[np.int64]:
        known = set(self._tokens.values()) - self.special_ids
        return np.array(sorted(known), dtype=np.int64)

    # Text to ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        rows, reserved = super().encode_batch(texts), self._reserved
        return [row if reserved.isdisjoint(row) else self._without_specials(row) for row in rows]

    @cached_property
    def _reserved(self) -> frozenset[int]:
        """The special tokens that no text may become."""
        others = {self.bos, self.eos, self.cls, self.sep, self.mask}
        return self.special_ids - ({self.unk} - others)

    def _without_specials(self, row: list[int]) -> list[int]:
        """Replace special tokens with the tokens of the characters of their names. The library
        returns a special token for its name in a text if the name is an ordinary entry."""
        ids: list[int] = []
        for id in row:
            ids += self._name_ids(id) if id in self._reserved else [id]
        return ids

    def _name_ids(self, id: int) -> list[int]:
        """The tokens that spell the name of a special token character by character."""
        ids = []
        for tokens in self._spelling.characters(self.fast.id_to_token(id) or ""):
            known = (self.fast.token_to_id(token) for token in tokens)
            usable = (one for one in known if one is not None and one not in self._reserved)
            one = next(usable, self.unk)
            ids += [one] if one >= 0 and one not in self._reserved else []
        return ids

    # Ids to text

    def decode(self, ids: Sequence[int]) -> str:
        check_ids(ids)
        special = self.special_ids
        return super().decode([id for id in ids if self._check(id) not in special])

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        check_ids(ids)
        first = next((id for id in ids if id not in self.special_ids), None)
        tail = [] if self.exact or first is None else context(self, before, first)
        if not tail:
            return self.decode(ids)
        return self.decode([*tail, *ids])[len(self.decode(tail)) :]

    def spelling(self, id: int) -> str:
        piece = self.pieces[self._check(id)].decode("utf-8", "replace")
        return piece if self.includes_space else piece.strip(" ")

    @property
    def includes_space(self) -> bool:
        return self._spelling.kind in ("bytes", "mark")

    def _token(self, id: int) -> str:
        token: str | None = self.fast.id_to_token(id)
        if token is None:
            return f"<{id}>"
        plain = id in self.special_ids or not self.includes_space
        return token if plain else readable(self.pieces[id])

    @cached_property
    def _tokens(self) -> dict[str, int]:
        tokens: dict[str, int] = self.fast.get_vocab(with_added_tokens=True)
        return tokens

    @cached_property
    def byte_ids(self) -> frozenset[int]:  # type: ignore[override]
        """The tokens that are single bytes, in a vocabulary of characters."""
        if not self._spelling.fallback:
            return frozenset()
        return frozenset(id for token, id in self._tokens.items() if FALLBACK.fullmatch(token))

    @cached_property
    def pieces(self) -> list[bytes]:  # type: ignore[override]
        """The bytes of each token; with byte-level BPE, they add up to the bytes of a text."""
        pieces, piece = [b""] * self.size, self._spelling.piece
        for token, id in self._tokens.items():
            pieces[id] = piece(token)
        for id, added in self.fast.get_added_tokens_decoder().items():
            pieces[id] = added.content.encode("utf-8", "replace")
        for id in self.special_ids:
            pieces[id] = b""
        return pieces

    def word_starts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position where the word of each token begins; see `Tokenizer.word_starts`."""
        return Tokenizer.word_starts(self, ids)

    # Saving

    @cached_property
    def _content(self) -> bytes:
        whole = {
            "format": FORMAT, "version": VERSION, "kind": KIND, "size": self.size,
            "specials": asdict(self.specials), "library": json.loads(self.fast.to_str()),
        }  # fmt: skip
        return (json.dumps(whole, ensure_ascii=False, indent=0) + "\n").encode()

    def __repr__(self) -> str:
        return f"ImportedTokenizer({self.size:,} tokens)"


def imported_from_json(content: dict[str, Any], path: Path) -> ImportedTokenizer:
    """The tokenizer that `ImportedTokenizer.save` wrote.

    Args:
        content: the JSON value of the file.
        path: the file, for messages.

    Returns:
        The tokenizer.

    Raises:
        InputError: the content is damaged, or a newer version of regard wrote it.
    """
    if content.get("version") != VERSION:
        raise InputError(
            f"{path}: tokenizer version {content.get('version')!r:.20}, but this version of regard "
            f"reads version {VERSION}"
        )
    specials, size = content.get("specials"), content.get("size")
    with library_errors(f"{path}: damaged tokenizer"):
        if not isinstance(specials, dict) or type(size) is not int:
            raise ValueError("specials or size is missing")
        ids: dict[str, Any] = {name: specials.get(name) for name in NAMES}
        for name, id in ids.items():
            if type(id) is not int or id < -1:
                raise ValueError(f"specials.{name} is not a token id")
        lists: dict[str, Any] = {name: specials.get(name) for name in ("begin", "end", "target")}
        for name, several in lists.items():
            if not isinstance(several, list) or len(several) > MOST_ADDED:
                raise ValueError(f"specials.{name} is not a list of at most {MOST_ADDED} token ids")
            if not all(type(id) is int and id >= 0 for id in several):
                raise ValueError(f"specials.{name} has an entry that is not a token id")
        if not isinstance(content.get("library"), dict):
            raise ValueError("library is missing")
        ids |= {name: tuple(several) for name, several in lists.items()}
        tokens = SpecialTokens(**ids)
        library = tokenizers.Tokenizer.from_str(json.dumps(content["library"]))
        return ImportedTokenizer(library, tokens, size, copy=False)
