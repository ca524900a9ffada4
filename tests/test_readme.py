"""The commands of README.md and docs/tasks.md, run as a person runs them, print what is shown.

Words must be the same; numbers may differ by 0.005, since processors round differently. The
commands that only train are run elsewhere (test_walkthroughs.py), shortened; `make demo` and `make
test` are not run here: test_demo.py has the first, and the second is what runs this.
"""

import re

import pytest

from tools.examples import DOCUMENTS, ROOT, blocks, examples, run_block

CLOSE = 0.005
BLOCKS = [(document, block) for document in DOCUMENTS for block in blocks(document)]


def alike(said, shown):
    try:
        said, shown = said.strip("(),"), shown.strip("(),")
        return abs(float(said) - float(shown)) <= CLOSE
    except ValueError:
        return said == shown


@pytest.mark.parametrize(
    ("document", "block"), BLOCKS, ids=[f"{name} {block.split()[2]}" for name, block in BLOCKS]
)
def test_commands_print_what_is_shown_below_them(document, block, tmp_path):
    for (line, shown), said in zip(examples(block), run_block(block, tmp_path), strict=True):
        ours, theirs = said.split(), shown.split()
        assert len(ours) == len(theirs), f"$ {line}\n{said}"
        assert all(map(alike, ours, theirs)), f"$ {line}\n{said}"


def test_the_readme_shows_five_things_to_do_and_one_picture():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(blocks("README.md")) == 5
    assert "\nmake demo" in text
    assert "\nmake test" in text
    [picture] = re.findall(r"!\[.+?\]\((.+?)\)", text)
    assert (ROOT / picture).stat().st_size < 200_000
    assert len(text.splitlines()) < 150
