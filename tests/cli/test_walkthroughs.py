"""The commands of docs/training.md and docs/tasks.md run as they stand, one after the other, in one
folder with small files of the names that they use. Training is cut short, everything else is not."""

import json
import re
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import command
from regard.text.builtin import builtin_corpus

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = [
    f"--set={setting}"
    for setting in (
        "training.steps=2", "training.validate_every=2", "training.batch_tokens=1024",
        "decoding.max_length=8",
    )
]  # fmt: skip
SMALL = "--set=data.vocabulary_size=400"  # --from brings its own


def commands(document):
    """The lines of a document's blocks that begin with `regard`, quoted line ends included."""
    for language, block in BLOCKS.findall((DOCS / document).read_text(encoding="utf-8")):
        lines = iter([] if language else block.splitlines())
        for line in lines:
            while line.count('"') % 2:
                line += "\n" + next(lines)
            if line.startswith("regard "):
                yield shlex.split(line, comments=True)[1:]


def write_files(folder):
    english, german = zip(*builtin_corpus("train", 90), strict=True)
    labels = [f"{'de' if i % 2 else 'en'}\t{(english, german)[i % 2][i]}" for i in range(90)]
    question = {"context": "Mary went home.", "question": "Where is Mary?", "answer": "home"}
    asked = [json.dumps(question | {"context": f"{line} Mary went home."}) for line in english]
    pairs = [json.dumps({"a": a, "b": b}) for a, b in zip(english, german, strict=True)]
    texts = [f"{line}\n" if i % 5 else line for i, line in enumerate(english)]
    for part, lines in (("train", slice(0, 60)), ("valid", slice(60, 80)), ("test", slice(80, 90))):
        for name, rows in (
            ("en", english), ("de", german), ("tsv", labels), ("jsonl", asked), ("txt", texts),
            ("pairs.jsonl", pairs),
        ):  # fmt: skip
            text = "".join(f"{row}\n" for row in rows[lines])
            (folder / f"{part}.{name}").write_text(text, encoding="utf-8")
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in english), encoding="utf-8")


@pytest.mark.parametrize("document", ["training.md", "tasks.md"])
def test_the_commands_of_a_document_run_one_after_the_other(document, tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    ran = 0
    for words in commands(document):
        given = words.pop(words.index("<") + 1) if "<" in words else "lines.txt"
        if ">" in words:
            del words[words.index(">") :]
        words = [word for word in words if word != "<"]
        short = []
        if words[0] == "train" and "--config" in words:  # a finished run is made longer
            short = ["--set=training.steps=3"]
        elif words[0] == "train" and "--resume" not in words:
            short = SHORT if "--from" in words else [*SHORT, SMALL]
        with ExitStack() as stack, monkeypatch.context() as patch, torch.enable_grad():
            patch.setattr("sys.stdin", stack.enter_context(Path(given).open()))
            _, err, code = command.regard(*words, *short)
        assert code == 0, f"{shlex.join(words)}: {err}"
        assert "Traceback" not in err
        ran += 1
    assert ran > 10
