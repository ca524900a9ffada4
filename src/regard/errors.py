"""The exceptions that the command line shows as one line, without a traceback.

A mistake in the input (an option, a file, a token id) is an `InputError`: its message says what is
wrong, where, and what to do, and the exit code is 2. Work that failed for another reason (a full
disk, a loss that is NaN or infinity) is a `TrainingFailed` with exit code 1. Every other exception
is a bug in regard and shows its traceback.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """The input cannot be used; the message is one line that says what to do."""


class DamagedModel(InputError):
    """A model computes NaN. To a service this is an error of its own, not of a request."""


class TrainingFailed(RuntimeError):
    """Training failed; the last valid state is saved, and the message says how to continue."""


class ConversionFailed(Exception):
    """A converted model differs too much from the original, or the other engine cannot run it.
    Nothing was written."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for an unknown name; its message suggests the most similar known name."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return InputError(f"unknown {kind} {name!r}; {hint}")


class RegardWarning(UserWarning):
    """A warning of this package. The command line prints it in one line."""


def warn_user(message: str) -> None:
    """Issue a Python warning that names the line of the user's program which called regard."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("regard."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RegardWarning, stacklevel=level)
