"""Checks of configuration values: types, ranges and choices.

A value is checked when its section is created, before anything uses it. The message of an
`InputError` names the option and what it accepts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple, get_origin, get_type_hints

from regard.config.names import unknown_key
from regard.errors import InputError, unknown

TYPE_NAMES: dict[type, str] = {
    int: "an integer", float: "a number", str: "a string", bool: "true or false", list: "a list",
    dict: "a mapping", type(None): "none",
}  # fmt: skip
DERIVED: Any = None  # default of a field whose value follows from other fields


class Range(NamedTuple):
    """The allowed values of a number."""

    minimum: float
    maximum: float
    above: bool = False  # `minimum` itself is excluded
    below: bool = False  # `maximum` itself is excluded

    def __str__(self) -> str:
        low = f"{'above' if self.above else 'at least'} {self.minimum:,}"
        return f"{low}, {'below' if self.below else 'at most'} {self.maximum:,}"

    def check(self, name: str, value: float) -> None:
        """Refuse a value outside the range."""
        if value < self.minimum or (self.above and value == self.minimum):
            rule = f"{'above' if self.above else 'at least'} {self.minimum:,}"
        elif value > self.maximum or (self.below and value == self.maximum):
            rule = f"{'below' if self.below else 'at most'} {self.maximum:,}"
        else:
            return
        raise InputError(f"{name} must be {rule}, not {format_value(value)}")


FRACTION = Range(0, 1, below=True)


def check_keys(section: Any, name: str, values: Iterable[str]) -> None:
    """Refuse an unknown key of a section; the error suggests the right option."""
    known = list(section.__dataclass_fields__)
    for key in values:
        if key not in known:
            raise unknown_key(name, key, known)


@functools.cache
def field_types(section: Any) -> dict[str, Any]:
    """The types of the fields of a section, which is a class."""
    return get_type_hints(section)


def check_types(config: Any, section: str, ranges: Mapping[str, Range]) -> None:
    """Refuse a value of the wrong type (`model.heads=8.5`), NaN or infinity, and a number outside
    its range, before anything uses it."""
    kind: Any = type(config)
    for name, hint in field_types(kind).items():
        value = getattr(config, name)
        origin = get_origin(hint)
        allowed = (origin,) if origin in (list, dict) else getattr(hint, "__args__", (hint,))
        if value is DERIVED and type(config).__dataclass_fields__[name].default is DERIVED:
            continue
        if float in allowed and type(value) is int:
            try:
                value = float(value)
            except OverflowError:
                value = math.inf if value > 0 else -math.inf
            object.__setattr__(config, name, value)
        elif type(value) not in allowed and not (name == "tie_embeddings" and type(value) is bool):
            expected = " or ".join(TYPE_NAMES.get(each, each.__name__) for each in allowed)
            raise InputError(f"{section}.{name} must be {expected}, not {format_value(value)}")
        if type(value) is list and not all(type(item) is str for item in value):
            raise InputError(
                f"{section}.{name} must be a list of strings, not {format_value(value)}"
            )
        if type(value) is dict and not all(type(x) is str for x in (*value, *value.values())):
            raise InputError(
                f"{section}.{name} must map strings to strings, not {format_value(value)}"
            )
        if type(value) is float and not math.isfinite(value):
            raise InputError(f"{section}.{name} must be a finite number, not {value}")
        if name in ranges and value is not None:
            ranges[name].check(f"{section}.{name}", value)


def changed_fields(config: Any) -> str:
    """The `repr` of a section: only the fields whose values differ from their defaults."""
    values = []
    for field in fields(config):
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if (value := getattr(config, field.name)) != default:
            values.append(f"{field.name}={value!r}")
    return f"{type(config).__name__}({', '.join(values)})"


def format_value(value: object) -> str:
    """A value for a message, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python cannot format integers of more than 4,300 digits
        return "a number with thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise unknown(name, value, choices)
