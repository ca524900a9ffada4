"""The bytes that a token of the library `tokenizers` represents.

A vocabulary writes its tokens in one of several ways: byte-level BPE writes each byte as a visible
character, SentencePiece writes a space as "▁", and WordPiece marks tokens that continue a word with
"##". The decoder of a tokenizer shows which way it uses, so tokens need not be decoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tokenizers

from regard.text.byte_level import BYTES, SIGNS

FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")  # a byte in a vocabulary of characters


@dataclass(frozen=True)
class Spelling:
    """How the tokens of a vocabulary are written.

    Attributes:
        kind: "bytes" (byte-level BPE), "mark" (a character marks a space), "prefix" (a prefix marks
            tokens that continue a word), "suffix" (a suffix marks the end of a word) or "words"
            (every token is a word).
        mark: the character, the prefix or the suffix.
        fallback: whether tokens such as <0xC3> are bytes.
        exact: whether the decoder only joins the bytes.
    """

    kind: str
    mark: str = ""
    fallback: bool = False
    exact: bool = False

    @classmethod
    def of(cls, library: tokenizers.Tokenizer) -> Spelling:
        """The spelling of a tokenizer.

        Args:
            library: the tokenizer.

        Returns:
            The spelling, derived from the decoder.
        """
        decoder: Any = library.decoder
        parts = [] if decoder is None else list(_parts(json.loads(decoder.__getstate__())))
        fallback = any(part["type"] == "ByteFallback" for part in parts)
        for part in parts:
            match part:
                case {"type": "ByteLevel"}:
                    return cls("bytes", exact=len(parts) == 1)
                case {"type": "WordPiece", "prefix": str(prefix)}:
                    return cls("prefix", prefix)
                case {"type": "BPEDecoder", "suffix": str(suffix)}:
                    return cls("suffix", suffix)
                case {"type": "Metaspace", "replacement": str(mark)}:
                    return cls("mark", mark, fallback)
                case {"type": "Replace", "pattern": {"String": str(mark)}, "content": " "}:
                    return cls("mark", mark, fallback)
        return cls("words")

    def piece(self, token: str) -> bytes:
        """The bytes of a token.

        Args:
            token: the token as it is written in the vocabulary.

        Returns:
            Its bytes in the middle of a text, with the space before a word.
        """
        if self.kind == "bytes":
            try:
                return bytes(map(BYTES.__getitem__, token))
            except KeyError:
                return token.encode("utf-8", "replace")
        if self.fallback and (byte := FALLBACK.fullmatch(token)):
            return bytes.fromhex(byte[1])
        text = token
        if self.kind == "mark":
            text = token.replace(self.mark, " ")
        elif self.kind == "prefix" and self.mark and token.startswith(self.mark):
            text = token[len(self.mark) :]
        elif self.kind == "suffix" and self.mark:
            text = token.removesuffix(self.mark) + (" " if token.endswith(self.mark) else "")
        elif token[:1].isalnum():  # punctuation follows a word without a space
            text = f" {token}"
        return text.encode("utf-8", "replace")

    def characters(self, text: str) -> Iterator[list[str]]:
        """The tokens that write a text character by character.

        Args:
            text: the text.

        Yields:
            For each character (for byte-level BPE, each byte), the tokens that can represent it,
            the best one first.
        """
        if self.kind == "bytes":
            yield from ([SIGNS[byte]] for byte in text.encode())
            return
        for i, character in enumerate(text):
            yield [f"{self.mark}{character}"] * (self.kind == "prefix" and i > 0) + [character]


def _parts(decoder: Any) -> Iterator[dict[str, Any]]:
    """The decoders that make up a decoder."""
    if decoder.get("type") == "Sequence":
        for part in decoder["decoders"]:
            yield from _parts(part)
    else:
        yield decoder
