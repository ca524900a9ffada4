"""What is said when something is wrong, in one line.

Everything that is wrong with what a person gave us (an option, a file, a token id) is raised
as `InputError`: one line that says what is wrong, where, and what to do. The command line turns
it into exit code 2 without a traceback. Work that failed through nobody's mistake (a full disk, a
loss that is not finite) is `TrainingFailed` and exit code 1. Every other exception is our fault
and stays loud.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """What the user gave cannot be used; the message is one line that says what to do."""


class TrainingFailed(RuntimeError):
    """The work failed; what was good is saved, and the message says how to go on."""


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not known: it names the nearest one that is."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return InputError(f"unknown {kind} {name!r}; {hint}")
