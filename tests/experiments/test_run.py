"""Recipes are trained and evaluated once, and the results keep their origin."""

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import results, run
from experiments.catalogue import Recipe
from regard.errors import InputError

ROOT = Path(__file__).parents[2]


def finished(run):
    """Make the folder of a finished run, with the files that the experiments read."""
    run.mkdir(parents=True)
    (run / "model.safetensors").write_bytes(b"weights")
    origin = {"date": "today", "commit": "c0ffee", "machine": "a GPU"}
    (run / "trained.json").write_text(json.dumps(origin))
    lines = [{"step": 1, "tokens_per_second": 7}, {"step": 2, "final": "last", "seconds": 3.0}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def options_for(folder, assignments=()):
    return Namespace(data=folder, runs=folder / "runs", where="", device="", out=folder,
                     assignments=list(assignments))  # fmt: skip


def test_a_run_from_a_different_machine_is_scored_here_and_keeps_its_origin(tmp_path, monkeypatch):
    finished(tmp_path / "runs/elsewhere")
    options = options_for(tmp_path)
    called = []
    monkeypatch.setattr(
        run, "run_regard", lambda words, _: called.append(words) or json.dumps({"loss": 1.5})
    )
    monkeypatch.setattr(results, "hardware", None)  # must not be called: there is no GPU here
    recipe = Recipe("elsewhere", ("a.txt",), (), {"test": ("b.txt",)}, device="cuda")
    run.run_recipe(recipe, options)
    stored = json.loads((tmp_path / "elsewhere.json").read_text())
    assert (stored["machine"], stored["commit"]) == ("a GPU", "c0ffee")
    assert (stored["steps"], stored["tokens_per_second"], stored["tests"]) == (2, 7, {"test": {"loss": 1.5}})  # fmt: skip
    assert [words[0] for words in called] == ["evaluate"]


def test_scores_of_the_same_weights_and_command_and_of_other_seeds_are_reused(
    tmp_path, monkeypatch
):
    for seed in (1, 2):
        finished(tmp_path / f"runs/twice-{seed}")
    options = options_for(tmp_path)
    called = []
    monkeypatch.setattr(
        run, "run_regard", lambda words, _: called.append(words) or json.dumps({"loss": 1.5})
    )
    recipe = Recipe("twice", ("a.txt",), (), {"test": ("b.txt",)}, seeds=(1, 2))
    for _ in range(2):
        run.run_recipe(recipe, options)
        assert len(called) == 2
    run.run_recipe(replace(recipe, tests={"test": ("c.txt",)}), options)
    assert len(called) == 4  # a different file needs a new score
    monkeypatch.setattr(run, "run_regard", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.run_recipe(recipe, options)
    assert set(json.loads((tmp_path / "twice.json").read_text())["seeds"]) == {"1", "2"}


def test_set_options_must_be_those_of_the_run_and_never_change_the_package(tmp_path):
    finished(tmp_path / "runs/plain")
    options = options_for(tmp_path, ["training.steps=9"])
    with pytest.raises(InputError, match="plain was trained with different --set"):
        run.run_recipe(Recipe("plain", ("a.txt",)), options)
    with pytest.raises(InputError, match="the shipped model of box-fill: add --box FOLDER"):
        run.main(["box-fill", "--data", str(tmp_path), "--set", "training.steps=9"])


def test_an_unknown_recipe_is_one_line_on_standard_error(tmp_path):
    command = [sys.executable, "-m", "experiments", "run", "trec", "nosuch"]
    completed = subprocess.run(
        [*command, "--data", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert completed.returncode == 2
    assert completed.stderr.startswith("experiments: unknown recipe 'nosuch'; known: multi30k, ")
    assert completed.stderr.count("\n") == 1
