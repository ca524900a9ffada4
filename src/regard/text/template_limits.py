"""Limits for the work of a chat template, which comes from an unknown source; see sandbox.py.

Each operation is counted, and so is the size of every text and list that it creates. Operations
that can create a huge result from small values are checked before they run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any

from regard.errors import InputError

LARGEST_TEXT = 2**24  # characters of a rendered conversation, and of each text on the way to it
MOST_CREATED = 8  # times LARGEST_TEXT: the size of all new texts and lists together
ELEMENT = 8  # characters for which an element of a list counts in its text
NEW_ELEMENT = 32  # characters for which an element of a new list counts in MOST_CREATED
MOST_STEPS = 4_000_000  # loop iterations, calls, filters, tests and operations
MOST_SECONDS = 5.0
MOST_INDENT = 32  # spaces
LARGEST_NUMBER = 1_000_000_000  # in a product or a power
LARGEST_EXPONENT = 64
MOST_BITS = 4_096  # of any integer
LONGEST_SEPARATOR = 16  # characters, in JSON
TOO_LARGE = "the chat template computes with numbers that are too large"


class TemplateError(InputError):
    """A chat template refuses a conversation, is not valid, or needs too much work."""


class Budget:
    """The remaining work budget of a template."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Allow the full amount of work again."""
        self.steps, self.end = MOST_STEPS, time.monotonic() + MOST_SECONDS
        self.created = MOST_CREATED * LARGEST_TEXT

    def spend(self) -> None:
        """Count a step.

        Raises:
            TemplateError: the template needs too many steps or too much time.
        """
        self.steps -= 1
        if self.steps < 0 or time.monotonic() > self.end:
            raise TemplateError(
                f"the chat template takes more than {MOST_STEPS:,} steps or {MOST_SECONDS:g} "
                "seconds for this conversation: shorten the conversation or simplify the template"
            )

    def step(self, value: Any) -> Any:
        """Count a step that does not create anything; returns the value."""
        self.spend()
        return value

    def count(self, value: Any) -> Any:
        """Count a value that was created, and the step that created it.

        Returns:
            The value.

        Raises:
            TemplateError: the value is too large, or all values together are.
        """
        self.spend()
        if isinstance(value, Collection) and not isinstance(value, range):
            check_size(weight(value))
            self.created -= len(value) * (1 if isinstance(value, str) else NEW_ELEMENT)
            if self.created < 0:
                raise TemplateError(
                    "the chat template creates too much text and too many lists for this "
                    "conversation"
                )
        elif isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise TemplateError(TOO_LARGE)
        return value


def check_size(size: int) -> None:
    """Raise a TemplateError if a text or list of this length would be too large."""
    if size > LARGEST_TEXT:
        raise TemplateError(
            f"the chat template creates a text or list of more than {LARGEST_TEXT:,} characters"
        )


def weight(value: Any) -> int:
    """The number of characters of a text, or about that of nested lists and objects as a text; it
    stops counting above LARGEST_TEXT. Elements that occur several times count several times."""
    if isinstance(value, str):
        return len(value)
    count, waiting = 0, [value]
    while waiting and count <= LARGEST_TEXT:
        item = waiting.pop()
        if isinstance(item, str):
            count += len(item)
        elif isinstance(item, int):
            count += item.bit_length() // 4
        elif isinstance(item, Mapping):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, Collection) and not isinstance(item, range):
            waiting.extend(item)
        elif item is not None:
            count += len(repr(item))  # the name of a macro can be long
        count += ELEMENT
    return count


def as_list(items: Iterable[Any]) -> list[Any]:
    """The elements of any iterable.

    Raises:
        TemplateError: there are too many.
    """
    values = list(islice(items, LARGEST_TEXT // ELEMENT + 1))
    check_size(ELEMENT * len(values))
    return values


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raise a TemplateError for an operation whose result would be too large."""
    sized = [value for value in (left, right) if isinstance(value, str | list | tuple | bytes)]
    if operator == "+" and sized:
        check_size(sum(map(len, sized)))
    elif operator == "*" and sized:
        count = right if sized[0] is left else left
        check_size(len(sized[0]) * (count if isinstance(count, int) else 1))
    elif operator == "%" and isinstance(left, str):
        raise TemplateError("the chat template formats a text with %, which is not supported")
    elif operator in ("*", "**", "//", "%"):
        for value in (left, right):
            if isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
                raise TemplateError(TOO_LARGE)
        if operator == "**":
            check_exponent(right)


def check_exponent(value: Any) -> None:
    """Refuse a power with a large exponent."""
    if isinstance(value, int | float) and abs(value) > LARGEST_EXPONENT:
        raise TemplateError(TOO_LARGE)


def checked_arguments(name: str, owner: str, values: Sequence[Any]) -> Sequence[Any]:
    """Check a call of a method of a text whose result could be large.

    Returns:
        The arguments for the call.

    Raises:
        TemplateError: the result would be too large.
    """
    if name == "replace" and len(values) > 1:
        check_size((len(owner) + 1) * max(1, weight(values[1])))
    elif name == "join" and values:
        items = as_list(values[0])
        check_size(len(owner) * len(items) + weight(items) - ELEMENT * len(items))
        return [items, *values[1:]]
    elif name in ("split", "rsplit", "splitlines"):
        mark = values[0] if values else None
        parts = owner.count(mark) if mark and isinstance(mark, str) else len(owner) // 2
        check_size(len(owner) + ELEMENT * parts)
    return values


def counted_filter(name: str, function: Callable[..., Any], budget: Budget) -> Callable[..., Any]:
    """A filter that counts its result, and checks the size of a result that could be large."""

    @wraps(function)
    def counted(*values: Any, **options: Any) -> Any:
        budget.spend()
        if name == "replace":  # the environment, the text, the old part, the new part
            text, *parts = values[1:]
            parts += [options[key] for key in ("old", "new") if key in options]
            checked_arguments(name, str(text), parts)
        elif name == "join":
            environment, items, *parts = values
            separator = str(parts[0] if parts else options.get("d", ""))
            values = (environment, *checked_arguments(name, separator, [items]), *parts)
        elif name == "list":
            values = (*values[:-1], as_list(values[-1]))
        elif name == "round":
            for value in (*values[1:], *options.values()):
                check_exponent(value)
        elif name == "sum" and any(isinstance(v, list | tuple) for v in (
            *values[2:], *options.values()
        )):  # fmt: skip
            raise TemplateError("the chat template adds lists with sum, which is not supported")
        return budget.count(function(*values, **options))

    return counted


def counted_test(function: Any, budget: Budget) -> Callable[..., Any]:
    """A test, such as `in` or `defined`, that counts as a step."""

    @wraps(function)
    def counted(*values: Any, **options: Any) -> Any:
        budget.spend()
        return function(*values, **options)

    return counted


def to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """The filter `tojson`: JSON without the escapes of HTML."""
    if indent is not None:
        indent = int(indent)
        if not 0 <= indent <= MOST_INDENT:
            raise TemplateError(
                f"the chat template indents JSON by {indent}, but only 0 to {MOST_INDENT} spaces "
                "are allowed"
            )
    if separators is not None and any(len(text) > LONGEST_SEPARATOR for text in separators):
        raise TemplateError("the chat template separates JSON values with a long text")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    parts, size = list[str](), 0
    for part in encoder.iterencode(value):
        parts.append(part)
        size += len(part)
        check_size(size)
    return "".join(parts)
