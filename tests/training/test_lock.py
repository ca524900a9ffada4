"""The lock of a run folder: one process at a time may use the folder."""

import pytest

from regard import InputError
from regard.files import new_folder
from regard.training.lock import FolderLock


def test_process_that_loses_a_race_keeps_the_lock_of_the_winner(tmp_path):
    """Two new runs have the same name: the second removes only its own folder and lock."""
    winner, loser, out = FolderLock(), FolderLock(), tmp_path / "run"

    def lose():
        with new_folder(out) as folder:
            loser.acquire(folder)
            out.mkdir()
            (out / "text").write_text("the winner's")
            winner.acquire(out)

    with pytest.raises(InputError, match="was created by another process"):
        lose()
    loser.release(out)
    with pytest.raises(InputError, match="is in use by another process"):
        FolderLock().acquire(out)
    winner.release(out)
    assert [path.name for path in out.iterdir()] == ["text"]


def test_unwritable_lock_is_an_input_error(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{tmp_path} cannot be written"):
        FolderLock().acquire(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
