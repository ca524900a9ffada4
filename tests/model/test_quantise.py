"""Weights in a byte each: how far they are off, that nothing changes twice, and bad files."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import save_file

from regard import InputError
from regard.model.quantise import LARGEST, dequantise, dequantise_all, quantise, quantise_all
from regard.training.checkpoint import read_tensors, to_bytes

numbers = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
matrices = arrays.arrays("float32", st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=numbers)  # fmt: skip


@given(matrices)
def test_no_weight_is_off_by_more_than_half_a_step(array):
    weight = torch.from_numpy(array)
    whole, scale = quantise(weight)
    off = (dequantise(whole, scale).double() - weight.double()).abs()
    assert (off <= scale.double()[:, None] * (0.5 + 1e-5)).all()
    # And a step is what it must be at least: the largest weight is 127 of them.
    largest = weight.double().abs().amax(1)
    assert (scale.double() >= largest / LARGEST * (1 - 1e-6)).all()
    assert (scale.double() <= largest / LARGEST * (1 + 1e-4) + 1e-42).all()


@given(matrices)
def test_rounding_what_was_rounded_changes_nothing(array):
    whole, scale = quantise(torch.from_numpy(array))
    again, same = quantise(dequantise(whole, scale))
    normal = scale > 1e-36  # below, float32 has fewer digits
    assert torch.equal(again[normal], whole[normal])
    assert torch.equal(same[normal], scale[normal])


def test_a_step_times_a_whole_number_is_exact():
    whole, scale = quantise(torch.randn(200, 300))
    exact = whole.double() * scale.double()[:, None]
    assert torch.equal(dequantise(whole, scale).double(), exact)


def test_rows_are_rounded_by_themselves_and_a_row_of_zeros_stays():
    weight = torch.randn(3, 8)
    weight[1] = 0
    weight[2] *= 1000
    whole, scale = quantise(weight)
    assert scale[1] == 0
    assert not whole[1].any()
    for row in (0, 2):
        alone = quantise(weight[row : row + 1])
        assert torch.equal(alone[0][0], whole[row])
        assert torch.equal(alone[1][0], scale[row])


def test_only_matrices_become_bytes(tmp_path):
    tensors = {"a.weight": torch.randn(4, 6), "a.bias": torch.randn(4), "b": torch.randn(2, 3, 4)}
    small = quantise_all(tensors)
    types = {name: tensor.dtype for name, tensor in small.items()}
    assert types == {"a.weight": torch.int8, "a.weight.scale": torch.float32,
                     "a.bias": torch.float32, "b": torch.float32}  # fmt: skip
    (tmp_path / "model.safetensors").write_bytes(to_bytes(small))
    found = read_tensors(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    assert torch.equal(found["a.bias"], tensors["a.bias"])
    assert torch.equal(found["a.weight"], dequantise_all(small, tmp_path)["a.weight"])
    assert not torch.equal(found["a.weight"], tensors["a.weight"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"w.scale": None}, "w is in bytes, but w.scale is missing"),
        ({"w.scale": torch.ones(3)}, "w.scale is [3] of torch.float32, but w needs [4]"),
        ({"w.scale": torch.ones(4, 1)}, "w.scale is [4, 1]"),
        ({"w.scale": torch.ones(4, dtype=torch.float64)}, "w.scale is [4] of torch.float64"),
        ({"w.scale": torch.tensor([1, 1, 1, float("nan")])}, "w.scale has a number that is no"),
        ({"w.scale": -torch.ones(4)}, "w.scale has a number that is no scale"),
        ({"w": torch.ones(4, dtype=torch.int8)}, "w is in bytes but no matrix: [4]"),
    ],
)
def test_a_damaged_packed_file_is_refused_with_its_name_and_the_tensor(tmp_path, change, said):
    tensors = {"w": torch.ones(4, 6, dtype=torch.int8), "w.scale": torch.ones(4)} | change
    path = tmp_path / "model.safetensors"
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    with pytest.raises(InputError) as refused:
        read_tensors(path)
    assert str(refused.value).startswith(f"{path}: {said}")
    assert "\n" not in str(refused.value)
