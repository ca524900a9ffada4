"""Recipes that hold, and pages made of nothing but results."""

import json
import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from benchmarks.box import ASKED, put_in_box
from benchmarks.ingredients import BASE, ROWS, configuration
from benchmarks.recipes import RECIPES, RUNS, Recipe
from benchmarks.tables import tables

from benchmarks import cards, data, results, translation
from regard.config import Config, read_yaml
from regard.model.parameters import closed_form

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes"
BY_NAME = {recipe.name: recipe for recipe in RECIPES}
FOUND = results.kept(ROOT / "docs/results")


def built(recipe, start=None):
    values = read_yaml(FOLDER / f"{recipe.config or recipe.name}.yaml")
    return Config.build(values.pop("task"), None, values, start)


def start_of(recipe):
    return built(BY_NAME[recipe.start]).model if recipe.start else None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_is_a_configuration_whose_data_can_be_made(recipe):
    config = built(recipe, start_of(recipe))
    assert config.data.train == []  # files are for the command line
    assert set(data.needed(recipe.files, RUNS)) <= set(data.MAKERS)


def test_every_file_of_recipes_is_the_recipe_of_some_result():
    used = {recipe.config or recipe.name for recipe in RECIPES}
    assert {path.stem for path in FOLDER.glob("*.yaml")} == used


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_says_the_command_that_trains_it_and_explains_every_setting(path):
    text = path.read_text(encoding="utf-8")
    assert f"regard train --config recipes/{path.name}" in text
    assert "python -m benchmarks results run" in text
    settings = [line for line in text.splitlines() if line.startswith("  ")]
    assert [line for line in settings if " # " not in line] == []
    assert yaml.safe_load(text)["task"]


def test_the_cased_recipe_is_the_tokenised_one_but_for_how_bleu_cuts_words():
    plain, cased = built(BY_NAME["multi30k"]), built(BY_NAME["multi30k-cased"])
    assert replace(cased, data=replace(cased.data, bleu="none")) == plain


def test_the_translator_in_the_box_fits_into_it():
    parts = closed_form(built(BY_NAME["en-de"]).model).values()
    assert 9e6 < sum(part.parameters for part in parts) < 11e6


@pytest.mark.parametrize("name", [n for n in FOUND if n in BY_NAME])
def test_the_command_of_a_kept_result_is_the_recipes_own(name):
    recipe, kept = BY_NAME[name], FOUND[name]
    seed = recipe.seeds[0] if recipe.seeds else None
    assert kept["train"] == results.shown(recipe.train_command(seed))


def test_every_ingredient_differs_from_the_recipe_in_what_it_names():
    base = configuration((), 1, [], str)
    for name, options in ROWS.items():
        changed = configuration(options, 1, [], str)
        assert (changed == base) == (name == BASE)


def test_a_run_that_came_from_another_machine_is_scored_here_and_keeps_its_origin(
    tmp_path, monkeypatch
):
    run = tmp_path / "runs/elsewhere"
    run.mkdir(parents=True)
    (run / "model.safetensors").write_bytes(b"weights")
    (run / "trained.json").write_text('{"date": "today", "commit": "c0ffee", "machine": "a GPU"}')
    lines = [{"step": 1, "tokens_per_second": 7}, {"step": 2, "final": "last", "seconds": 3.0, "loss": 1.0}]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = Namespace(data=tmp_path, runs=tmp_path / "runs", where="", device="", out=tmp_path,
                        assignments=[])  # fmt: skip
    called = []
    monkeypatch.setattr(
        results, "call", lambda words, _: called.append(words) or json.dumps({"loss": 1.5})
    )
    monkeypatch.setattr(results, "hardware", None)  # there is no such device here to be asked
    recipe = Recipe("elsewhere", ("a.txt",), (), {"test": ("b.txt",)}, device="cuda")
    results.run_recipe(recipe, options)
    kept = json.loads((tmp_path / "elsewhere.json").read_text())
    assert (kept["machine"], kept["commit"]) == ("a GPU", "c0ffee")
    assert (kept["steps"], kept["tokens_per_second"], kept["tests"]) == (2, 7, {"test": {"loss": 1.5}})  # fmt: skip
    assert [words[0] for words in called] == ["evaluate"]


