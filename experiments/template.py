"""Markdown templates: text with placeholders such as {table}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

PLACEHOLDER = re.compile(r"\{(\w+)\}")


def fill(path: Path, values: Mapping[str, str]) -> str:
    """Return the text of a template with every placeholder replaced by its value.

    Raises:
        ValueError: a placeholder has no value, or a value has no placeholder.
    """
    text = path.read_text(encoding="utf-8")
    names = set(PLACEHOLDER.findall(text))
    if names != set(values):
        wrong = ", ".join(sorted(names ^ set(values)))
        raise ValueError(f"{path}: placeholders and values do not match: {wrong}")
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)
