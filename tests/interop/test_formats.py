"""The messages about a source that is not a model of another toolkit."""

from pathlib import Path

import pytest

from regard.errors import InputError
from regard.interop.formats import recognise
from regard.training.shipped import no_model


def test_a_file_of_a_hugging_face_folder_names_the_folder(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(InputError, match=f"name the folder of the model: {tmp_path}$"):
            recognise(tmp_path / name)
    assert recognise(tmp_path) == "hf"


def test_a_model_of_regard_is_not_imported(tmp_path: Path) -> None:
    for name in ("config.yaml", "model.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="is a model of regard already: use it with -m"):
        recognise(tmp_path)


def test_the_name_of_a_gguf_file_is_not_enough(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    for content in (b"", b"GGU", b"text"):
        file.write_bytes(content)
        with pytest.raises(InputError, match="not a GGUF file"):
            recognise(file)


def test_a_model_of_another_toolkit_must_be_imported_first(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert f"regard import {file} --out MODEL" in str(no_model(file))
    assert "regard import" not in str(no_model(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert f"regard import {tmp_path} --out MODEL" in str(no_model(tmp_path))
