"""Lines of standard input in blocks, with bounded memory and without waiting for a full block.

A program that writes one line and waits gets its result immediately. A long file is read in blocks
that are large enough to be processed together.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator

from regard.errors import InputError
from regard.text.reading import BOM, LONGEST_LINE, decode_line

MOST_LINES = 4096  # of a block
MOST_BYTES = 2**20  # of a block, unless it is a single line
READ = 2**18
TURN = 0.2  # seconds


def read_blocks(file: int, name: str) -> Iterator[tuple[int, list[str], int]]:
    """Yield (number of the first line, lines without their ends, bytes read so far) from a file
    descriptor. The lines before an invalid one are yielded before the error is raised."""
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
    """The same as bytes: complete lines, as many as are available without waiting."""
    lines: list[bytes] = []
    rest = b""  # an incomplete line
    read = size = 0
    while len(rest) <= LONGEST_LINE + len(BOM) + 1:  # 1: a carriage return
        if lines and (len(lines) >= MOST_LINES or size >= MOST_BYTES or not _ready(file)):
            block, lines = lines[:MOST_LINES], lines[MOST_LINES:]
            size = sum(map(len, lines))
            yield block, read
            continue
        try:
            # Wait in short turns: an interrupt just before a blocking call takes effect after it.
            while not _ready(file, TURN):
                pass
            more = os.read(file, READ)
        except BlockingIOError:  # the descriptor is non-blocking, and another process read the data
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
    """Whether data is available now, or within this many seconds."""
    return bool(select.select([file], [], [], seconds)[0])
