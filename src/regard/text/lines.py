"""Lines of standard input, as many as are there: bounded memory, and no waiting for a full batch.

A program that feeds one line and waits for its answer gets it; a long file comes in blocks that
are large enough to be worked on together.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

from regard.errors import InputError
from regard.text.reading import BOM, LONGEST_LINE, decode_line

MOST_LINES = 4096  # of a block
MOST_BYTES = 2**20  # of a block before no more is read; a single line may be longer
READ = 2**18
TURN = 0.2  # seconds


def read_blocks(file: int, name: str) -> Iterator[tuple[int, list[str], int]]:
    """Yield (number of the first line, lines without their ends, bytes read so far) from a file
    descriptor. The lines before a bad one are yielded before it is complained about."""
    number = 1
    for block, read in _blocks(file, name):
        lines: list[str] = []
        bad: InputError | None = None
        for line in block:
            where = f"{name}:{number + len(lines)}"
            if number == 1 and not lines:
                line = line.removeprefix(BOM)
            line = line.removesuffix(b"\r")
            try:
                if len(line) > LONGEST_LINE:
                    raise InputError(f"{where}: line longer than {LONGEST_LINE:,} bytes")
                lines.append(decode_line(line, where))
            except InputError as error:
                bad = error
                break
        if lines:
            yield number, lines, read
        if bad is not None:
            raise bad
        number += len(lines)


def _blocks(file: int, name: str) -> Iterator[tuple[list[bytes], int]]:
    """The same as bytes: whole lines, as many as there are without waiting."""
    lines: list[bytes] = []
    rest = b""  # a line whose end has not come yet
    read = size = 0
    while len(rest) <= LONGEST_LINE + len(BOM) + 1:  # 1: a carriage return
        if lines and (len(lines) >= MOST_LINES or size >= MOST_BYTES or not _ready(file)):
            block, lines = lines[:MOST_LINES], lines[MOST_LINES:]
            size = sum(map(len, lines))
            yield block, read
            continue
        try:
            # In turns: an interrupt just before a call that waits is heard only after the call.
            while not _ready(file, TURN):
                pass
            more = os.read(file, READ)
        except BlockingIOError:  # someone made it so, and took what was there
            continue
        except OSError as error:
            raise InputError(f"{name}: cannot be read ({error.strerror or error})") from None
        if not more:
            break
        read += len(more)
        *whole, rest = (rest + more).split(b"\n")
        lines += whole
        size += sum(map(len, whole))
    lines += [rest] if rest else []
    for start in range(0, len(lines), MOST_LINES):
        yield lines[start : start + MOST_LINES], read


def _ready(file: int, seconds: float = 0) -> bool:
    """Is there more to read right now, or within so many seconds?"""
    return bool(select.select([file], [], [], seconds)[0])
