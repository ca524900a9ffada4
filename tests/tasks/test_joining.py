"""The best combinations of n-best lists, and which texts are split."""

from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.joining import best_combinations, paragraph

SCORES = st.lists(st.integers(-9, 0), min_size=1, max_size=4).map(lambda s: sorted(s, reverse=True))


@given(st.lists(SCORES, min_size=1, max_size=4), st.integers(1, 6))
def test_the_combinations_have_the_largest_sums(lists, count):
    items = [[SimpleNamespace(score=score, i=i) for i, score in enumerate(s)] for s in lists]
    combinations = best_combinations(items, count)
    expected = sorted((sum(chosen) for chosen in product(*lists)), reverse=True)[:count]
    assert [sum(item.score for item in chosen) for chosen in combinations] == expected
    assert len({tuple(item.i for item in chosen) for chosen in combinations}) == len(combinations)
    assert [item.i for item in combinations[0]] == [0] * len(lists)


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("One sentence.", False), (" One sentence. ", False), ("", False), (" \n ", False),
        ("One. Two.", True), ("One line\nTwo lines", True), ("One.\n", True),
    ],
)  # fmt: skip
def test_a_single_sentence_on_one_line_is_not_split(text, split):
    assert (paragraph(text) is not None) == split
