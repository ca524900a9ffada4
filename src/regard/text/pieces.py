"""Long texts and many texts in pieces, so that the memory to encode them is bounded.

The BPE library needs about 200 bytes for each byte of what it encodes in one call. A long text is
therefore cut where its pre-tokenizer cuts anyway: no token reaches over such a place, so the tokens
of the pieces are those of the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

# What is encoded at once: enough for all cores, and little memory.
CHUNK_ITEMS, CHUNK_CHARACTERS = 4096, 1_000_000
PIECE = 2**14  # characters; a longer text is encoded in pieces of about this size
# Characters. A text without a place to cut it for so long is cut anyway: the time that the library
# takes to learn from a word grows with the square of its length.
LONGEST_WORD = 2**14
# Where the pre-tokenizer (GPT-2's pattern) always cuts, whatever is around: between a character
# that is not whitespace and a space or newline, and between a letter and a digit or a punctuation
# mark. Only characters whose class is the same in all versions of Unicode are listed.
PLACE = re.compile(r"(?<=[\w!-~。、，！？])(?=[ \n])|(?<=[A-Za-z\u4e00-\u9fa5])(?=[0-9。、，！？])")

Item = TypeVar("Item")


def pieces(text: str) -> Iterator[str]:
    """The text in pieces that have the tokens of the whole; a short text is one piece.

    Only a single word of more than LONGEST_WORD characters is cut where a token could be.
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
    """Some thousand items at a time, fewer where they are long."""
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
