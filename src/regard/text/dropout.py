"""BPE-dropout (Provilkov et al. 2020): different tokens for the same text each time it is read.

At each step of tokenising a word, each possible merge is skipped with probability p, and the first
of the others is applied. The BPE library has this too, but without a seed. Here the result for a
row is a function of a seed and the row number. A batch is tokenised in C++ (ops/cpu/bpe.cpp). The
Python code below is the specification and gives the same tokens.
"""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import count, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import InputError
from regard.ops.cpu import build as native
from regard.text.tokenizer import SPECIALS, Tokenizer

MASK, GAMMA = 2**64 - 1, 0x9E3779B97F4A7C15
# Unicode has letters, numbers and spaces in its first four planes only.
CHARACTERS = 0x40000


def scramble(x: int) -> int:
    """splitmix64's next number (Steele et al. 2014)."""
    x = (x + GAMMA) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


class Dropout:
    """Tokenises rows again. Special tokens stay, and no token crosses them."""

    def __init__(self, tokenizer: Tokenizer, probability: float) -> None:
        if not 0.0 <= probability <= 1.0:
            raise InputError(f"BPE-dropout is a probability from 0 to 1, not {probability}")
        self.tokenizer = tokenizer
        # A merge is skipped if a random number of 53 bits is below the threshold.
        self.threshold = round(probability * 2**53)

    def __call__(
        self, rows: Sequence[NDArray[Any]], numbers: NDArray[np.int64], seed: int
    ) -> list[NDArray[Any]]:
        """The rows of `encode` in other tokens; each depends only on the seed and its number."""
        if self.tokenizer.kind != "bpe":  # there are no merges
            return list(rows)
        stream = scramble(seed)
        if (library := native.library("bpe")) is not None:
            return self._natively(library, rows, numbers, stream)
        return [
            np.array(self._row(row.tolist(), scramble(stream + number)))
            for row, number in zip(rows, numbers.tolist(), strict=True)
        ]

    # ---- one row: the specification ------------------------------------------------------------

    def _row(self, ids: list[int], key: int) -> list[int]:
        skipped = (scramble(key + i * GAMMA) >> 11 < self.threshold for i in count())
        tokens: list[int] = []
        for text, part in groupby(ids, lambda id: id >= len(SPECIALS)):
            if not text:
                tokens += part
                continue
            for word in self.tokenizer.words(self.tokenizer.decode(list(part))):
                tokens += self._merge(word, skipped)
        return tokens

    def _merge(self, word: bytes, skipped: Iterator[bool]) -> list[int]:
        """Apply the merges to one word, the lowest rank first, from left to right.

        Drawing only until a merge is kept gives the distribution of the paper. With a heap, a word
        of n bytes takes n log n steps.
        """
        size = len(word)
        tokens = [byte + len(SPECIALS) for byte in word]
        before, after = list(range(-1, size - 1)), list(range(1, size + 1))
        known: list[tuple[int, int] | None] = [None] * size  # rank and result, with the next token
        candidates: list[tuple[int, int]] = []  # rank, position

        def propose(left: int) -> None:
            if left >= 0:
                pair = (tokens[left], tokens[after[left]]) if after[left] < size else None
                known[left] = merge = self._merges.get(pair) if pair else None
                if merge:
                    heapq.heappush(candidates, (merge[0], left))

        for position in range(size):
            propose(position)
        dropped: list[tuple[int, int]] = []
        while candidates:
            rank, left = heapq.heappop(candidates)
            merge = known[left]
            if merge is None or merge[0] != rank:
                continue  # an earlier merge used one of the two
            if next(skipped):
                dropped.append((rank, left))
                continue
            for candidate in dropped:  # dropped in this step only
                heapq.heappush(candidates, candidate)
            dropped.clear()
            right = after[left]
            tokens[left], known[right], after[left] = merge[1], None, after[right]
            if after[left] < size:
                before[after[left]] = left
            propose(before[left])
            propose(left)
        result, position = [], 0
        while position < size:
            result.append(tokens[position])
            position = after[position]
        return result

    @cached_property
    def _merges(self) -> dict[tuple[int, int], tuple[int, int]]:
        """left, right -> rank, result"""
        merges = enumerate(self.tokenizer.merges)
        return {(left, right): (rank, joined) for rank, (left, right, joined) in merges}

    # ---- all rows at once ---------------------------------------------------------------

    def _natively(
        self,
        library: ctypes.CDLL,
        rows: Sequence[NDArray[Any]],
        numbers: NDArray[np.int64],
        stream: int,
    ) -> list[NDArray[np.int64]]:
        ids = np.concatenate(rows).astype(np.uint32)
        numbers = np.ascontiguousarray(numbers, np.int64)
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        # A text has at most one token per byte; a special token stays one.
        room = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(np.maximum(self.tokenizer.sizes, 1)[ids], out=room[1:])
        room = room[starts]
        out, lengths = np.empty(room[-1], np.int64), np.empty(len(rows), np.int64)
        library.bpe_rows(
            ctypes.byref(self._vocabulary), _pointer(ids), _pointer(starts), _pointer(numbers),
            _pointer(room), ctypes.c_long(len(rows)), ctypes.c_uint64(stream),
            ctypes.c_uint64(self.threshold), _pointer(out), _pointer(lengths),
        )  # fmt: skip
        ends = room[:-1] + lengths
        return [out[a:b] for a, b in zip(room.tolist(), ends.tolist(), strict=False)]

    @cached_property
    def _vocabulary(self) -> _Vocabulary:
        library = native.library("bpe")
        assert library is not None, "_natively was given it"
        merges = np.array(self.tokenizer.merges, np.uint32)
        slots = np.zeros((1 << (2 * len(merges)).bit_length(), 4), np.uint32)
        library.bpe_table(
            _pointer(merges), ctypes.c_long(len(merges)), _pointer(slots), ctypes.c_long(len(slots))
        )
        pieces = np.frombuffer(b"".join(self.tokenizer.pieces), np.uint8)
        starts = np.concatenate([[0], self.tokenizer.sizes.cumsum()])
        return _Vocabulary.of(slots, classes(), pieces, starts)


