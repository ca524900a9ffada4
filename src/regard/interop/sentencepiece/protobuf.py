"""Read the part of the protobuf wire format that SentencePiece models use, with size limits."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

WIDEST = 10  # bytes of a varint of 64 bits


class Field(NamedTuple):
    """A field of a message: its number, and a value whose type depends on the wire type."""

    number: int
    value: int | float | bytes  # a varint, a 32-bit float, or a string, bytes or message

    def integer(self) -> int:
        """A varint that encodes an int32, which may be negative."""
        if not isinstance(self.value, int):
            raise ValueError(f"field {self.number} is not an integer")
        value = self.value & 0xFFFFFFFF
        return value - 2**32 if value >= 2**31 else value

    def real(self) -> float:
        """A 32-bit float."""
        if not isinstance(self.value, float):
            raise ValueError(f"field {self.number} is not a float")
        return self.value

    def content(self) -> bytes:
        """The bytes of a string, of bytes or of a message."""
        if not isinstance(self.value, bytes):
            raise ValueError(f"field {self.number} has no content")
        return self.value

    def text(self) -> str:
        """A string in UTF-8."""
        return self.content().decode()


def fields(message: bytes) -> Iterator[Field]:
    """The fields of a message, in the order of the file.

    Args:
        message: the bytes of one message.

    Yields:
        Each field. Fields of 64 bits, which SentencePiece does not have, are skipped.

    Raises:
        ValueError: the message is damaged.
    """
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError(f"invalid field number 0 at byte {place}")
        if wire == 0:
            value, place = _varint(message, place)
            yield Field(number, value)
        elif wire == 2:
            size, place = _varint(message, place)
            if size > end - place:
                raise ValueError(f"field {number} ends after the end of the file")
            yield Field(number, message[place : place + size])
            place += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            if size > end - place:
                raise ValueError(f"field {number} ends after the end of the file")
            if wire == 5:
                yield Field(number, struct.unpack_from("<f", message, place)[0])
            place += size
        else:
            raise ValueError(f"unsupported wire type {wire} at byte {place}")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """The number at an offset, and the offset after it."""
    value = 0
    for i, byte in enumerate(message[place : place + WIDEST]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, place + i + 1
    raise ValueError(f"the number at byte {place} does not end")
