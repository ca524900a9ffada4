"""Results in input order, from groups of inputs of similar length."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.cli import ordered
from regard.cli.ordered import Pace, results_in_order


class FixedPace(Pace):
    """Groups whose size does not depend on the time."""

    def measured(self, cost, seconds):
        pass


def run(sizes, pace):
    """The groups, and the results that were returned after each of them."""
    groups = []

    def compute(group):
        groups.append(group)
        return [f"result {i}" for i in group]

    return groups, list(results_in_order(sizes, compute, pace))


@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 20), st.floats(1, 2_000))
def test_every_result_is_returned_once_and_in_order(sizes, pool, cost):
    groups, returned = run(sizes, Pace(cost, pool))
    assert sorted(i for group in groups for i in group) == list(range(len(sizes)))
    assert [group for group, _ in returned] == groups
    results = [pair for _, finished in returned for pair in finished]
    assert results == [(i, f"result {i}") for i in range(len(sizes))]
    known, count = set(), 0
    for group, finished in returned:
        assert group == sorted(group)
        assert max(group) < count + pool  # a bounded number of results waits
        assert finished  # the oldest input is in every group
        known |= set(group)
        count += len(finished)
        assert count == len(sizes) or count not in known


def test_a_group_has_inputs_of_similar_length():
    groups, returned = run([10, 100, 11, 101, 12, 102], FixedPace(120, 6))
    assert groups == [[0, 2, 4], [1], [3], [5]]
    assert [len(finished) for _, finished in returned] == [1, 2, 2, 1]


def test_without_a_limit_a_group_has_the_whole_pool():
    groups, _ = run([5] * 10, Pace(inf, 4))
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_size_of_groups_follows_the_speed():
    pace = Pace(40_000)
    pace.measured(40_000, 2 * ordered.SECONDS)
    assert pace.cost == pytest.approx(20_000)
    pace.measured(20_000, 100.0)
    assert pace.cost == pytest.approx(10_000)  # at most by half
    pace.measured(10_000, 0.0)
    assert pace.cost == pytest.approx(20_000)  # at most twice as large
    for _ in range(9):
        pace.measured(100, 100.0)
    assert pace.cost == ordered.LEAST_COST


def test_results_before_an_error_are_returned():
    def compute(group):
        if 3 in group:
            raise ValueError("input 3")
        return group

    collected = []

    def collect():
        for _, finished in results_in_order([9] * 6, compute, FixedPace(1, 6)):
            collected.extend(finished)

    with pytest.raises(ValueError, match="input 3"):
        collect()
    assert [i for i, _ in collected] == [0, 1, 2]
