"""Student's t-test against closed forms, numerical integration and a published example; Holm's
correction; and the message without scipy."""

import math
import sys

import pytest

from regard.errors import InputError
from regard.lab.common.significance import (
    PooledDeviation,
    format_p,
    holm,
    load_stdtr,
    pool,
    t_test,
    two_sided_p,
)


def integral(function, low, high, pieces=20_000):
    """By Simpson's rule."""
    width = (high - low) / pieces
    inner = sum((4 if i % 2 else 2) * function(low + i * width) for i in range(1, pieces))
    return width / 3 * (function(low) + inner + function(high))


@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 2.5, 12.706, 300.0])
def test_tails_of_students_t_equal_their_closed_forms(t):
    assert two_sided_p(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), abs=1e-12)
    assert two_sided_p(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)
    assert two_sided_p(t, 1e7) == pytest.approx(math.erfc(t / math.sqrt(2)), abs=1e-6)


@pytest.mark.parametrize(("t", "freedom"), [(2.228, 10), (0.7, 3.6), (4.1, 1.3), (2.0, 57.2)])
def test_tails_of_students_t_equal_the_integral_of_the_density(t, freedom):
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    front = math.exp(log) / math.sqrt(freedom * math.pi)
    body = integral(lambda x: front * (1 + x * x / freedom) ** (-(freedom + 1) / 2), -t, t)
    assert two_sided_p(t, freedom) == pytest.approx(1 - body, abs=1e-10)


def test_far_tails_are_not_lost_in_rounding():
    # For large t the tail of 5 degrees of freedom is near 2 * 5^2.5 * C(5) / 5 / t^5.
    assert two_sided_p(1e4, 5) == pytest.approx(1.8979e-19, rel=1e-3)
    assert two_sided_p(math.inf, 5) == 0


def test_t_test_reproduces_a_published_example():
    # https://en.wikipedia.org/wiki/Welch%27s_t-test, the first example of its table
    first = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7,
             21.4]  # fmt: skip
    second = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5,
              24.4]  # fmt: skip
    pooled = pool([first, second])
    test = t_test(first, second, pooled)
    assert pooled.freedom == 28
    assert test.difference / test.error == pytest.approx(-2.46, abs=0.005)
    assert test.p == pytest.approx(0.021, abs=0.0005)


def test_any_difference_is_significant_without_variance():
    assert t_test([2.0, 2.0], [1.0, 1.0], PooledDeviation(0.0, 2)).p == 0
    assert t_test([2.0, 2.0], [2.0, 2.0], PooledDeviation(0.0, 2)).p == 1


def test_pooled_deviation_is_around_the_mean_of_each_group():
    pooled = pool([[1.0, 3.0], [10.0, 10.0], [5.0, 6.0, 7.0]])
    assert pooled == PooledDeviation(pytest.approx(math.sqrt((2 + 0 + 2) / 4)), 4)


def test_holm_multiplies_by_remaining_comparisons_and_keeps_the_order():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


def test_a_small_p_is_never_printed_as_zero():
    assert [format_p(p) for p in (1.0, 0.0321, 0.001, 0.0004, 0.0)] == ["1.000", "0.032", "0.001", "<0.001", "<0.001"]  # fmt: skip


def test_without_scipy_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(InputError, match=r"needs scipy: pip install 'regard\[lab\]'"):
        load_stdtr()
