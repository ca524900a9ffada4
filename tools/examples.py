"""`python -m benchmarks shown`: run the commands that README.md and docs/tasks.md show, with the
models in the box, and write what they print below them; pictures go to docs/.

Each block of commands (a `console` block) is run line by line by bash in an empty folder, as a
person would. tests/test_readme.py does the same and compares: run this when a model in the box or
the way an answer is printed has changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from regard.errors import InputError
from regard.files import write_file

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "docs/tasks.md")
BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
SECONDS = 120  # that a command may take


def blocks(document: str) -> list[str]:
    return BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))


def examples(block: str) -> list[tuple[str, str]]:
    """Each command of a block, and what is shown below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(line, shown) for line, _, shown in (part.partition("\n") for part in parts)]


def printed(block: str, folder: Path) -> list[str]:
    """What the commands of a block print, one after the other in a folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = []
    for line, _ in examples(block):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], cwd=folder, capture_output=True, text=True,
            timeout=SECONDS, env={**os.environ, "PATH": path, "COLUMNS": "80"},
        )  # fmt: skip
        if done.returncode:
            raise InputError(f"$ {line}\n{done.stderr}")
        said.append(done.stdout)
    return said


def main(arguments: list[str]) -> int:
    argparse.ArgumentParser(prog="python -m benchmarks shown").parse_args(arguments)
    failed = 0
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for block in blocks(document):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    said = printed(block, Path(folder))
                except InputError as error:
                    print(f"{document}: left as it is: {error}", file=sys.stderr)
                    failed = 1
                    continue
                for picture in Path(folder).glob("*.png"):
                    shutil.copy(picture, ROOT / "docs" / picture.name)
            commands = [line for line, _ in examples(block)]
            pairs = zip(commands, said, strict=True)
            text = text.replace(block, "".join(f"$ {line}\n{out}" for line, out in pairs))
        write_file(ROOT / document, text)
    return failed
