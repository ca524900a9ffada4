"""The messages about a source that is not a model of another toolkit."""

import os
import struct
from pathlib import Path

import pytest

from regard.errors import InputError
from regard.interop.formats import recognise
from regard.training.shipped import no_model


def test_a_file_of_a_hugging_face_folder_names_the_folder(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(InputError, match=f"pass the model folder instead: {tmp_path}$"):
            recognise(tmp_path / name)
    assert recognise(tmp_path) == ("hf", tmp_path)


def test_a_model_of_regard_is_not_imported(tmp_path: Path) -> None:
    for name in ("config.yaml", "model.safetensors"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="is already a regard model; pass it with -m"):
        recognise(tmp_path)


def test_the_name_of_a_gguf_file_is_not_enough(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    for content in (b"", b"GGU", b"text"):
        file.write_bytes(content)
        with pytest.raises(InputError, match="not a GGUF file"):
            recognise(file)


def test_a_folder_with_one_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("a model")
    (tmp_path / "a.gguf").write_bytes(b"GGUF 3")
    assert recognise(tmp_path) == ("gguf", tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"GGUF 3")
    with pytest.raises(InputError, match=r"2 GGUF models: choose one of a\.gguf, b\.gguf"):
        recognise(tmp_path)


def test_a_folder_with_marian_files_is_left_to_its_reader(tmp_path: Path) -> None:
    """The configuration of an engine can name the model."""
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(struct.pack("<Q", 1))
    assert recognise(tmp_path) == ("marian", tmp_path)
    assert recognise(tmp_path / "a.bin") == ("marian", tmp_path / "a.bin")


def test_a_pipe_or_a_device_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(InputError, match="a pipe or a device"):
            recognise(path)
    with pytest.raises(InputError, match="not a model of a known format"):
        recognise(tmp_path)


def test_a_model_of_another_toolkit_must_be_imported_first(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert f"regard import {file} --out MODEL" in str(no_model(file))
    assert "regard import" not in str(no_model(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert f"regard import {tmp_path} --out MODEL" in str(no_model(tmp_path))
