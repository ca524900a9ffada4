"""docs/results.md contains only stored results."""

import pytest

from experiments.ingredients import BASE
from regard.errors import InputError
from tools import translation
from tools.results import page

SIGNED = {"bleu_signature": "tok:none", "chrf_signature": "nc:6"}


def scored(bleu, examples=1000):
    return {"bleu": bleu, "chrf": 60.0, "examples": examples, **SIGNED,
            "intervals": {"bleu": [bleu - 1, bleu + 1], "chrf": [59, 61]}}  # fmt: skip


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(f"| {start} |"))


def test_a_row_has_mean_and_deviation_over_seeds_and_times_of_undisturbed_trainings():
    one = {"steps": 8000, "tests": {"test2016": scored(41.0)}, "time": 90.0, "wall": 110.0}
    two = {"steps": 8000, "tests": {"test2016": scored(43.0)}, "time": 300.0}
    row = {"machine": "a machine", "seeds": {"1": one, "2": two}}
    cells = [
        c.strip() for c in line_of(translation.multi30k({"multi30k": row}), "multi30k").split("|")
    ]
    assert cells[3:9] == ["42.00 ± 1.41", "60.00 ± 0.00", "2", "8,000", "90 s", "110 s"]


def ingredient_rows(**rows):
    table = {
        name: {"options": [f"x={name}"] * (name != BASE),
               "seeds": {str(i): {"val": {"bleu": 30.0}, "test2016": {"bleu": b}} for i, b in enumerate(some)}}
        for name, some in rows.items()
    }  # fmt: skip
    return {
        "rows": table,
        "failed": {"x-2": "out of memory"},
        "machine": "a machine",
        "set": ["training.steps=9"],
    }


def test_a_significant_ingredient_is_bold_and_missing_rows_are_named():
    result = ingredient_rows(
        **{
            BASE: [41.0, 41.1, 41.2],
            "worse": [30.0, 30.2, 30.1],
            "same": [41.1, 41.0, 41.3],
            "late": [],
        }
    )
    text = translation.ingredients(result)
    assert "| **-11.00** | <0.001 | 3 |" in line_of(text, "worse")
    assert "**" not in line_of(text, "same")
    assert "Not trained, for lack of time: late." in text
    assert "Failed: x-2: out of memory." in text
    assert "was trained with `training.steps=9`" in text


def test_one_seed_of_each_ingredient_is_shown_without_a_test():
    text = translation.ingredients(ingredient_rows(**{BASE: [41.0], "other": [40.0]}))
    assert "| 40.00 |  |  | 1 |" in line_of(text, "other")


def test_the_tokens_of_an_hour_are_computed_from_the_speed(tmp_path):
    row = {
        "machine": "a machine", "steps": 10_000, "time": 512.0, "weights": "last",
        "tests": {"newstest2014": scored(20.0)},
        "curve": [{"step": 5_000, "seconds": 300.0, "bleu": 15.0, "chrf": 40.0}],
    }  # fmt: skip
    values = translation.europarl(row)
    assert (values["europarl_hour"], values["europarl_fraction"]) == ("1.80", "0.72")
    assert "| 5,000 | 5.0 | 128 | 15.00 | 40.00 |" in values["europarl"]
    pictures = translation.draw_curve({"europarl-base": row}, tmp_path)
    assert [path.suffix for path in pictures] == [".png", ".svg"]
    assert all(path.stat().st_size > 1000 for path in pictures)


def test_a_missing_result_is_named():
    with pytest.raises(InputError, match="docs/results has no ingredients.json"):
        page({"multi30k": {}})
