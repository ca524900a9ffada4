"""docs/concepts/architecture.md describes the code: its packages, and the two walks, function by function."""

import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import regard
from command import regard as run_command
from regard.ops.cpu import build
from regard.text.builtin import builtin_corpus
from test_layering import ORDER

PACKAGE = Path(regard.__file__).parent
DOCUMENT = Path(__file__).parents[1] / "docs" / "concepts" / "architecture.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
STEP = re.compile(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`:", re.MULTILINE)


def section(title):
    """The text between a heading and the next one."""
    [_, rest] = TEXT.split(f"\n## {title}\n")
    return rest.split("\n## ")[0]


@contextmanager
def calls():
    """Collect the functions of regard in the order of their first calls, as (file, name)."""
    first_calls = {}

    def record(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            first_calls.setdefault((file, code.co_qualname), len(first_calls))

    previous = sys.getprofile()
    sys.setprofile(record)
    try:
        yield first_calls
    finally:
        sys.setprofile(previous)


def check_walk(title, first_calls):
    steps = STEP.findall(section(title))
    assert len(steps) >= 10
    missing = [step for step in steps if step not in first_calls]
    assert not missing, "not called"
    order = [first_calls[step] for step in steps]
    wrong = [b for a, b, x, y in zip(steps, steps[1:], order, order[1:], strict=False) if x >= y]
    assert not wrong, "called earlier than the document says"


def test_the_packages_are_those_of_the_layering_test_in_the_same_order():
    rows = re.findall(r"^\| `(\w+)(?:\.py|/)` \|", section("Packages"), re.MULTILINE)
    exists = [
        name for name in ORDER if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()
    ]
    assert rows == exists


def test_walk_of_regard_train_lists_the_called_functions(tmp_path):
    english, german = (tmp_path / name for name in ("train.en", "train.de"))
    pairs = builtin_corpus("train", 200)
    english.write_text("".join(f"{pair[0]}\n" for pair in pairs), encoding="utf-8")
    german.write_text("".join(f"{pair[1]}\n" for pair in pairs), encoding="utf-8")
    sizes = ["--set", "training.steps=2", "--set", "data.vocabulary_size=300"]
    with build.without(), calls() as first_calls:
        _, err, code = run_command(
            "train", "--task", "translate", "--preset", "tiny", "--train", english, german, "--out", tmp_path / "run",
            *sizes, "--device", "cpu", "--quiet",
        )  # fmt: skip
    assert code == 0, err
    check_walk("A sentence through `regard train`", first_calls)


def test_walk_of_regard_translate_lists_the_called_functions():
    with build.without(), calls() as first_calls:
        out, err, code = run_command("translate", "A man is riding a bicycle.", "--device", "cpu")
    assert (code, bool(out.strip())) == (0, True), err
    check_walk("A sentence through `regard translate`", first_calls)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([("cli/main.py", "main"), ("cli/main.py", "gone")], "not called"),
        ([("b.py", "second"), ("cli/main.py", "main")], "called earlier"),
    ],
)
def test_a_wrong_walk_is_detected(monkeypatch, steps, message):
    lines = [f"{i}. `{file}` `{name}`: text" for i, (file, name) in enumerate(steps * 5, 1)]
    monkeypatch.setattr(sys.modules[__name__], "section", lambda title: "\n".join(lines))
    with pytest.raises(AssertionError, match=message):
        check_walk("any", {("cli/main.py", "main"): 0, ("b.py", "second"): 1})
