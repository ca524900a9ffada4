"""What the documents point at is there, and what they show runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_and_every_file_that_is_named_exists(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    named = re.findall(r"`((?:src|tests|docs|benchmarks|experiments|tools)/[\w./]+)`", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    missing += [
        name for name in named if not re.search("VERB|NAME", name) and not (ROOT / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("name", ["README.md", "docs/python.md", "docs/box.md"])
def test_the_python_of_a_document_runs(name, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})
    assert capsys.readouterr().out


def test_every_name_of_the_walk_through_the_paper_is_where_it_says():
    text = " ".join((ROOT / "docs/paper.md").read_text(encoding="utf-8").split())
    named = re.findall(r"`(\w+)` in \[[\w.]+\]\((.+?)\)", text)
    assert len(named) > 15
    for name, path in named:
        source = (ROOT / "docs" / path).read_text(encoding="utf-8")
        assert re.search(rf"(class|def) {name}\b", source), f"{name} is not in {path}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_heading_leads_to_one(document):
    for path, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([^)]+)\)", document.read_text("utf-8")):
        target = (document.parent / path) if path else document
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        known = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings]
        assert anchor in known, f"{target.name} has no #{anchor}"
