"""The ingredients of the Multi30k recipe: one change each, trained in waves."""

import json
from argparse import Namespace

from experiments import ingredients
from experiments.ingredients import BASE, ROWS, configuration


def test_every_ingredient_differs_from_the_recipe_in_what_it_names():
    base = configuration((), 1, [], str)
    for name, options in ROWS.items():
        changed = configuration(options, 1, [], str)
        assert (changed == base) == (name == BASE)


def test_ingredients_are_trained_in_waves_and_scored_and_failures_are_named(tmp_path, monkeypatch):
    waves = []

    def train_all(wave, jobs, device, console):
        waves.append([one.name for one in wave])
        for one in wave:
            one.failed = "no room" if one.name == "post-norm-2" else ""

    monkeypatch.setattr(ingredients, "train_all", train_all)
    monkeypatch.setattr(ingredients, "final_scores", lambda run: bool(waves))
    monkeypatch.setattr(ingredients, "last_step", lambda run: 7)
    monkeypatch.setattr(ingredients, "at_step", lambda run, step: run / f"step-{step}")
    monkeypatch.setattr(
        ingredients, "score", lambda folder, files, device: {"bleu": float("step-7" in str(folder))}
    )
    options = Namespace(runs=tmp_path, assignments=[], jobs=10, minutes=9, device="cpu")
    saved = []
    ingredients.run_ingredients(options, str, lambda result: saved.append(json.dumps(result)))
    assert [len(wave) for wave in waves] == [10, 10, 1]
    result = json.loads(saved[-1])
    assert result["failed"] == {"post-norm-2": "no room"}
    assert set(result["rows"]["post-norm"]["seeds"]) == {"1", "3"}
    for name, bleu in ((BASE, 0.0), (ingredients.LAST, 1.0)):
        assert [one["val"]["bleu"] for one in result["rows"][name]["seeds"].values()] == [bleu] * 3
