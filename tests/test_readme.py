"""The commands of README.md, the quick start, the tutorials and a guide print what the pages show.

Words must be equal; numbers may differ by 0.005, because processors round differently. Commands
that only train are run with fewer steps by tests/cli/test_walkthroughs.py. `make demo` is tested by
tests/cli/test_demo.py.
"""

import re

import pytest

from tools.examples import DOCUMENTS, ROOT, blocks, examples, run_block

CLOSE = 0.005
BLOCKS = [(document, block) for document in DOCUMENTS for block in blocks(document)]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def alike(printed, expected):
    try:
        printed, expected = printed.strip("(),"), expected.strip("(),")
        return abs(float(printed) - float(expected)) <= CLOSE
    except ValueError:
        return printed == expected


@pytest.mark.parametrize(
    ("document", "block"), BLOCKS, ids=[f"{name} {block.split()[2]}" for name, block in BLOCKS]
)
def test_commands_print_the_output_below_them(document, block, tmp_path):
    for (line, expected), printed in zip(examples(block), run_block(block, tmp_path), strict=True):
        ours, theirs = printed.split(), expected.split()
        assert len(ours) == len(theirs), f"$ {line}\n{printed}"
        assert all(map(alike, ours, theirs)), f"$ {line}\n{printed}"


def test_the_readme_shows_five_examples_two_pictures_and_a_table_of_results():
    assert len(blocks("README.md")) == 5
    assert "\nmake demo" in README
    assert "\nmake test" in README
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", README)
    assert len(pictures) == 2
    assert all((ROOT / picture).stat().st_size < 200_000 for picture in pictures)
    assert "| | regard | for comparison |" in README
    assert len(README.splitlines()) < 150


def test_number_of_lines_of_the_architecture_is_correct():
    [number] = re.findall(r"about ([\d,]+) lines", README)
    files = [*ROOT.glob("src/regard/model/*.py"), ROOT / "src/regard/ops/reference.py"]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert lines == pytest.approx(int(number.replace(",", "")), rel=0.2)
