"""The kinds of layer that the measurements compare, by their names on the command line.

Each is the same block of the same encoder with other options (section 4 and table 1 of the paper).
This module does not import torch: the command line reads it for `--help`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import InputError, unknown

WINDOW, KERNEL = 8, 3  # defaults of r and k


def layer_options(window: int = WINDOW, kernel: int = KERNEL) -> dict[str, dict[str, Any]]:
    """For each kind of layer, the options of ModelConfig that select it."""
    return {
        "attention": {"mixer": "attention"},
        "restricted": {"mixer": "attention", "window": window},
        "lstm": {"mixer": "lstm"},
        "gru": {"mixer": "gru"},
        "convolution": {"mixer": "convolution", "kernel": kernel},
        "dilated": {"mixer": "dilated", "kernel": kernel},
        "feed-forward": {"mixer": "none"},
    }


LAYER_KINDS = tuple(layer_options())


def layer_title(name: str, window: int = WINDOW, kernel: int = KERNEL) -> str:
    return {
        "attention": "self-attention", "restricted": f"restricted (r={window})",
        "lstm": "LSTM", "gru": "GRU", "convolution": f"convolution (k={kernel})",
        "dilated": f"dilated (k={kernel})", "feed-forward": "feed-forward",
        "reference": "plain attention",
    }[name]  # fmt: skip


def check_layer_kinds(names: Sequence[str], known: Sequence[str] = LAYER_KINDS) -> None:
    """Refuse unknown and duplicated values of `--kinds`."""
    for name in names:
        if name not in known:
            raise unknown("kind", name, known)
    if len(set(names)) < len(names):
        raise InputError(f"--kinds {' '.join(names)}: a value is duplicated")
