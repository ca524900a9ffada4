"""Native code is built on first use, for this processor, and never needed."""

import os
import shutil

import pytest

from regard import InputError, native

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, native.COMPILERS)), reason="needs a C++ compiler"
)
ANSWER = 'extern "C" long answer() { return 42; }'


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """An empty cache, and sources of this test's own."""
    for known in (native.opened, native.missing):
        known.cache_clear()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.delenv("REGARD_NATIVE", raising=False)
    yield
    for known in (native.opened, native.missing):
        known.cache_clear()


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


@needs_compiler
@pytest.mark.parametrize("chosen", native.possible())
def test_a_library_is_built_once_and_again_when_its_source_changes(tmp_path, monkeypatch, chosen):
    monkeypatch.setenv("REGARD_NATIVE", chosen)
    source = tmp_path / "one.cpp"
    source.write_text(ANSWER)
    assert native.library("one").answer() == 42
    built = files(tmp_path)
    assert len(built) == 1
    assert built[0].startswith(f"one-{chosen}-")
    with monkeypatch.context() as patch:
        patch.setattr(native.subprocess, "run", None)  # whoever compiles now fails
        native.opened.cache_clear()
        assert native.library("one").answer() == 42
    source.write_text(ANSWER.replace("42", "43"))
    native.opened.cache_clear()
    assert native.library("one").answer() == 43
    assert len(files(tmp_path)) == 2


def test_without_a_compiler_one_line_says_so_once_for_all_libraries(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(native.shutil, "which", lambda _: None)
    for name in ("one", "two"):
        (tmp_path / f"{name}.cpp").write_text(ANSWER)
        assert native.library(name) is None
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "there is no C++ compiler" in said[0]


@needs_compiler
def test_what_the_compiler_refuses_is_told_and_leaves_nothing_behind(tmp_path, capsys):
    (tmp_path / "wrong.cpp").write_text("int answer() { return unknown; }")
    assert native.library("wrong") is None
    said = capsys.readouterr().err
    assert "unknown" in said
    assert said.count("\n") == 1
    assert files(tmp_path) == []


def test_off_means_off_and_an_impossible_variant_is_refused(monkeypatch):
    monkeypatch.setenv("REGARD_NATIVE", "off")
    assert native.library("anything") is None
    monkeypatch.setenv("REGARD_NATIVE", "avx9000")
    with pytest.raises(InputError, match="use one of auto, off, .*plain"):
        native.library("anything")


@pytest.mark.parametrize("before", [None, "plain"])
def test_without_gives_back_what_was_chosen(monkeypatch, before):
    if before:
        monkeypatch.setenv("REGARD_NATIVE", before)
    with native.without():
        assert native.variant() is None
    assert os.environ.get("REGARD_NATIVE") == before
