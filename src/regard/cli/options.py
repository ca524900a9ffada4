"""Types of command-line options: numbers with bounds, and file names.

They are passed to argparse as `type=`. An invalid value ends the program before any work, with one
line: `--samples must be at least 1, not 0`.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Number = TypeVar("Number", int, float)

SHOWN = 40  # characters of a value that a message shows
MOST_SEED = 2**32 - 1  # other seeds are derived from it, which must fit into 64 bits
MOST_STEPS = 10**9
MOST_SECONDS = 10.0**6
MOST_LENGTH = 10**7  # tokens of a sequence; memory is checked later, with the other sizes
MOST_WIDTH = 10**6  # features, keys of a window or of a kernel


def bounded(
    kind: type[Number], least: Number, most: Number, why: str = "", above: bool = False
) -> Callable[[str], Number]:
    """An argparse type: a finite number from `least` to `most`.

    Args:
        kind: int or float.
        least, most: the bounds, inclusive.
        why: the reason for the bounds, for the message.
        above: exclude `least` itself.
    """
    name = "an integer" if kind is int else "a number"

    def parse(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:  # also: an integer with thousands of digits
            raise ArgumentTypeError(f"must be {name}, not {shortened(text)!r}") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise ArgumentTypeError(f"must be finite, not {value}")
        shown = f"{value:g}" if kind is float else shortened(str(value))
        reason = f": {why}" if why else ""
        if value < least or (above and value == least):
            bound = f"above {least:g}" if above else f"at least {least:,}"
            raise ArgumentTypeError(f"must be {bound}, not {shown}{reason}")
        if value > most:
            limit = f"{most:,}" if kind is int else f"{most:g}"
            raise ArgumentTypeError(f"must be at most {limit}, not {shown}{reason}")
        return value

    parse.__name__ = kind.__name__  # argparse uses it in its own messages
    return parse


SEED = bounded(int, 0, MOST_SEED)
STEPS = bounded(int, 1, MOST_STEPS)
SECONDS = bounded(float, 0.0, MOST_SECONDS, above=True)


def file_name(text: str) -> str:
    """An argparse type: the name of a file or a folder, not empty."""
    if not text:
        raise ArgumentTypeError("must not be empty: give the name of a file or a folder")
    if "\0" in text:
        raise ArgumentTypeError(f"must not contain a NUL character: {shortened(text)!r}")
    return text


def file_path(text: str) -> Path:
    """`file_name` as a Path."""
    return Path(file_name(text))


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
