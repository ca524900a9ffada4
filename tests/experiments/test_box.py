"""Shipping a model: it is scored and described, and replaces the old one only at the end."""

import shlex

import pytest

from experiments.box import ship
from experiments.catalogue import Recipe
from regard.config.sections import Config
from regard.errors import InputError
from regard.tasks.configuration import make_config


@pytest.fixture(scope="module")
def boxed_run(tmp_path_factory):
    """A generator that was trained for a few steps and shipped to a temporary box."""
    from regard.tasks.train import train_config as train

    folder = tmp_path_factory.mktemp("box")
    (folder / "plays.txt").write_text("ROMEO: The computer, First Citizen!\n" * 40)
    files = [str(folder / "plays.txt")]
    values = {
        "model": {"d_model": 16, "heads": 2, "d_ff": 16, "decoder_layers": 1},
        "data": {"train": files, "vocabulary": "character", "max_length": 32},
        "training": {"steps": 2, "batch_tokens": 128}, "decoding": {"max_length": 5},
    }  # fmt: skip
    train(make_config("generate", None, values), folder / "run", device="cpu", quiet=True)
    recipe = Recipe("box-generate", ("plays.txt",), (), {"valid": ("plays.txt",)}, box="generate")
    calls = []

    def evaluate(words):
        calls.append(words)
        return {"loss": 2.0, "bits_per_byte": 3.0, "examples": 7}

    result = {"steps": 2, "time": 61.0, "weights": "last", "machine": "a machine",
              "train": "regard train --config experiments/recipes/box-generate.yaml",
              "tests": {"valid": {"loss": 1.5, "bits_per_byte": 2.5, "examples": 7}}}  # fmt: skip
    ship(recipe, folder / "run", result, {}, folder / "box", evaluate)
    return recipe, folder, result, calls, evaluate


def test_a_packed_model_is_scored_like_the_full_one_and_its_card_has_both_scores(boxed_run):
    _, folder, result, calls, _ = boxed_run
    assert shlex.join(calls[0]).startswith(f"evaluate -m {folder}/run-packed --dtype float32")
    text = (folder / "box/generate/README.md").read_text(encoding="utf-8")
    assert "| valid (7) | 1.5 | 2 | 2.5 | 3 |" in text
    assert "regard evaluate -m box:generate --dtype float32 --data plays.txt" in text
    assert "python -m experiments run box-generate --data $REGARD_DATA" in text
    assert "2 steps in 1:01 on a machine" in text
    assert str(folder) not in text
    assert Config.load(folder / "box/generate/config.yaml").data.train == ["plays.txt"]
    for pairs in result["packed"]["examples"].values():
        for source, output in pairs:
            assert output.removeprefix(source).strip() in text


def test_scores_of_the_same_packed_weights_are_reused(boxed_run):
    recipe, folder, result, calls, evaluate = boxed_run
    before, count = result["packed"], len(calls)
    ship(recipe, folder / "run", result, before, folder / "box", evaluate)
    assert len(calls) == count
    assert result["packed"] == before
    for other in ({"model": "another"}, {"evaluate": {"valid": "of another file"}}):
        ship(recipe, folder / "run", result, {**before, **other}, folder / "box", evaluate)
    assert len(calls) == count + 2


def test_a_model_that_could_not_be_scored_is_not_shipped(boxed_run):
    recipe, folder, result, *_ = boxed_run

    def fails(words):
        raise InputError("no such file")

    with pytest.raises(InputError):
        ship(recipe, folder / "run", dict(result), {}, folder / "other", fails)
    assert not (folder / "other").exists()
