"""The programs of docs/interop.md that run exported models print what the page shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard.interop.conversion import export_model

PAGE = (Path(__file__).parents[2] / "docs/interop.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"\$ regard export (\S+) --to (\S+) --out (translator|classifier)\n", PAGE)


@pytest.mark.parametrize(
    ("command", "program"),
    list(zip(COMMANDS, PROGRAMS, strict=True)),
    ids=[target for _, target, _ in COMMANDS],
)
def test_a_program_prints_what_the_page_shows(command, program, tmp_path):
    model, target, folder = command
    pytest.importorskip({"onnx": "onnxruntime"}.get(target, target))
    export_model(model, target, tmp_path / folder, texts=["A dog."])
    code, expected = program
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == expected, done.stderr


def test_the_page_has_a_program_for_each_command():
    assert len(PROGRAMS) == len(COMMANDS) == 2
