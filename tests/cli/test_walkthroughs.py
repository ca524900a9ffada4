"""The commands and the Python code of tutorials and guides run in order, with few training steps.

A tutorial writes its own data. Guides use files of fixed names, which this test writes.
"""

import json
import re
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import command
from regard.text import builtin

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted(path.name for path in (DOCS / "tutorials").glob("*.md"))
# Pages of a group run in one folder, so that later ones can use the models of the first.
GUIDES = [
    ["data.md", "decoding.md"], ["training.md"], ["fine-tuning.md"], ["interrupted-runs.md"],
    ["evaluation.md"], ["sharing.md"], ["looking-inside.md"],
]  # fmt: skip
BLOCKS = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = [
    f"--set={setting}"
    for setting in (
        "training.steps=2", "training.validate_every=2", "training.batch_tokens=1024",
        "decoding.max_length=8",
    )
]  # fmt: skip
SMALL = "--set=data.vocabulary_size=400"  # a fine-tuned model has the vocabulary of the first


def blocks(page):
    """The language and the text of each code block."""
    return BLOCKS.findall((DOCS / page).read_text(encoding="utf-8"))


def commands(block):
    """The arguments of each `regard` command; a quoted argument may contain line ends."""
    lines = iter(block.replace("\\\n", "").splitlines())
    for line in lines:
        while line.count('"') % 2:
            line += "\n" + next(lines)
        if line.startswith("regard "):
            yield shlex.split(line, comments=True)[1:]


def write_files(folder):
    """The files that guides name."""
    english, german = zip(*builtin.builtin_corpus("train", 90), strict=True)
    labels = [f"{'de' if i % 2 else 'en'}\t{(english, german)[i % 2][i]}" for i in range(90)]
    question = {"context": "Mary went home.", "question": "Where is Mary?", "answer": "home"}
    questions = [json.dumps(question | {"context": f"{line} Mary went home."}) for line in english]
    pairs = [json.dumps({"a": a, "b": b}) for a, b in zip(english, german, strict=True)]
    texts = [f"{line}\n" if i % 5 else line for i, line in enumerate(english)]
    for part, lines in (("train", slice(0, 60)), ("valid", slice(60, 80)), ("test", slice(80, 90))):
        for name, rows in (
            ("en", english), ("de", german), ("tsv", labels), ("jsonl", questions), ("txt", texts),
            ("pairs.jsonl", pairs),
        ):  # fmt: skip
            text = "".join(f"{row}\n" for row in rows[lines])
            (folder / f"{part}.{name}").write_text(text, encoding="utf-8")
    stars = "".join(f'{i % 5},"{english[i]}"\n' for i in range(90))
    (folder / "reviews.csv").write_text(f"stars,body\n{stars}", encoding="utf-8")
    (folder / "source.txt").write_text("".join(f"{line}\n" for line in english), encoding="utf-8")


def run_command(words, monkeypatch):
    """Run one command; a training gets few steps and a small vocabulary."""
    source = words.pop(words.index("<") + 1) if "<" in words else "/dev/null"
    if ">" in words:
        del words[words.index(">") :]
    words = [word for word in words if word != "<"]
    short = []
    if words[0] == "train" and "--config" in words:  # a finished run is made longer
        short = ["--set=training.steps=3"]
    elif words[0] == "train" and "--resume" not in words:
        short = SHORT if "--from" in words else [*SHORT, SMALL]
    for option in ("--steps", "--epochs", "--batch-tokens"):  # they would contradict --set
        if short and option in words:
            del words[words.index(option) : words.index(option) + 2]
    with ExitStack() as stack, monkeypatch.context() as patch, torch.enable_grad():
        patch.setattr("sys.stdin", stack.enter_context(Path(source).open()))
        _, err, code = command.regard(*words, *short)
    assert code == 0, f"{shlex.join(words)}: {err}"
    assert "Traceback" not in err


def run_page(page, monkeypatch):
    """Run the code blocks of a page in order; returns the number of commands."""
    ran = 0
    for language, block in blocks(page):
        if language == "python":
            exec(compile(block, page, "exec"), {})
        elif not language:
            for words in commands(block):
                run_command(words, monkeypatch)
                ran += 1
    return ran


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_from_its_data_to_python(name, folder, monkeypatch):
    corpus = builtin.builtin_corpus
    monkeypatch.setattr(builtin, "builtin_corpus", lambda part, size: corpus(part, min(size, 100)))
    assert {language for language, _ in blocks(f"tutorials/{name}")} >= {"", "python", "text"}
    assert run_page(f"tutorials/{name}", monkeypatch) >= 3


@pytest.mark.parametrize("names", GUIDES, ids=" ".join)
def test_the_commands_of_a_guide_run_one_after_the_other(names, folder, monkeypatch):
    write_files(folder)
    assert sum(run_page(f"guides/{name}", monkeypatch) for name in names) >= 3
