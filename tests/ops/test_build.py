"""Native code is built on first use for this processor, and is optional."""

import os
import runpy
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from regard import InputError
from regard.ops.cpu import build as native
from threads import at_once

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, native.COMPILERS)), reason="needs a C++ compiler"
)
ANSWER = 'extern "C" long answer() { return 42; }'


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    """An empty cache, and a source folder for this test."""
    for known in (native.opened, native.report_missing, native.left_for_later):
        known.cache_clear()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.delenv("REGARD_NATIVE", raising=False)
    yield
    for known in (native.opened, native.report_missing, native.left_for_later):
        known.cache_clear()


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


@needs_compiler
@pytest.mark.parametrize("chosen", native.possible())
def test_library_is_rebuilt_only_when_its_source_changes(tmp_path, monkeypatch, chosen):
    monkeypatch.setenv("REGARD_NATIVE", chosen)
    source = tmp_path / "one.cpp"
    source.write_text(ANSWER)
    assert native.library("one").answer() == 42
    built = files(tmp_path)
    assert len(built) == 1
    assert built[0].startswith(f"one-{chosen}-")
    with monkeypatch.context() as patch:
        patch.setattr(native.subprocess, "run", None)  # any further compilation fails
        native.opened.cache_clear()
        assert native.library("one").answer() == 42
    source.write_text(ANSWER.replace("42", "43"))
    native.opened.cache_clear()
    assert native.library("one").answer() == 43
    assert len(files(tmp_path)) == 2


@needs_compiler
def test_flags_from_the_environment_reach_the_compiler_and_the_name(tmp_path, monkeypatch):
    (tmp_path / "one.cpp").write_text(ANSWER.replace("42", "VALUE"))
    for value in (7, 8):
        monkeypatch.setenv("REGARD_NATIVE_FLAGS", f"-DVALUE={value} -O1")
        native.opened.cache_clear()
        assert native.library("one").answer() == value
    assert len(files(tmp_path)) == 2


@needs_compiler
def test_concurrent_threads_load_a_library_once(tmp_path, monkeypatch):
    (tmp_path / "one.cpp").write_text(ANSWER)
    built, calls = native.built, []

    def slow(*arguments):
        calls.append(arguments)
        time.sleep(0.1)  # so that all threads have started before the first one ends
        return built(*arguments)

    monkeypatch.setattr(native, "built", slow)
    libraries = at_once([partial(native.library, "one")] * 6)
    assert len(calls) == 1
    assert {id(library) for library in libraries} == {id(libraries[0])}


def test_missing_compiler_is_reported_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(native.shutil, "which", lambda _: None)
    for name in ("one", "two"):
        (tmp_path / f"{name}.cpp").write_text(ANSWER)
        assert native.library(name) is None
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 1
    assert "there is no C++ compiler" in output[0]


@needs_compiler
def test_compiler_error_is_reported_and_leaves_no_files(tmp_path, capsys):
    (tmp_path / "wrong.cpp").write_text("int answer() { return unknown; }")
    assert native.library("wrong") is None
    output = capsys.readouterr().err
    assert "unknown" in output
    assert output.count("\n") == 1
    assert files(tmp_path) == []


def test_off_disables_native_code_and_unsupported_variant_is_refused(monkeypatch):
    monkeypatch.setenv("REGARD_NATIVE", "off")
    assert native.library("anything") is None
    monkeypatch.setenv("REGARD_NATIVE", "avx9000")
    with pytest.raises(InputError, match="use one of auto, off, .*plain"):
        native.library("anything")


@pytest.mark.parametrize("before", [None, "plain"])
def test_without_restores_the_setting(monkeypatch, before):
    if before:
        monkeypatch.setenv("REGARD_NATIVE", before)
    with native.without():
        assert native.variant() is None
    assert os.environ.get("REGARD_NATIVE") == before


def test_without_and_later_do_not_affect_other_threads(tmp_path, started):
    (tmp_path / "one.cpp").write_text(ANSWER)
    with ThreadPoolExecutor(1) as elsewhere, native.later(True), native.without():
        assert native.variant() is None
        assert elsewhere.submit(native.variant).result() == native.possible()[0]
        if any(map(shutil.which, native.COMPILERS)):
            assert elsewhere.submit(native.library, "one").result().answer() == 42
    assert started == []


@pytest.fixture
def started(monkeypatch):
    """Background build commands are recorded instead of run."""
    commands, real = [], subprocess.Popen

    def popen(command, **options):
        if "regard.ops.cpu" in command:
            return commands.append((command, options))
        return real(command, **options)

    monkeypatch.setattr(native.subprocess, "Popen", popen)
    return commands


@needs_compiler
def test_later_starts_one_background_build(tmp_path, monkeypatch, started):
    threads = [5]
    (tmp_path / "one.cpp").write_text(ANSWER)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    with native.later(True), monkeypatch.context() as patch:
        patch.setattr(native.subprocess, "run", None)  # any further compilation fails
        assert native.library("one") is None
        assert threads == [5, 1]
        assert native.library("one") is None
        assert started == []  # only one background build at a time
    assert threads == [5, 1, 5]
    ((command, options),) = started
    assert command[1:4] == ["-P", "-m", "regard.ops.cpu"]
    assert command[4:] == ["one", native.variant()]
    assert options["start_new_session"]
    assert native.library("one").answer() == 42  # outside of later(): built now


@needs_compiler
def test_later_uses_existing_library(tmp_path, started):
    (tmp_path / "one.cpp").write_text(ANSWER)
    native.library("one")
    native.opened.cache_clear()
    with native.later(True):
        assert native.library("one").answer() == 42
    assert started == []


def test_later_reports_missing_compiler(tmp_path, monkeypatch, started, capsys):
    monkeypatch.setattr(native.shutil, "which", lambda _: None)
    (tmp_path / "one.cpp").write_text(ANSWER)
    with native.later(True):
        assert native.library("one") is None
    assert "there is no C++ compiler" in capsys.readouterr().err
    assert started == []


@needs_compiler
def test_failed_background_build_is_repeated_and_reported(tmp_path, monkeypatch, started, capsys):
    (tmp_path / "wrong.cpp").write_text("int answer() { return unknown; }")
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(sys, "argv", ["regard.ops.cpu", "wrong", native.variant()])
    runpy.run_module("regard.ops.cpu", run_name="__main__")
    assert capsys.readouterr().err == ""
    with native.later(True):
        assert native.library("wrong") is None
    assert "unknown" in capsys.readouterr().err
    assert started == []


@needs_compiler
def test_concurrent_processes_build_a_library_once(tmp_path):
    """Three processes need the same library at once; a fourth one was killed while it built."""
    (tmp_path / "one.cpp").write_text(ANSWER)
    (tmp_path / "cache/native").mkdir(parents=True)
    dead_pid = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    (tmp_path / f"cache/native/.tmp-{dead_pid}-one-plain.so").touch()
    code = (
        "import sys, pathlib, subprocess; from regard.ops.cpu import build as native\n"
        "native.FOLDER, run = pathlib.Path(sys.argv[1]), subprocess.run\n"
        "def counted(*words, **options): print('built'); return run(*words, **options)\n"
        "subprocess.run = counted\n"
        "native.built('one', 'plain')"
    )
    waiting = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert "".join(process.communicate()[0] for process in waiting) == "built\n"
    assert [process.returncode for process in waiting] == [0, 0, 0]
    (left,) = files(tmp_path)
    assert left.startswith("one-plain-")
