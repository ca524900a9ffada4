"""The first translation of a new user: with an empty cache, and one sentence as argument."""

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


def test_first_translation_does_not_wait_for_the_compiler(folder, tmp_path):
    built = tmp_path / "cache/native"
    environment = os.environ | {"REGARD_CACHE": str(tmp_path / "cache")}
    environment.pop("REGARD_NATIVE", None)
    command = [
        sys.executable, "-m", "regard", "translate", "-m", folder, "--device", "cpu",
        "The old man saw the small dog.",
    ]  # fmt: skip

    def translate():
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )

    first = translate()
    assert first.stderr == ""
    # PyTorch computed the translation, because the library was not compiled yet.
    end = time.monotonic() + LONGEST
    while not list(built.glob("inference-*.so")):
        assert time.monotonic() < end, "the library was not built"
        time.sleep(0.1)
    second = translate()
    assert (second.stdout, second.stderr) == (first.stdout, "")
    while list(built.glob(".tmp-*")):  # the other libraries are compiled as well
        assert time.monotonic() < end, "an incomplete file remains"
        time.sleep(0.1)


def test_int8_waits_for_the_native_library(folder, tmp_path):
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
def test_hurried_is_true_if_a_person_waits_for_one_prediction(
    tmp_path, monkeypatch, words, terminal, expected
):
    from regard.cli.main import build_parser
    from regard.cli.predict import FEW, hurried

    (tmp_path / "few").write_text("a line\n")
    (tmp_path / "many").write_text("a line\n" * FEW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"isatty": lambda self: terminal})())
    assert hurried(build_parser().parse_args(words)) is expected
