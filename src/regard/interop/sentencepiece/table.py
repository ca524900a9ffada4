"""The replacement table with which a SentencePiece model normalises a text."""

from __future__ import annotations

import numpy as np

LONGEST = 1_000  # bytes of a replacement; those of NFKC have at most 33


class Normalisation:
    """The table of replacements: a trie of strings (a double array) and the replacements.

    The library reads the same table without checks, so the whole table is checked here.
    """

    def __init__(self, charsmap: bytes) -> None:
        size = int.from_bytes(charsmap[:4], "little")
        if size == 0 or size % 1024 or size > len(charsmap) - 4:
            raise ValueError("the normalisation table is damaged: wrong size")
        self.units = np.frombuffer(charsmap, "<u4", size // 4, 4)
        self.strings = charsmap[4 + size :]
        self.strings.decode()
        units = self.units.astype(np.int64)
        leaf = units >> 31 != 0
        offset = (units >> 10) << np.where(units & 0x200, 8, 0)
        place = np.arange(len(units)) ^ offset
        if bool((place[~leaf] >= len(units)).any()):
            raise ValueError("the normalisation table is damaged: an offset is out of range")
        values = units[leaf] & 0x7FFFFFFF
        if bool((values >= max(1, len(self.strings))).any()):
            raise ValueError("the normalisation table is damaged: a string is out of range")
        strings = np.frombuffer(self.strings or b"\0", np.uint8)
        if bool((strings[values] & 0xC0 == 0x80).any()):
            raise ValueError("the normalisation table is damaged: a string is not UTF-8")
        ends = np.append(np.flatnonzero(strings == 0), len(strings))
        if bool((ends[np.searchsorted(ends, values)] - values > LONGEST).any()):
            raise ValueError(f"a string of the normalisation table is longer than {LONGEST} bytes")

    def __call__(self, text: str) -> str:
        """Replace the longest match at each position, as SentencePiece does."""
        content, result, place = text.encode(), b"", 0
        while place < len(content):
            size, value = self._longest(content[place:])
            if size:
                end = self.strings.find(b"\0", value)
                result += self.strings[value : end if end >= 0 else None]
            else:  # one character
                size = len(content[place:].decode()[0].encode())
                result += content[place : place + size]
            place += size
        return result.decode()

    def _longest(self, content: bytes) -> tuple[int, int]:
        """The length of the longest match in the trie, and the offset of its replacement."""
        longest, value = 0, 0
        node = self._child(0)
        for i, byte in enumerate(content):
            node ^= byte
            unit = int(self.units[node])
            if unit & 0x800000FF != byte:
                break
            node = self._child(node)
            if unit & 0x100:
                longest, value = i + 1, int(self.units[node]) & 0x7FFFFFFF
        return longest, value

    def _child(self, node: int) -> int:
        unit = int(self.units[node])
        return node ^ ((unit >> 10) << ((unit & 0x200) >> 6))
