"""Model cards: generated from stored results, with the licence terms of all data."""

import re
from pathlib import Path

import pytest

from experiments import cards
from experiments.box import EXAMPLES
from experiments.catalogue import RECIPES
from experiments.results import load_results
from regard.config.sections import Config

ROOT = Path(__file__).parents[2]
BY_NAME = {recipe.name: recipe for recipe in RECIPES}
RESULTS = load_results(ROOT / "docs/results")
MIXED = {name: {"tatoeba", "multi30k", "europarl"} for name in ("en-de", "alike")}


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r.box], ids=lambda recipe: recipe.name)
def test_a_card_has_the_terms_of_all_training_data(recipe):
    files = [*recipe.train, *(BY_NAME[recipe.start].train if recipe.start else ())]
    names = {Path(file).parent.name for file in files}
    learned = {source for name in names for source in MIXED.get(name, {name})}
    card = cards.CARDS[recipe.box]
    assert set(card.sets) == learned
    text = cards.card(recipe, RESULTS[recipe.name])
    assert all(part in text for name in card.sets for part in cards.data_sets()[name].values())
    assert list(EXAMPLES[recipe.box]) == list(RESULTS[recipe.name]["packed"]["examples"])


@pytest.mark.parametrize("name", [n for n in RESULTS if "packed" in RESULTS[n]])
def test_card_equals_the_output_of_its_generator(name):
    recipe = BY_NAME[name]
    text = (ROOT / "src/regard/box" / recipe.box / "README.md").read_text(encoding="utf-8")
    assert text == cards.card(recipe, RESULTS[name])


def test_tests_with_different_metrics_have_separate_tables():
    alike, near = {"spearman": 0.7, "pearson": 0.6}, {"nearest": 0.9, "reciprocal_rank": 0.95}
    tests = {"sts": {**alike, "examples": 7}, "pairs": {**near, "examples": 8}}
    first, second = cards.table("embed", {"tests": tests, "packed": {"tests": tests}}).split("\n\n")
    assert first.startswith("| set | spearman, full | spearman, packed | pearson, full |")
    assert first.endswith("| sts (7) | 0.7 | 0.7 | 0.6 | 0.6 |")
    assert second.endswith("| pairs (8) | 0.9 | 0.9 | 0.95 | 0.95 |")


def test_special_characters_in_an_example_are_escaped():
    parts = cards.examples("fill", {"Any": [["A <mask> | b", "one (0.5)"]]})
    assert parts[-1].endswith("\n| A &lt;mask> &#124; b | one (0.5) |")


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r.box], ids=lambda recipe: recipe.name)
def test_a_card_states_the_longest_input_of_its_model(recipe):
    folder = ROOT / "src/regard/box" / recipe.box
    text = (folder / "README.md").read_text(encoding="utf-8")
    longest = Config.load(folder / "config.yaml").longest_input
    stated = re.findall(r"(\d+) tokens|windows of (\d+)", text)
    assert {int(tokens or window) for tokens, window in stated} == {longest}
