"""SentencePiece models written field by field, for tests that need no training."""

import struct


def varint(value):
    result = b""
    while value >= 0x80:
        result, value = result + bytes([value & 0x7F | 0x80]), value >> 7
    return result + bytes([value])


def message(number, content):
    """A field with content in the wire format."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def piece(text, score=-1.0, kind=1):
    """A token of a model."""
    content = message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18"
    return message(1, content + varint(kind))


def letters(size):
    """A Unigram model of `size` tokens: </s>, <unk>, the space mark, and letters."""
    names = ["▁", *(chr(ord("a") + i) for i in range(size - 3))]
    content = piece("</s>", 0.0, 3) + piece("<unk>", 0.0, 2)
    return content + b"".join(piece(name, -1.0 - i) for i, name in enumerate(names))
