"""One process at a time works in a run folder."""

import pytest

from regard import InputError
from regard.files import new_folder
from regard.training.lock import FolderLock


def test_the_loser_of_a_race_for_a_folder_leaves_the_lock_of_the_winner(tmp_path):
    """Two fresh runs with one name: the second loses its own folder, and with it only its lock."""
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


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{tmp_path} cannot be written"):
        FolderLock().acquire(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
