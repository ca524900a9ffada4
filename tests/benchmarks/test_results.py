"""Recipes that hold, and pages made of nothing but results."""

import json
import shlex
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from benchmarks.box import ASKED, put_in_box
from benchmarks.ingredients import BASE, ROWS, configuration
from benchmarks.recipes import RECIPES, RUNS, Recipe

from benchmarks import cards, data, ingredients, results, translation
from regard.config.parameters import closed_form
from regard.config.sections import Config, read_yaml
from regard.errors import InputError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "recipes"
BY_NAME = {recipe.name: recipe for recipe in RECIPES}
FOUND = results.kept(ROOT / "docs/results")


def built(recipe, start=None):
    values = read_yaml(FOLDER / f"{recipe.config or recipe.name}.yaml")
    return Config.build(values.pop("task"), None, values, start)


def start_of(recipe):
    return built(BY_NAME[recipe.start]) if recipe.start else None


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


def finished(run, **came):
    """A run's folder as far as results look at it."""
    run.mkdir(parents=True)
    (run / "model.safetensors").write_bytes(b"weights")
    came = {"date": "today", "commit": "c0ffee", "machine": "a GPU", **came}
    (run / "trained.json").write_text(json.dumps(came))
    lines = [{"step": 1, "tokens_per_second": 7}, {"step": 2, "final": "last", "seconds": 3.0}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_scores_of_the_same_weights_by_the_same_command_are_kept_and_those_of_other_seeds(
    tmp_path, monkeypatch
):
    for seed in (1, 2):
        finished(tmp_path / f"runs/twice-{seed}")
    options = Namespace(data=tmp_path, runs=tmp_path / "runs", where="", device="", out=tmp_path,
                        assignments=[])  # fmt: skip
    called = []
    monkeypatch.setattr(
        results, "call", lambda words, _: called.append(words) or json.dumps({"loss": 1.5})
    )
    recipe = Recipe("twice", ("a.txt",), (), {"test": ("b.txt",)}, seeds=(1, 2))
    for _ in range(2):
        results.run_recipe(recipe, options)
        assert len(called) == 2
    results.run_recipe(replace(recipe, tests={"test": ("c.txt",)}), options)
    assert len(called) == 4  # another file, another score
    monkeypatch.setattr(results, "call", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        results.run_recipe(recipe, options)
    assert set(json.loads((tmp_path / "twice.json").read_text())["seeds"]) == {"1", "2"}


def test_settings_of_the_command_line_are_those_of_the_run_and_never_the_packages(tmp_path):
    finished(tmp_path / "runs/plain")
    options = Namespace(data=tmp_path, runs=tmp_path / "runs", where="", device="", out=tmp_path,
                        assignments=["training.steps=9"])  # fmt: skip
    with pytest.raises(InputError, match="plain was trained with other --set"):
        results.run_recipe(Recipe("plain", ("a.txt",)), options)
    with pytest.raises(InputError, match="box-fill in the package: give --box FOLDER"):
        results.main(["run", "box-fill", "--data", str(tmp_path), "--set", "training.steps=9"])


def test_every_name_must_be_known_and_a_mistake_is_one_line(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "results", "run", "trec", "nosuch"]
    done = subprocess.run(
        [*command, "--data", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("benchmarks: no recipe nosuch: multi30k, ")
    assert done.stderr.count("\n") == 1


def test_ingredients_are_trained_in_waves_scored_and_those_that_failed_are_named(
    tmp_path, monkeypatch
):
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
    kept = []
    ingredients.run_ingredients(options, str, lambda found: kept.append(json.dumps(found)))
    assert [len(wave) for wave in waves] == [10, 10, 1]
    found = json.loads(kept[-1])
    assert found["failed"] == {"post-norm-2": "no room"}
    assert set(found["rows"]["post-norm"]["seeds"]) == {"1", "3"}
    for name, bleu in ((BASE, 0.0), (ingredients.LAST, 1.0)):
        assert [one["val"]["bleu"] for one in found["rows"][name]["seeds"].values()] == [bleu] * 3


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


# ---- the box ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def boxed_run(tmp_path_factory):
    """A generator of a few steps, put into a box of its own."""
    from regard.training.run import train

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
    assert shlex.join(calls[0]).startswith(f"evaluate -m {folder}/run-packed --dtype float32")
    text = (folder / "box/generate/README.md").read_text(encoding="utf-8")
    assert "| valid (7) | 1.5 | 2 | 2.5 | 3 |" in text
    assert "regard evaluate -m box:generate --dtype float32 --data plays.txt" in text
    assert "python -m benchmarks results run box-generate --data $REGARD_DATA" in text
    assert "2 steps in 1:01 on a machine" in text
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
    for other in ({"model": "another"}, {"evaluate": {"valid": "of another file"}}):
        put_in_box(recipe, folder / "run", result, {**before, **other}, folder / "box", evaluate)
    assert len(calls) == count + 2


def test_a_model_that_could_not_be_scored_does_not_come_into_the_box(boxed_run):
    recipe, folder, result, *_ = boxed_run

    def fails(words):
        raise InputError("no such file")

    with pytest.raises(InputError):
        put_in_box(recipe, folder / "run", dict(result), {}, folder / "other", fails)
    assert not (folder / "other").exists()


MIXED = {name: {"tatoeba", "multi30k", "europarl"} for name in ("en-de", "alike")}


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r.box], ids=lambda recipe: recipe.name)
def test_a_card_has_the_terms_of_all_the_data_that_its_model_learned_from(recipe):
    files = [*recipe.train, *(BY_NAME[recipe.start].train if recipe.start else ())]
    names = {Path(file).parent.name for file in files}
    learned = {source for name in names for source in MIXED.get(name, {name})}
    words = cards.CARDS[recipe.box]
    assert set(words.sets) == learned
    text = cards.card(recipe, FOUND[recipe.name])
    assert all(part in text for name in words.sets for part in cards.SETS[name])
    assert set(ASKED[recipe.box]) == {"Of the kind that it learned from", "Of another kind"}


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
