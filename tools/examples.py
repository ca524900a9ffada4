"""Run the commands in README.md and in pages of docs; write their output below them.

Each `console` block runs line by line with bash in an empty folder, with the shipped models.
Pictures go to docs/. tests/test_readme.py runs the same commands and compares the outputs: run this
when a shipped model or the format of an output has changed.
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
DOCUMENTS = (
    "README.md",
    "docs/quickstart.md",
    "docs/guides/decoding.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/tutorials/*.md")),
)
BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
SECONDS = 120  # time limit of a command


def blocks(document: str) -> list[str]:
    """The `console` blocks of a document."""
    return BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))


def examples(block: str) -> list[tuple[str, str]]:
    """Each command of a block, and the output below it."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(line, output) for line, _, output in (part.partition("\n") for part in parts)]


def run_block(block: str, folder: Path) -> list[str]:
    """Run the commands of a block in a folder and return their outputs."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outputs = []
    for line, _ in examples(block):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], cwd=folder, capture_output=True, text=True,
            timeout=SECONDS, env={**os.environ, "PATH": path, "COLUMNS": "80"},
        )  # fmt: skip
        if done.returncode:
            raise InputError(f"$ {line}\n{done.stderr}")
        outputs.append(done.stdout)
    return outputs


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools examples", description=__doc__)
    parser.parse_args(arguments)
    failed = 0
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        for block in blocks(document):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    outputs = run_block(block, Path(folder))
                except InputError as error:
                    print(f"{document}: block not changed: {error}", file=sys.stderr)
                    failed = 1
                    continue
                for picture in Path(folder).glob("*.png"):
                    shutil.copy(picture, ROOT / "docs" / picture.name)
            commands = [line for line, _ in examples(block)]
            pairs = zip(commands, outputs, strict=True)
            text = text.replace(block, "".join(f"$ {line}\n{out}" for line, out in pairs))
        write_file(ROOT / document, text)
    return failed
