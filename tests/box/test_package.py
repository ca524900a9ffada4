"""The files of the package: complete, small, and without paths of the machine that built them.

Most tests use the real models in src/regard/box.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.box.pack import portable
from regard.training.shipped import FOLDER, boxed, contents

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/regard"
MOST = 21_000_000  # bytes of the complete package
FILES = {"README.md", "config.yaml", "metrics.jsonl", "model.safetensors", "tokenizer.json"}
MORE = {"classify": {"labels.json"}}
BOX = ["classify", "embed", "fill", "generate", "translate"]
each_model = pytest.mark.parametrize("task", BOX)


def shipped():
    """The files of the package."""
    passing = re.compile(r"__pycache__|\.tmp-")
    files = [path for path in PACKAGE.rglob("*") if path.is_file()]
    return [path for path in files if not passing.search(str(path.relative_to(PACKAGE)))]


def test_box_has_a_model_for_every_task_except_answer():
    assert contents() == sorted(BOX)


def test_total_size_of_the_package_is_small():
    assert sum(path.stat().st_size for path in shipped()) < MOST


@each_model
def test_folder_in_the_box_has_exactly_the_files_of_a_model(task):
    assert {path.name for path in (FOLDER / task).iterdir()} == FILES | MORE.get(task, set())
    assert regard.Config.load(FOLDER / task / "config.yaml").task == task


@each_model
def test_weights_in_the_box_are_packed_and_packing_them_again_changes_no_value(task, tmp_path):
    """Only settings that were added to the configuration later appear in config.yaml, with their
    defaults, and change its checksum in the weights."""
    weights = load_file(FOLDER / task / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values() if tensor.dim() == 2} == {torch.int8}
    regard.pack(boxed(task), tmp_path / "again")
    again = load_file(tmp_path / "again/model.safetensors")
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    folders = FOLDER / task, tmp_path / "again"
    first, second = (regard.Config.load(folder / "config.yaml") for folder in folders)
    assert first == second
    for path in (tmp_path / "again").iterdir():
        if path.name not in ("config.yaml", "model.safetensors"):
            assert path.read_bytes() == (FOLDER / task / path.name).read_bytes(), path.name


@each_model
def test_no_file_names_a_folder_of_the_build_machine(task):
    for path in (FOLDER / task).iterdir():
        if path.suffix in (".md", ".yaml"):
            text = path.read_text(encoding="utf-8")
            assert portable(text) == text, path
        if path.suffix != ".safetensors":
            assert str(ROOT) not in path.read_text(encoding="utf-8"), path


EXPECTED = {
    "translate": ("How much does this bicycle cost?", r"[Ff]ahrrad|\bRad\b"),
    "classify": ("A wonderful, moving film.", r"^[^\t\n]+\t[01]\.\d+\n$"),
    "fill": ("This is one of the <mask> movies I have ever seen.", r"\t.*\b(best|worst)\b"),
    "generate": ("ROMEO:", r"ROMEO:.+"),
    "embed": ("A man rides a bicycle.", r"^-?\d\.\d+( -?\d\.\d+)+\n$"),
}


@each_model
def test_every_model_in_the_box_gives_output(task, call):
    text, expected = EXPECTED[task]
    code, out, err = call(task, text, "--device", "cpu")
    assert code == 0, err
    assert re.search(expected, out, re.DOTALL), out


def test_classifier_distinguishes_praise_from_criticism():
    good, bad = regard.load("box:classify", "cpu").classify(
        ["A wonderful, moving film.", "A dull and badly acted waste of time."]
    )
    assert good.label != bad.label


def test_search_ranks_the_matching_document_first(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    lines = ["A man is playing a guitar.", "The stock market fell today.", "A cat is sleeping."]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    model = regard.load("box:embed", "cpu")
    for query, expected_line in [("Someone plays an instrument.", 1), ("Eine Katze schläft.", 3)]:
        hit, *_ = model.search(query, tmp_path / "lines.txt")
        assert hit.line == expected_line


def test_the_wheel_has_every_file_of_the_package(tmp_path):
    """An installation has the same files as the source tree that the other tests use."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tree / name).write_bytes((ROOT / name).read_bytes())
    for path in shipped():
        place = tree / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path)
    box = tree / "src/regard/box/answer"  # one more model
    box.mkdir()
    for name in FILES:
        (box / name).touch()
    (tree / "src/regard/box/__pycache__").mkdir()  # as Python writes it
    (tree / "src/regard/box/__pycache__/pack.cpython-311.pyc").touch()
    (tree / "src/regard/box/.tmp-1-fill").mkdir()  # left by a killed process
    (tree / "src/regard/box/.tmp-1-fill/config.yaml").touch()
    make = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    completed = subprocess.run(
        [sys.executable, "-c", make], cwd=tree, capture_output=True, text=True, check=True
    )
    wheel = tree / completed.stdout.splitlines()[-1]
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if name.startswith("regard/")}
    expected_line = {path.relative_to(ROOT / "src").as_posix() for path in shipped()}
    assert inside == expected_line | {f"regard/box/answer/{name}" for name in FILES}
    assert wheel.stat().st_size < MOST
