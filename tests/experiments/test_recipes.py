"""Recipes are valid and explained, and the stored results were made with them."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from experiments import data
from experiments.catalogue import RECIPES, RUNS
from experiments.results import command_line, load_results
from regard.config.parameters import closed_form
from regard.config.sections import read_yaml
from regard.tasks.configuration import make_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments/recipes"
BY_NAME = {recipe.name: recipe for recipe in RECIPES}
RESULTS = load_results(ROOT / "docs/results")


def built(recipe, start=None):
    values = read_yaml(FOLDER / f"{recipe.config or recipe.name}.yaml")
    return make_config(values.pop("task"), None, values, start)


def start_of(recipe):
    return built(BY_NAME[recipe.start]) if recipe.start else None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipe_is_a_valid_configuration_whose_data_can_be_generated(recipe):
    config = built(recipe, start_of(recipe))
    assert config.data.train == []  # the command line sets the files
    assert set(data.needed(recipe.files, RUNS)) <= set(data.MAKERS)


def test_every_file_in_recipes_is_used():
    used = {recipe.config or recipe.name for recipe in RECIPES}
    assert {path.stem for path in FOLDER.glob("*.yaml")} == used


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_names_its_command_and_explains_every_setting(path):
    text = path.read_text(encoding="utf-8")
    assert f"regard train --config experiments/recipes/{path.name}" in text
    assert "python -m experiments run" in text
    settings = [line for line in text.splitlines() if line.startswith("  ")]
    assert [line for line in settings if " # " not in line] == []
    assert yaml.safe_load(text)["task"]


def test_the_cased_recipe_equals_the_tokenised_one_except_for_the_bleu_tokenizer():
    plain, cased = built(BY_NAME["multi30k"]), built(BY_NAME["multi30k-cased"])
    assert replace(cased, data=replace(cased.data, bleu="none")) == plain


def test_the_shipped_translator_has_about_ten_million_parameters():
    parts = closed_form(built(BY_NAME["en-de"]).model).values()
    assert 9e6 < sum(part.parameters for part in parts) < 11e6


@pytest.mark.parametrize("name", [n for n in RESULTS if n in BY_NAME])
def test_command_of_a_stored_result_equals_that_of_the_recipe(name):
    recipe, stored = BY_NAME[name], RESULTS[name]
    seed = recipe.seeds[0] if recipe.seeds else None
    assert stored["train"] == command_line(recipe.train_command(seed))
