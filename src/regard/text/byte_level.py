"""Byte-level BPE in the library `tokenizers`: every byte is written as one visible character."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

# Bytes of one token. Each merge can double the length of a token, so without a limit a file of a
# hundred lines could exhaust the memory.
LONGEST_TOKEN = 128


def _byte_signs() -> list[str]:
    """The visible character for each byte in the BPE library.

    This is the mapping of GPT-2, which the library's byte-level pre-tokenizer uses: a printable
    Latin-1 byte maps to itself, the others map to the code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0x100)} - {0xAD}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


SIGNS = _byte_signs()
BYTES = {sign: byte for byte, sign in enumerate(SIGNS)}


def byte_level_bpe(
    vocabulary: dict[str, int], merges: list[tuple[str, str]]
) -> tokenizers.Tokenizer:
    """The byte-level BPE of the library, without special tokens.

    Args:
        vocabulary: the id of each token, written with one character per byte.
        merges: the pairs of tokens, in order.

    Returns:
        The tokenizer of the library.
    """
    library = tokenizers.Tokenizer(BPE(vocabulary, merges))
    # The type stubs of the library declare these properties as read-only.
    setters: Any = library
    setters.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return library


def readable(piece: bytes) -> str:
    """The bytes of a token in printable form: ▁ for a space, \\n or \\xc3 for what cannot be
    printed."""
    text = piece.decode("utf-8", "backslashreplace").replace(" ", "▁")
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )
