"""Properties of position encodings that section 3.5 of the paper and later papers state."""

import math

import pytest
import torch

from regard import InputError
from regard.model.positions import Rotation, sinusoids


def test_sinusoids_equal_formula_of_the_paper():
    table = sinusoids(torch.arange(50), 12, base=10_000.0)
    for position in (0, 1, 7, 49):
        for i in range(6):
            angle = position / 10_000 ** (2 * i / 12)
            assert math.isclose(float(table[position, 2 * i]), math.sin(angle), abs_tol=1e-12)
            assert math.isclose(float(table[position, 2 * i + 1]), math.cos(angle), abs_tol=1e-12)


@pytest.mark.parametrize("d_model", [64, 512])
def test_sinusoids_are_bounded_and_unique_to_ten_thousand_positions(d_model):
    table = sinusoids(torch.arange(10_000), d_model).float()  # as a model adds them
    assert table.abs().max() <= 1
    assert len(torch.unique(table, dim=0)) == 10_000
    # Encodings are well separated: no dot product is close to that of a position with itself.
    for block in torch.arange(10_000).split(2_500):
        dots = table[block] @ table.T
        dots[torch.arange(2_500), block] = 0
        assert dots.max() < d_model / 2 - 0.1


@pytest.mark.parametrize("base", [100.0, 10_000.0])
def test_shift_is_same_linear_map_at_every_position(base):
    d_model, positions = 32, torch.arange(5_000)
    table = sinusoids(positions, d_model, base)
    for shift in (1, 17, 400):
        moved = sinusoids(positions + shift, d_model, base)
        # The map rotates each sine and cosine pair by the angle of the shift; it does not depend on p.
        angle = shift * base ** (-torch.arange(0, d_model, 2).double() / d_model)
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).view(-1, 2, 2)
        torch.testing.assert_close(table @ torch.block_diag(*turn), moved, rtol=0, atol=1e-10)


def test_rotation_keeps_lengths_and_makes_scores_depend_on_distance_alone():
    query, key = torch.randn(1, 3, 8).double(), torch.randn(1, 3, 8).double()

    def turned(x, position):
        return Rotation(torch.tensor([position]), 8, 10_000.0)(x)

    assert torch.equal(turned(query, 0), query)
    torch.testing.assert_close(turned(query, 77).norm(dim=-1), query.norm(dim=-1))
    near = (turned(query, 5) * turned(key, 2)).sum(-1)
    far = (turned(query, 1005) * turned(key, 1002)).sum(-1)
    torch.testing.assert_close(near, far, rtol=0, atol=1e-9)
    assert not torch.allclose(near, (turned(query, 6) * turned(key, 2)).sum(-1))


def test_an_odd_width_is_refused():
    with pytest.raises(InputError, match="d_model=7 is odd"):
        sinusoids(torch.arange(3), 7)
