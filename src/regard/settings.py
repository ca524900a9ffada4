"""`--set section.key=value`: words of the command line as values of a configuration."""

from __future__ import annotations

from typing import Any

from regard.config import SECTIONS
from regard.errors import InputError, unknown


def settings(assignments: list[str]) -> dict[str, dict[str, Any]]:
    """`--set model.heads=4 ...`: keys and values by section."""
    values: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        section, _, name = key.strip().partition(".")
        if not equals or not name:
            raise InputError(f"--set {assignment!r}: write it as section.key=value")
        if section not in SECTIONS:
            raise unknown("section", section, SECTIONS)
        values.setdefault(section, {})[name] = literal(text.strip())
    return values


def section_settings(assignments: list[str], only: str) -> dict[str, Any]:
    """The same where only one section makes sense."""
    values = settings(assignments)
    for section in values:
        if section != only:
            raise InputError(f"--set {section}.…: only options of the section {only} are used here")
    return values.get(only, {})


def literal(text: str) -> Any:
    """A word of the command line as YAML reads it (`none` is a word: model.positions=none)."""
    if text.startswith("["):  # data.labels=[good, bad]
        return [part.strip() for part in text[1:].removesuffix("]").split(",") if part.strip()]
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
