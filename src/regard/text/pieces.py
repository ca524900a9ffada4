"""Split long texts and large collections, so that encoding them takes bounded memory.

The BPE library needs about 200 bytes of memory for each byte that it encodes in one call. A long
text is therefore split where its pre-tokenizer splits anyway. No token crosses such a boundary, so
the pieces have the same tokens as the complete text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

# Limits for one call of the library: enough for all cores, but little memory.
CHUNK_ITEMS, CHUNK_CHARACTERS = 4096, 1_000_000
PIECE = 2**14  # characters; a longer text is encoded in pieces of about this size
# Characters. A longer text without a boundary is split anyway: the time that the library needs to
# learn from a word grows with the square of its length.
LONGEST_WORD = 2**14
# Where the pre-tokenizer (GPT-2's pattern) splits in any context: between a character that is not
# whitespace and a space or newline, and between a letter and a digit or a punctuation
# mark. Only characters whose class is the same in all versions of Unicode are listed.
PLACE = re.compile(r"(?<=[\w!-~。、，！？])(?=[ \n])|(?<=[A-Za-z\u4e00-\u9fa5])(?=[0-9。、，！？])")

Item = TypeVar("Item")


def pieces(text: str) -> Iterator[str]:
    """Split a text into pieces with the same tokens; a short text is one piece.

    Only a word of more than LONGEST_WORD characters is split where a token could be.
    """
    start = 0
    while len(text) - start > PIECE:
        near = start + PIECE
        place = PLACE.search(text, near, near + LONGEST_WORD)
        end = place.start() if place else near + LONGEST_WORD
        if end >= len(text):
            break
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def in_chunks(items: Iterable[Item], characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield lists of a few thousand items, fewer if they are long."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += characters(item)
        if len(chunk) == CHUNK_ITEMS or size > CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