# ---- pages ------------------------------------------------------------------------------

SIGNED = {"bleu_signature": "tok:none", "chrf_signature": "nc:6"}


def scored(bleu, examples=1000):
    return {"bleu": bleu, "chrf": 60.0, "examples": examples, **SIGNED,
            "intervals": {"bleu": [bleu - 1, bleu + 1], "chrf": [59, 61]}}  # fmt: skip


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(f"| {start} |"))


def test_seeds_become_a_mean_and_a_deviation_and_times_are_of_those_that_ran_alone():
    one = {"steps": 8000, "tests": {"test2016": scored(41.0)}, "time": 90.0, "wall": 110.0}
    two = {"steps": 8000, "tests": {"test2016": scored(43.0)}, "time": 300.0}
    row = {"machine": "a machine", "seeds": {"1": one, "2": two}}
    cells = [
        c.strip()
        for c in line_of("\n".join(translation.captions({"multi30k": row})), "multi30k").split("|")
    ]
    assert cells[3:9] == ["42.00 ± 1.41", "60.00 ± 0.00", "2", "8,000", "90 s", "110 s"]


def ingredient_rows(**rows):
    told = {
        name: {"options": [f"x={name}"] * (name != BASE),
               "seeds": {str(i): {"val": {"bleu": 30.0}, "test2016": {"bleu": b}} for i, b in enumerate(some)}}
        for name, some in rows.items()
    }  # fmt: skip
    return {
        "ingredients": {
            "rows": told,
            "failed": {"x-2": "it burned"},
            "machine": "a machine",
            "set": ["training.steps=9"],
        }
    }


def test_an_ingredient_is_bold_where_seeds_say_that_it_matters_and_missing_rows_are_named():
    found = ingredient_rows(
        **{
            BASE: [41.0, 41.1, 41.2],
            "worse": [30.0, 30.2, 30.1],
            "same": [41.1, 41.0, 41.3],
            "late": [],
        }
    )
    text = "\n".join(translation.ingredients(found))
    assert "| **-11.00** | <0.001 | 3 |" in line_of(text, "worse")
    assert "**" not in line_of(text, "same")
    assert "Missing, for want of time: late." in text
    assert "Failed: x-2: it burned." in text
    assert "was trained with `training.steps=9`" in text


def test_one_seed_of_each_ingredient_is_shown_without_a_test():
    text = "\n".join(translation.ingredients(ingredient_rows(**{BASE: [41.0], "other": [40.0]})))
    assert "| 40.00 |  |  | 1 |" in line_of(text, "other")


def test_what_an_hour_covers_of_the_papers_tokens_is_computed_from_the_speed(tmp_path):
    row = {
        "machine": "a machine", "steps": 10_000, "time": 512.0, "weights": "last",
        "tests": {"newstest2014": scored(20.0)},
        "curve": [{"step": 5_000, "seconds": 300.0, "bleu": 15.0, "chrf": 40.0}],
    }  # fmt: skip
    text = "\n".join(translation.europarl({"europarl-base": row}))
    assert "An hour of that is 1.80 billion: 0.72 of the 2.5 billion" in text
    assert "| 5,000 | 5.0 | 128 | 15.00 | 40.00 |" in text
    pictures = translation.draw_curve({"europarl-base": row}, tmp_path)
    assert [path.suffix for path in pictures] == [".png", ".svg"]
    assert all(path.stat().st_size > 1000 for path in pictures)


def test_the_page_is_what_the_kept_results_make_it():
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert text == tables(FOUND)


