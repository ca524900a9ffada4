"""The documentation: links, headings, names, the navigation, and Python examples."""

import os
import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from tools.site import replace_links

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "results")
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Pages whose Python code runs on its own; tests/cli/test_walkthroughs.py runs that of the tutorials.
PYTHON = [
    "README.md", "docs/python.md", "docs/quickstart.md", "docs/guides/shipped-models.md",
    "docs/concepts/packed-batches.md", "docs/reference/configuration.md",
]  # fmt: skip


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_and_every_file_that_is_named_exists(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", CODE.sub("", text))
    named = re.findall(r"`((?:src|tests|docs|benchmarks|experiments|tools)/[\w./-]+)`", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    missing += [
        name for name in named if not re.search("VERB|NAME", name) and not (ROOT / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_to_a_heading_leads_to_one(document):
    for path, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([^)]+)\)", document.read_text("utf-8")):
        target = (document.parent / path) if path else document
        text = CODE.sub("", target.read_text(encoding="utf-8"))
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        known = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings]
        assert anchor in known, f"{target.name} has no #{anchor}"


@pytest.mark.parametrize("name", PYTHON)
def test_the_python_of_a_document_runs(name, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})
    assert capsys.readouterr().out


def test_every_name_of_the_walk_through_the_paper_is_in_its_file():
    page = DOCS / "concepts" / "paper.md"
    text = " ".join(page.read_text(encoding="utf-8").split())
    named = re.findall(r"`(\w+)` in \[[\w.]+\]\((.+?)\)", text)
    assert len(named) > 15
    for name, path in named:
        source = (page.parent / path).read_text(encoding="utf-8")
        assert re.search(rf"(class|def) {name}\b", source), f"{name} is not in {path}"


def resolve(name):
    """The module, class or function with this dotted name."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(resolve(module), attribute)


def test_every_term_of_the_glossary_is_defined_where_it_says():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| .+ \| `([\w.]+)` \|$", text, re.MULTILINE)
    assert len(rows) > 60
    for term, name in rows:
        assert name.startswith("regard.")
        assert resolve(name) is not None, term
    terms = [term.lower() for term, _ in rows]
    assert len(set(terms)) == len(terms), "a term has two rows"
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:-1]:
        names = [
            row[0].lower() for row in re.findall(r"^\| (.+?) \| (.+) \| `", section, re.MULTILINE)
        ]
        assert names == sorted(names), f"not sorted: {section.splitlines()[0]}"


def pages_of(entries):
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_of(value)


def test_the_navigation_of_the_site_lists_every_page_once():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = sorted(pages_of(settings["nav"]))
    assert listed == sorted(path.relative_to(DOCS).as_posix() for path in PAGES)


def test_site_shows_the_path_of_a_file_outside_docs():
    text = "[a.py](../../src/a.py), [b](../guides/b.md#c), [d](e.md)"
    replaced = replace_links(text, "concepts/page.md")
    assert replaced == "`src/a.py`, [b](../guides/b.md#c), [d](e.md)"


def test_no_message_of_the_package_names_a_page_that_a_wheel_does_not_have():
    for path in (ROOT / "src").rglob("*"):
        if path.suffix in (".py", ".md", ".html", ".js", ".cpp", ".h", ".toml"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"docs/\w", text), f"{os.fspath(path)} names a page of docs/"
