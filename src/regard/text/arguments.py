"""Check the arguments of tokenizers, for example a string in place of a list of strings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from regard.errors import InputError


def check_string(text: Any) -> None:
    """Refuse a text that is not a string."""
    if not isinstance(text, str):
        raise InputError(f"a text is a string, not {text!r:.60}")


def check_ids(ids: Any) -> None:
    """Refuse a string instead of token ids."""
    if isinstance(ids, str | bytes):
        raise InputError(f"ids are several token ids, not {ids!r:.60}")


def check_lines(lines: Any) -> Iterator[str]:
    """The lines of a text.

    Raises:
        InputError: `lines` is one string or not iterable, or, during the iteration, a line is not a
            string.
    """
    if isinstance(lines, str | bytes) or not isinstance(lines, Iterable):
        raise InputError(
            f"lines must be several strings, for example text.splitlines(), not {lines!r:.60}"
        )
    return _strings(lines)


def _strings(lines: Iterable[Any]) -> Iterator[str]:
    for i, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise InputError(f"line {i} must be a string, not {line!r:.60}")
        yield line


def utf8(text: str) -> bytes:
    """The UTF-8 bytes of a text.

    Raises:
        InputError: the text has a lone surrogate.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise not_utf8(error) from None


def not_utf8(error: UnicodeEncodeError) -> InputError:
    """The error message for a text that cannot be encoded as UTF-8."""
    code = ord(error.object[error.start])
    return InputError(
        f"the text has a lone surrogate (U+{code:04X} at position {error.start}), which is not "
        "a character: read the file as UTF-8"
    )