# ---- the box ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def boxed_run(tmp_path_factory):
    """A generator of a few steps, put into a box of its own."""
    from regard.run import train

    folder = tmp_path_factory.mktemp("box")
    (folder / "plays.txt").write_text("ROMEO: The computer, First Citizen!\n" * 40)
    files = [str(folder / "plays.txt")]
    values = {
        "model": {"d_model": 16, "heads": 2, "d_ff": 16, "decoder_layers": 1},
        "data": {"train": files, "vocabulary": "character", "max_length": 32},
        "training": {"steps": 2, "batch_tokens": 128}, "decoding": {"max_length": 5},
    }  # fmt: skip
    train(Config.build("generate", None, values), folder / "run", device="cpu", quiet=True)
    recipe = Recipe("box-generate", ("plays.txt",), (), {"valid": ("plays.txt",)}, box="generate")
    calls = []

    def evaluate(words):
        calls.append(words)
        return {"loss": 2.0, "bits_per_byte": 3.0, "examples": 7}

    result = {"steps": 2, "time": 61.0, "weights": "last", "machine": "a machine",
              "train": "regard train --config recipes/box-generate.yaml",
              "tests": {"valid": {"loss": 1.5, "bits_per_byte": 2.5, "examples": 7}}}  # fmt: skip
    put_in_box(recipe, folder / "run", result, {}, folder / "box", evaluate)
    return recipe, folder, result, calls, evaluate


def test_a_packed_model_is_scored_as_the_full_one_and_described_with_both_figures(boxed_run):
    _, folder, result, calls, _ = boxed_run
    assert shlex.join(calls[0]).startswith(f"evaluate -m {folder}/box/generate --dtype float32")
    text = (folder / "box/generate/README.md").read_text(encoding="utf-8")
    assert "| valid (7) | 1.5 | 2 | 2.5 | 3 |" in text
    assert "regard evaluate -m box:generate --dtype float32 --data plays.txt" in text
    assert "python -m benchmarks results run box-generate --data $REGARD_DATA" in text
    assert "2 steps in 1:01 of training on a machine" in text
    assert str(folder) not in text
    assert Config.load(folder / "box/generate/config.yaml").data.train == ["plays.txt"]
    for some in result["packed"]["examples"].values():
        for asked, said in some:
            assert said.removeprefix(asked).strip() in text


def test_scores_of_the_same_packed_weights_are_not_made_again(boxed_run):
    recipe, folder, result, calls, evaluate = boxed_run
    before, count = result["packed"], len(calls)
    put_in_box(recipe, folder / "run", result, before, folder / "box", evaluate)
    assert len(calls) == count
    assert result["packed"] == before
    put_in_box(
        recipe, folder / "run", result, {**before, "model": "another"}, folder / "box", evaluate
    )
    assert len(calls) == count + 1


def test_every_model_in_the_box_has_a_card_with_the_terms_of_all_its_data():
    for recipe in RECIPES:
        if recipe.box:
            words = cards.CARDS[recipe.box]
            assert set(ASKED[recipe.box]) == {"Of the kind that it learned from", "Of another kind"}
            learned = {*recipe.files, *(BY_NAME[recipe.start].files if recipe.start else ())}
            for name in words.sets:
                files = str(sorted(learned))
                mixed = "data/en-de/" in files or "data/alike/" in files  # of several sets
                assert name in files or mixed, (recipe.name, name)
                assert all(cards.SETS[name])


@pytest.mark.parametrize("name", [n for n in FOUND if "packed" in FOUND[n]])
def test_a_card_is_what_the_kept_result_makes_it(name):
    recipe = BY_NAME[name]
    text = (ROOT / "src/regard/box" / recipe.box / "README.md").read_text(encoding="utf-8")
    assert text == cards.card(recipe, FOUND[name])


def test_tests_with_other_scores_have_a_table_of_their_own():
    alike, near = {"spearman": 0.7, "pearson": 0.6}, {"nearest": 0.9, "reciprocal_rank": 0.95}
    tests = {"sts": {**alike, "examples": 7}, "pairs": {**near, "examples": 8}}
    first, second = cards.table("embed", {"tests": tests, "packed": {"tests": tests}}).split("\n\n")
    assert first.startswith("| set | spearman, full | spearman, packed | pearson, full |")
    assert first.endswith("| sts (7) | 0.7 | 0.7 | 0.6 | 0.6 |")
    assert second.endswith("| pairs (8) | 0.9 | 0.9 | 0.95 | 0.95 |")


def test_signs_of_an_example_are_not_taken_for_those_of_a_table_or_of_html():
    lines = cards.examples("fill", {"Any": [["A <mask> | b", "one (0.5)"]]})
    assert lines[-2] == "| A &lt;mask> &#124; b | one (0.5) |"
