"""Folders are written completely or not at all, for any destination and if the process is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard import InputError
from regard.files import cache_folder, new_folder, place_of, read_bounded


def fill(path, text, replace=False):
    with new_folder(path, replace=replace) as folder:
        (folder / "text").write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def dead():
    """The id of a process that has ended."""
    completed = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(completed.stdout)


def test_replaced_folder_is_the_new_one_without_temporary_files(tmp_path):
    fill(tmp_path / "it", "old")
    (tmp_path / "it" / "more").touch()
    fill(tmp_path / "it", "new", replace=True)
    assert names(tmp_path) == ["it"]
    assert names(tmp_path / "it") == ["text"]
    assert (tmp_path / "it" / "text").read_text() == "new"


def test_non_empty_folder_is_replaced_only_on_request(tmp_path):
    fill(tmp_path / "it", "old")
    with pytest.raises(InputError, match="was created by another process in the meantime"):
        fill(tmp_path / "it", "new")
    assert names(tmp_path) == ["it"]
    assert (tmp_path / "it" / "text").read_text() == "old"


def test_old_folder_is_restored_if_the_new_one_cannot_be_renamed(tmp_path, monkeypatch):
    fill(tmp_path / "it", "old")
    rename = os.replace

    def fails(source, target):
        if target == tmp_path / "it" and (source / "text").read_text() == "new":
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no"):
        fill(tmp_path / "it", "new", replace=True)
    assert names(tmp_path) == ["it"]
    assert (tmp_path / "it" / "text").read_text() == "old"


@pytest.mark.parametrize("renamed", [0, 1, 2])
def test_kill_during_replacement_loses_no_folder_and_the_next_write_cleans_up(tmp_path, renamed):
    fill(tmp_path / "it", "old")
    program = (
        "import os, sys; from pathlib import Path; from regard.files import new_folder\n"
        "rename, left = os.replace, [None] * int(sys.argv[2])\n"
        "def dying(*names):\n"
        "    if left: left.pop(); rename(*names)\n"
        "    if not left: os._exit(9)\n"
        "with new_folder(Path(sys.argv[1]), replace=True) as folder:\n"
        "    (folder / 'text').write_text('new'); os.replace = dying"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "it"), str(renamed)]
    assert subprocess.run(command, check=False).returncode == 9
    assert {path.read_text() for path in tmp_path.glob("*/text")} == {"old", "new"}
    fill(tmp_path / "it", "newest", replace=True)
    assert names(tmp_path) == ["it"]
    assert (tmp_path / "it" / "text").read_text() == "newest"


def test_only_temporary_folders_of_ended_processes_are_removed(tmp_path, dead):
    left = [f".tmp-{dead}-it", f".tmp-{dead}-old-it"]
    others = [f".tmp-{os.getppid()}-it", f".tmp-{dead}-other", f".tmp-{dead}-not-it", ".tmp-my-it"]
    for name in left + others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").touch()
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "it"):
        raise ZeroDivisionError
    assert names(tmp_path) == sorted(left + others)  # it may be the only copy
    fill(tmp_path / "it", "new")
    assert names(tmp_path) == sorted([*others, "it"])


# ---- destinations ------------------------------------------------------------------------------


@pytest.mark.parametrize("present", [True, False], ids=["empty", "dangling"])
def test_symbolic_link_is_followed_and_kept(tmp_path, present):
    target, link = tmp_path / "disk" / "models" / "it", tmp_path / "link"
    if present:
        target.mkdir(parents=True)
    link.symlink_to(target)
    for text in ("first", "second"):
        fill(link, text, replace=True)
        assert (target / "text").read_text() == text
        assert link.is_symlink()
        assert (names(tmp_path), names(target.parent)) == (["disk", "link"], ["it"])


def test_impossible_destination_is_one_line_and_no_file_is_written(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = names(tmp_path)
    for place, message in (
        (file, "it is not a folder"),
        (file / "a", f"{file} is not a folder"),
        (file / "a" / "b", f"{file} is not a folder"),
        (tmp_path / "loop", "it is not a folder"),
        (tmp_path / "here", "it is the current folder or a mount point; choose a folder inside it"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        for function in (place_of, lambda path: fill(path, "new", replace=True)):
            with pytest.raises(InputError) as error:
                function(place)
            assert str(error.value) == f"{place} cannot be written: {message}"
    assert names(tmp_path) == before
    assert file.read_text() == "mine"


def test_folder_of_another_user_is_named_in_the_error(tmp_path, monkeypatch):
    # root ignores permissions
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(
        InputError, match=f"/a/b cannot be written: no permission to write to {tmp_path}"
    ):
        place_of(tmp_path / "a" / "b")


@pytest.mark.parametrize("place", ["/dev/null", "/proc/nowhere/cache"])
def test_a_cache_that_cannot_be_created_is_one_line(place, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", place)
    with pytest.raises(InputError, match="set REGARD_CACHE to a writable folder"):
        cache_folder()


def test_a_regular_file_that_cannot_be_read_is_one_line():
    path = Path("/proc/self/mem")
    if not path.exists():
        pytest.skip("there is no /proc here")
    with pytest.raises(InputError, match="/proc/self/mem: cannot be read"):
        read_bounded(path, 10, "a configuration")
