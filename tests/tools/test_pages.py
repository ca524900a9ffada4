"""The generated pages under docs/ equal the output of their generators."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from experiments.template import fill
from tools.configuration import SECTIONS, document

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "page",
    ["results.md", "performance.md", "reference/configuration.md", "reference/cli.md", "api.md"],
)
def test_a_page_equals_the_output_of_its_command(page, tmp_path):
    written = tmp_path / Path(page).name
    command = [sys.executable, "-m", "tools", written.stem, "--out", written]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert written.read_text(encoding="utf-8") == (ROOT / "docs" / page).read_text("utf-8")


def test_every_option_has_a_row_with_an_explanation():
    lines = document().splitlines()
    for section, cls in SECTIONS.items():
        for field in fields(cls):
            [row] = [line for line in lines if f"| `{section}.{field.name}` " in line]
            assert not row.endswith("|  |"), f"no comment on {section}.{field.name}"


def test_a_template_needs_a_value_for_each_placeholder_and_no_others(tmp_path):
    template = tmp_path / "page.md"
    template.write_text("{greeting}, {name}! {not: a placeholder}\n")
    assert (
        fill(template, {"greeting": "Hi", "name": "{name}"}) == "Hi, {name}! {not: a placeholder}\n"
    )
    for values in ({"greeting": "Hi"}, {"greeting": "Hi", "name": "A", "other": "B"}):
        with pytest.raises(ValueError, match="placeholders and values do not match: "):
            fill(template, values)


@pytest.mark.parametrize("package", ["benchmarks", "experiments", "tools"])
def test_the_help_lists_the_commands_and_an_unknown_one_is_one_line(package):
    def call(*words):
        command = [sys.executable, "-m", package, *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    output = call("--help")
    assert output.returncode == 0
    assert output.stdout == call().stdout
    names = [
        line.split()[0]
        for line in output.stdout.partition("commands:\n")[2].splitlines()
        if line[:2] == "  "
    ]
    assert {f"{name}.py" for name in names} <= {path.name for path in (ROOT / package).iterdir()}
    unknown = call("nosuch")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith(f"{package}: unknown command 'nosuch'; known: ")
    assert unknown.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("package", "above"), [("benchmarks", "experiments|tools"), ("experiments", "tools")]
)
def test_a_package_does_not_import_from_those_that_build_on_it(package, above):
    for path in (ROOT / package).glob("*.py"):
        assert not re.search(
            rf"^\s*(from|import) ({above})\b", path.read_text("utf-8"), re.MULTILINE
        )
