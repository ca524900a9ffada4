"""Values of a configuration by section, as a file of YAML or `--set section.key=value` has them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from regard.errors import InputError, unknown

SECTIONS = ("model", "data", "training", "decoding")


def read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if len(text) > 1_000_000:
        raise InputError(f"{path}: a configuration of over a megabyte is none of ours")
    try:
        values = yaml.safe_load(io.StringIO(text))
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise InputError(f"{path}: not valid YAML: {said}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: must hold sections ({', '.join(SECTIONS)})")
    for name, keys in values.items():
        if name not in (*SECTIONS, "task"):
            raise unknown(f"section in {path}", str(name), SECTIONS)
        if name != "task" and not isinstance(keys, dict):
            raise InputError(f"{path}: {name} must be a section of options, not {keys!r}")
    return values


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
