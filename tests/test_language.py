"""Plain English: words and phrases that code, messages and documents do not use.

docs/glossary.md has the standard terms. Phrases are searched in all lines; words that are fine in a
sentence but say nothing as a name ("found") are searched among the names of Python code only.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".md", ".cpp", ".h", ".toml", ".yml", ".yaml", ".html", ".js", ".css"}

# Folders and files that the test reads.
ROOTS = (
    "README.md", "CONTRIBUTING.md", "Makefile", "mkdocs.yml", "pyproject.toml",
    "benchmarks", "docs", "experiments", "src", "tests", "tools",
)  # fmt: skip

# What to use instead is in docs/glossary.md and in the comments.
PHRASES = (
    r"slopes?",  # gradient
    r"told", r"said", r"asked", r"wanted",  # message, request, option
    r"unlucky", r"hopeless",  # nonfinite_steps
    r"(learn\w* )?by heart",  # overfit
    r"take another", r"give another",  # choose a different
    r"none of ours",  # not a regard ... file
    r"stands? there", r"lies there", r"stood there",  # is in, is duplicated
    r"excludes? each other",  # cannot be combined
    r"for who", r"who asks",  # for repeated calls
    r"by itself", r"by themselves",  # default, on its own
    r"shorter format",  # autocast dtype
)  # fmt: skip
PATTERN = re.compile(rf"(?<![\w-])({'|'.join(PHRASES)})(?![\w-])", re.IGNORECASE)
NAMES = {
    "asked", "found", "given", "heard", "said", "slope", "slopes", "taken", "told", "unlucky",
    "wanted", "who",
}  # fmt: skip

# Text that is quoted, not written by us: (file, part of the line).
ALLOWED = {
    ("tests/test_language.py", ""),  # this list
    ("src/regard/text/builtin.toml", 'said = "sagte"'),  # a word of the built-in corpus
}


def files():
    """The files to check, with their paths below the repository."""
    for name in ROOTS:
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in SUFFIXES or file.name == "Makefile":
                yield file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")


def allowed(name, line):
    return any(name == file and part in line for file, part in ALLOWED)


def phrases_in(text):
    """Number and content of the lines that contain a phrase; a phrase may continue on the next line."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        following = lines[number].lstrip(" #*/>-") if number < len(lines) else ""
        match = PATTERN.search(f"{line.rstrip()} {following}")
        if match and match.start() < len(line):
            yield number, line.strip()


def names_in(source):
    """Line number and name of all variables, parameters, functions, classes and attributes that are
    defined in Python source."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def test_no_file_uses_a_phrase_of_the_list():
    wrong = [
        f"{name}:{number}: {line[:80]}"
        for name, text in files()
        for number, line in phrases_in(text)
        if not allowed(name, line)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_name_in_python_is_a_word_of_the_list():
    wrong = [
        f"{name}:{line}: {identifier}"
        for name, text in files()
        if name.endswith(".py")
        for line, identifier in names_in(text)
        if identifier.lower().strip("_") in NAMES
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "# the slope of a line",
        "It learns by heart.",
        "take another --out",
        "they exclude\n# each other",
    ],
)
def test_a_phrase_is_detected(text):
    assert list(phrases_in(text))


@pytest.mark.parametrize("text", ["a slope-like curve", "essaid", "aside", "results were found"])
def test_similar_words_are_not_detected(text):
    assert not list(phrases_in(text))


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "for found in x: pass",
        "def f(given): pass",
        "with x as taken: pass",
        "a.told = 2",
    ],
)
def test_a_name_is_detected(source):
    assert any(name in NAMES for _, name in names_in(source))


def test_a_name_that_is_only_read_is_not_reported():
    assert not any(name in NAMES for _, name in names_in("x = y.found"))
