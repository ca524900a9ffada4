"""Other runtimes are third-party code: their errors become one line that names the runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from regard.errors import InputError

LONGEST_REASON = 200  # characters of an error in a message


class NotCompared(Exception):
    """No other runtime can run a model; the message is the reason."""


class EngineFailed(NotCompared):
    """Another runtime raised an error."""


@contextmanager
def third_party(name: str, version: str) -> Iterator[None]:
    """Turn any error of another runtime into an `EngineFailed` with one line.

    Args:
        name: the package of the runtime.
        version: its version.
    """
    try:
        yield
    except (InputError, NotCompared):
        raise
    except Exception as error:
        line = " ".join(str(error).split())[:LONGEST_REASON]
        kind = type(error).__name__
        reason = f"{kind}: {line}" if line else kind
        raise EngineFailed(f"{name} {version} failed ({reason})") from error


def installed_version(package: str) -> str:
    """The version of a package, or "unknown"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