class _Vocabulary(ctypes.Structure):
    arrays: tuple[NDArray[Any], ...]
    _fields_ = [
        ("slots", ctypes.c_void_p), ("size", ctypes.c_long),
        ("classes", ctypes.c_void_p), ("classes_size", ctypes.c_long),
        ("pieces", ctypes.c_void_p), ("pieces_start", ctypes.c_void_p),
    ]  # fmt: skip

    @classmethod
    def of(cls, slots: NDArray[Any], classes: NDArray[Any], *pieces: NDArray[Any]) -> _Vocabulary:
        table = cls(slots.ctypes.data, len(slots), classes.ctypes.data, len(classes),
                   *(array.ctypes.data for array in pieces))  # fmt: skip
        table.arrays = (slots, classes, *pieces)  # keep the arrays alive as long as the pointers
        return table


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@cache
def classes() -> NDArray[np.uint8]:
    """The class of each character in the BPE library: letter (0), number (1), other (2), space (3).

    Python has a different version of Unicode, so the library is queried. It splits a text of all
    characters into words of one class each; one character of a word determines its class.
    """
    words = Tokenizer("byte").words
    result = np.full(CHARACTERS, 2, np.uint8)
    codes = (code for code in range(CHARACTERS) if not 0xD800 <= code < 0xE000)
    row = "".join(map(chr, codes)).replace(" ", "")  # a space joins the word after it
    for word in words(row + " "):
        text = word.decode()
        alike = (len(words(sign + text[0])) == 1 for sign in "a1! ")
        result[list(map(ord, text))] = list(alike).index(True)
    return result
