"""The kinds of layer that the measurements compare, by the names that people see everywhere.

Each is the same block of the same encoder with other options (section 4 and table 1 of the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import InputError, unknown

WINDOW, KERNEL = 8, 3  # r and k, where nothing else is asked for


def kinds(window: int = WINDOW, kernel: int = KERNEL) -> dict[str, dict[str, Any]]:
    """The options of ModelConfig that make each kind."""
    return {
        "attention": {"mixer": "attention"},
        "restricted": {"mixer": "attention", "window": window},
        "lstm": {"mixer": "lstm"},
        "gru": {"mixer": "gru"},
        "convolution": {"mixer": "convolution", "kernel": kernel},
        "dilated": {"mixer": "dilated", "kernel": kernel},
        "feed-forward": {"mixer": "none"},
    }


KINDS = tuple(kinds())


def title(name: str, window: int = WINDOW, kernel: int = KERNEL) -> str:
    return {
        "attention": "self-attention", "restricted": f"restricted (r={window})",
        "lstm": "LSTM", "gru": "GRU", "convolution": f"convolution (k={kernel})",
        "dilated": f"dilated (k={kernel})", "feed-forward": "feed-forward",
    }[name]  # fmt: skip


def check_kinds(names: Sequence[str], known: Sequence[str] = KINDS) -> None:
    """Refuse what `--kinds` cannot mean."""
    for name in names:
        if name not in known:
            raise unknown("kind", name, known)
    if len(set(names)) < len(names):
        raise InputError(f"--kinds {' '.join(names)}: a value is duplicated")
