"""As a newcomer does it: nothing is cached yet, and one sentence stands on the command line."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from regard.ops.cpu import build as native

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, native.COMPILERS)), reason="needs a C++ compiler"
)
LONGEST = 300  # seconds that a compiler may take on a busy machine


def test_the_first_answer_needs_no_compiler_and_the_library_is_there_afterwards(folder, tmp_path):
    built = tmp_path / "cache/native"
    environment = os.environ | {"REGARD_CACHE": str(tmp_path / "cache")}
    environment.pop("REGARD_NATIVE", None)
    command = [
        sys.executable, "-m", "regard", "translate", "-m", folder, "--device", "cpu",
        "The old man saw the small dog.",
    ]  # fmt: skip

    def ask():
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )

    first = ask()
    assert first.stderr == ""
    # The answer is PyTorch's: no other could be had yet, unless the compiler is faster than torch.
    end = time.monotonic() + LONGEST
    while not list(built.glob("inference-*.so")):
        assert time.monotonic() < end, "nobody built the library"
        time.sleep(0.1)
    second = ask()
    assert (second.stdout, second.stderr) == (first.stdout, "")
    while list(built.glob(".tmp-*")):  # whatever else was asked for is built, too
        assert time.monotonic() < end, "half a file was left"
        time.sleep(0.1)


def test_int8_waits_for_the_library_that_it_needs(folder, tmp_path):
    environment = os.environ | {"REGARD_CACHE": str(tmp_path / "cache")}
    environment.pop("REGARD_NATIVE", None)
    command = [
        sys.executable, "-m", "regard", "translate", "-m", folder, "--device", "cpu",
        "--dtype", "int8", "The old man saw the small dog.",
    ]  # fmt: skip
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert list((tmp_path / "cache/native").glob("inference-*.so"))


@pytest.mark.parametrize(("words", "terminal", "expected"), [
    (["translate", "a text"], False, True),
    (["translate"], False, False),
    (["translate"], True, True),
    (["translate", "a text", "--dtype", "int8"], False, False),
    (["fill", "a <mask>"], False, True),
    (["search", "words", "--documents", "few"], False, True),
    (["search", "words", "--documents", "many"], False, False),
    (["search", "words", "--documents", "missing"], False, True),
    (["evaluate", "--data", "few"], True, False),
    (["train", "--out", "run"], True, False),
])  # fmt: skip
def test_only_who_waits_for_one_answer_is_hurried(tmp_path, monkeypatch, words, terminal, expected):
    from regard.cli.main import build_parser
    from regard.cli.predict import FEW, hurried

    (tmp_path / "few").write_text("a line\n")
    (tmp_path / "many").write_text("a line\n" * FEW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"isatty": lambda self: terminal})())
    assert hurried(build_parser().parse_args(words)) is expected
