"""Invalid paths and full disks: one line of error and the correct exit code, before any work."""

import argparse
import errno
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import command
import regard
from command import error_of
from regard.cli.main import build_parser
from regard.cli.options import file_path
from regard.files import check_destination, write_file, write_result
from regard.text.vectors import VectorFile


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# ---- destinations -----------------------------------------------------------------------

LONG, NEARLY = "x" * 300, "x" * 250  # the second is too long with the prefix of temporary files


@pytest.fixture
def no_work(monkeypatch, tmp_path):
    """Make the first function of the work of every verb fail the test."""
    begins = [
        "regard.cli.predict.opened", "regard.cli.view.opened", "regard.box.pack.load",
        "regard.tasks.builtin.write_corpus", "regard.view.curves.save_picture",
        "regard.view.positions.save_picture", "regard.training.run.prepare", "regard.lab.path.measure.create_out",
        "regard.lab.complexity.measure.peak", "regard.lab.positions.measure.create_out", "regard.lab.styles.measure.plan",
        "regard.lab.common.training.read_data",
    ]  # fmt: skip
    for name in begins:  # first, so that no module imports a replacement
        importlib.import_module(name.rpartition(".")[0])
    for name in begins:
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("the work began"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis").touch()
    return tmp_path


WRITING = {
    "embed": ["embed", "a"],
    "pack": ["pack", "box:classify"],
    "demo": ["demo"],
    "train": ["train", "--task", "fill", "--train", "file"],
    "curves": ["view", "curves", "box:classify"],
    "positions": ["view", "positions"],
    "attention": ["view", "attention", "a"],
    "path": ["lab", "path", "--steps", "1"],
    "complexity": ["lab", "complexity"],
    "lab positions": ["lab", "positions"],
    "styles": ["lab", "styles"],
    "ablate": ["lab", "ablate"],
}
PICTURES = {"curves", "positions", "attention"}  # --out may be a folder


@pytest.mark.parametrize("verb", WRITING)
def test_unwritable_destination_is_refused_before_the_work(verb, no_work):
    bad = ["", "a\0b", "a\udcffb", LONG, f"new/{LONG}/x", "file/x", "/proc/x", "/proc/x/y"]
    bad += [] if verb in PICTURES else ["/", ".", "full", "/dev/null"]
    if verb not in PICTURES | {"embed"}:
        bad += ["file"]
    if verb not in {"path", "complexity", "lab positions", "styles", "ablate"}:
        bad += [NEARLY]  # the reports are files in this folder
    for out in bad:
        message = error_of(*WRITING[verb], "--out", out)
        assert "Errno" not in message
        assert "--out" in message or out[:30] in message or "UTF-8" in message, message
    assert sorted(path.name for path in no_work.iterdir()) == ["file", "full"]
    assert (no_work / "file").read_text() == "mine"


def test_picture_does_not_replace_a_folder_or_a_device(tmp_path):
    (tmp_path / "x.svg").mkdir()
    assert error_of("view", "positions", "--out", tmp_path / "x.png") == (
        f"{tmp_path}/x.svg cannot be written: it is a folder, not a file"
    )
    os.mkfifo(tmp_path / "pipe.png")
    assert "is not a regular file" in error_of("view", "positions", "--out", tmp_path / "pipe.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe.png", "x.svg"]


def test_checking_a_destination_creates_no_files(tmp_path):
    check_destination(tmp_path / "a" / "b" / "c.png")
    assert list(tmp_path.iterdir()) == []


def test_every_path_option_refuses_an_empty_path():
    def paths(parser):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for child in action.choices.values():
                    yield from paths(child)
            elif action.metavar in ("FILE", "DIR", "RUN", "MODEL", "FOLDER", "FILE.png", "FILE.npy",
                                    "FILE.yaml"):  # fmt: skip
                yield action

    every = list(paths(build_parser()))
    assert len(every) > 30
    for action in every:
        with pytest.raises(argparse.ArgumentTypeError, match="must not be empty"):
            action.type("")
    assert file_path("a/b") == Path("a/b")


# ---- full disks -------------------------------------------------------------------------


def test_full_disk_exits_with_1_and_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    for words, name in (
        (["view", "positions", "--out", tmp_path / "p"], tmp_path / "p.png"),
        (["embed", "a", "--out", tmp_path / "v.npy"], tmp_path / "v.npy"),
        (["pack", "box:classify", "--out", tmp_path / "small"], tmp_path / "small"),
    ):
        out, err, code = command.regard(*words)
        assert (out, code) == ("", 1), err
        assert len(err.splitlines()) == 1
        assert str(name) in err or "/.tmp-" in err, err
        assert "No space left on device" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_write_error_names_the_file_and_is_not_an_input_error(number, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    for write in (write_file, write_result):
        with pytest.raises(OSError, match=re.escape(os.strerror(number))) as error:
            write(tmp_path / "x", "content")
        assert error.value.filename == str(tmp_path / "x")
        assert error.value.errno == number
    vectors = VectorFile(tmp_path / "v.npy", 2)
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as error:
        vectors.close(whole=True)
    assert error.value.filename == str(tmp_path / "v.npy")
    assert list(tmp_path.iterdir()) == []


def test_full_disk_reported_as_input_error_exits_with_1(monkeypatch):
    def listing():
        try:
            full()
        except OSError:
            raise regard.InputError("index: cannot be written") from None

    monkeypatch.setattr("regard.cli.box.listing", listing)
    assert command.regard("info") == ("", "regard: index: cannot be written\n", 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["info", "--json"]])
def test_full_disk_of_standard_output_prints_one_line_and_exits_with_1(words):
    with open("/dev/full", "w") as device:
        done = subprocess.run(
            [sys.executable, "-m", "regard", *words], stdout=device, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "regard: standard output: No space left on device\n"


# ---- reading ----------------------------------------------------------------------------


def test_every_verb_prints_one_line_for_an_invalid_input_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("binary").write_bytes(bytes(range(128, 256)) * 20)
    Path("text").write_text("A dog.\n")
    Path("folder").mkdir()
    for name in ("missing", "folder", "empty", "binary", LONG, "text/below", "/dev/null"):
        for words in (
            ["info", name], ["pack", name, "--out", "out"], ["classify", "-m", name, "a"],
            ["evaluate", "-m", "box:classify", "--data", name], ["evaluate", "--data", name, name],
            ["evaluate", "--data", "text", "text", "--against", name],
            ["search", "a", "--documents", name], ["view", "curves", name],
            ["view", "positions", "-m", name], ["view", "attention", "a", "-m", name],
            ["train", "--task", "classify", "--train", name, "--out", "out"],
            ["train", "--task", "fill", "--train", "text", "--from", name, "--out", "out"],
            ["train", "--config", name, "--out", "out"],
            ["lab", "styles", "--train", name, name, "--valid", name, name, "--out", "out"],
        ):  # fmt: skip
            assert name[:30] in error_of(*words), words
    assert not Path("out").exists()


def test_debug_works_before_and_after_the_verb():
    for words in (["--debug", "info", "nowhere"], ["info", "--debug", "nowhere"]):
        _, err, code = command.regard(*words)
        assert code == 2
        assert "Traceback" in err
        assert (
            err.splitlines()[-1]
            == "regard: nowhere: no such folder (expected a model folder or box:NAME)"
        )
