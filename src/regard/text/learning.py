"""Learn the entries of a vocabulary from text: the merges of BPE, or the characters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from tokenizers.trainers import BpeTrainer

from regard.errors import InputError
from regard.text.arguments import check_lines, not_utf8, utf8
from regard.text.byte_level import LONGEST_TOKEN, SIGNS, byte_level_bpe
from regard.text.pieces import pieces


def learn_merges(lines: Iterable[str], size: int) -> list[str]:
    """Learn the merges of BPE.

    Args:
        lines: the text, line by line.
        size: the largest number of tokens.

    Returns:
        The merges as "left right", the most frequent pair first.

    Raises:
        InputError: there is no text, or it has a lone surrogate.
    """
    library = byte_level_bpe({}, [])
    trainer = BpeTrainer(  # the alphabet: all 256 bytes, whether the text has them or not
        vocab_size=size, initial_alphabet=SIGNS, max_token_length=LONGEST_TOKEN, show_progress=False
    )
    try:
        parts = (piece for line in _some(lines) for piece in pieces(line))
        library.train_from_iterator(parts, trainer)
    except UnicodeEncodeError as error:
        raise not_utf8(error) from None
    merges: list[list[str]] = json.loads(library.to_str())["model"]["merges"]
    return [f"{left} {right}" for left, right in merges]


def learn_characters(lines: Iterable[str], size: int) -> list[str]:
    """Find the most frequent characters.

    Args:
        lines: the text, line by line.
        size: the largest number of characters.

    Returns:
        The characters, the most frequent first, ties by code point.

    Raises:
        InputError: there is no text, or it has a lone surrogate.
    """
    counts: Counter[str] = Counter()
    for line in _some(lines):
        utf8(line)
        counts.update(line)
    return sorted(counts, key=lambda character: (-counts[character], character))[:size]


def _some(lines: Iterable[str]) -> Iterator[str]:
    """The lines; raises an InputError if all of them are empty."""
    empty = True
    for line in check_lines(lines):
        empty = empty and not line
        yield line
    if empty:
        raise InputError("there is no text to learn a vocabulary from")
