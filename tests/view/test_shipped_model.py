"""Views of a shipped model write into the current folder, never into the package."""

from pathlib import Path

import pytest

import command
from regard.training.shipped import folder_of


@pytest.mark.parametrize("view", ["positions", "attention"])
def test_picture_of_a_shipped_model_is_written_here(view, tmp_path, monkeypatch):
    folder = folder_of("box:generate")
    before = sorted(path.name for path in folder.iterdir())
    monkeypatch.chdir(tmp_path)
    texts = ["ROMEO:"] if view == "attention" else []
    assert command.run("view", view, "-m", "box:generate", *texts) == 0
    assert sorted(path.name for path in Path().iterdir()) == [f"{view}.png", f"{view}.svg"]
    assert sorted(path.name for path in folder.iterdir()) == before
