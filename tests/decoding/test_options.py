"""DecodingConfig refuses invalid values and names both of two conflicting options."""

import pytest

from regard import InputError
from regard.config.sections import MOST_HYPOTHESES, DecodingConfig

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "first", "second"),
    [
        ({"temperature": 1.0}, "decoding.temperature=1.0", "decoding.beam=4"),
        ({"temperature": 0.5, "beam": 2}, "decoding.temperature=0.5", "decoding.beam=2"),
        ({"top_k": 5}, "decoding.top_k=5", "decoding.temperature=0"),
        ({"top_p": 0.5}, "decoding.top_p=0.5", "decoding.temperature=0"),
        ({"beam": 1, "top_k": 1}, "decoding.top_k=1", "decoding.temperature=0"),
        ({"beam": 1, "top_k": 5, "top_p": 0.5}, "decoding.top_k=5", "decoding.temperature=0"),
        ({"n_best": 5}, "decoding.n_best=5", "decoding.beam=4"),
        ({"n_best": 2, "beam": 1}, "decoding.n_best=2", "decoding.beam=1"),
    ],
)
def test_conflicting_options_are_refused_by_name(values, first, second):
    with pytest.raises(InputError, match="cannot be combined|needs a beam") as caught:
        DecodingConfig(**values)
    assert first in str(caught.value)
    assert second in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, value) for name in ("beam", "n_best", "max_length") for value in (0, -1)],
        *[(name, -1) for name in ("min_length", "no_repeat", "top_k", "seed")],
        *[
            (name, value)
            for name in ("length_penalty", "length_offset", "temperature")
            for value in (-0.1, NAN, INFINITY, -INFINITY, 1001.0)
        ],
        *[("top_p", value) for value in (0.0, -0.5, 1.5, NAN, INFINITY)],
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value):
    sampling = {"beam": 1, "temperature": 1.0} if name in ("temperature", "top_p", "top_k") else {}
    with pytest.raises(InputError, match=f"decoding.{name} must be") as caught:
        DecodingConfig(**{**sampling, name: value})
    assert str(value) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam", 2.0),
        ("beam", "4"),
        ("beam", True),
        ("beam", None),
        ("n_best", 1.5),
        ("max_length", None),
        ("temperature", "hot"),
        ("top_p", False),
        ("seed", 0.5),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(name, value):
    with pytest.raises(InputError, match=f"decoding.{name} must be"):
        DecodingConfig(**{name: value})


@pytest.mark.parametrize(
    "values",
    [
        {"beam": MOST_HYPOTHESES + 1},
        {"beam": MOST_HYPOTHESES + 1, "n_best": MOST_HYPOTHESES + 1},
        {"beam": 1, "temperature": 1.0, "n_best": MOST_HYPOTHESES + 1},
        {"beam": 10**9},
    ],
    ids=str,
)
def test_more_hypotheses_than_memory_has_room_for_are_refused(values):
    with pytest.raises(InputError, match=r"decoding.(beam|n_best) must be at most 1,000, not 100"):
        DecodingConfig(**values)


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ({}, 4),
        ({"beam": 1}, 1),
        ({"beam": MOST_HYPOTHESES, "n_best": MOST_HYPOTHESES}, MOST_HYPOTHESES),
        ({"beam": 7, "n_best": 7, "length_penalty": 0}, 7),
        ({"beam": 1, "temperature": 1}, 1),
        ({"beam": 1, "temperature": 0.1, "n_best": MOST_HYPOTHESES}, MOST_HYPOTHESES),
        ({"beam": 1, "temperature": 1000.0, "top_k": 1, "top_p": 1e-9, "n_best": 3}, 3),
        ({"min_length": 100, "max_length": 1, "no_repeat": 1}, 4),
    ],
    ids=str,
)
def test_compatible_options_are_accepted(values, width):
    assert DecodingConfig(**values).width == width
