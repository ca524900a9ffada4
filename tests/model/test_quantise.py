"""Int8 weights: rounding errors, idempotence and damaged files."""

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
def test_quantisation_error_is_at_most_half_a_step(array):
    weight = torch.from_numpy(array)
    whole, scale = quantise(weight)
    off = (dequantise(whole, scale).double() - weight.double()).abs()
    assert (off <= scale.double()[:, None] * (0.5 + 1e-5)).all()
    # The scale is as small as possible: the largest weight is 127 steps.
    largest = weight.double().abs().amax(1)
    assert (scale.double() >= largest / LARGEST * (1 - 1e-6)).all()
    assert (scale.double() <= largest / LARGEST * (1 + 1e-4) + 1e-42).all()


@given(matrices)
def test_quantisation_is_idempotent(array):
    whole, scale = quantise(torch.from_numpy(array))
    again, same = quantise(dequantise(whole, scale))
    normal = scale > 1e-36  # below, float32 has fewer digits
    assert torch.equal(again[normal], whole[normal])
    assert torch.equal(same[normal], scale[normal])


def test_multiples_of_a_step_are_exact():
    whole, scale = quantise(torch.randn(200, 300))
    exact = whole.double() * scale.double()[:, None]
    assert torch.equal(dequantise(whole, scale).double(), exact)


def test_rows_have_own_scales_and_zero_rows_stay_zero():
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


def test_only_matrices_are_quantised(tmp_path):
    tensors = {"a.weight": torch.randn(4, 6), "a.bias": torch.randn(4), "b": torch.randn(2, 3, 4)}
    small = quantise_all(tensors)
    types = {name: tensor.dtype for name, tensor in small.items()}
    assert types == {"a.weight": torch.int8, "a.weight.scale": torch.float32,
                     "a.bias": torch.float32, "b": torch.float32}  # fmt: skip
    (tmp_path / "model.safetensors").write_bytes(to_bytes(small))
    tensors_read = read_tensors(tmp_path / "model.safetensors")
    assert tensors_read.keys() == tensors.keys()
    assert torch.equal(tensors_read["a.bias"], tensors["a.bias"])
    assert torch.equal(tensors_read["a.weight"], dequantise_all(small, tmp_path)["a.weight"])
    assert not torch.equal(tensors_read["a.weight"], tensors["a.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w.scale": None}, "w is int8, but w.scale is missing"),
        ({"w.scale": torch.ones(3)}, "w.scale is [3] of torch.float32, but w needs [4]"),
        ({"w.scale": torch.ones(4, 1)}, "w.scale is [4, 1]"),
        ({"w.scale": torch.ones(4, dtype=torch.float64)}, "w.scale is [4] of torch.float64"),
        (
            {"w.scale": torch.tensor([1, 1, 1, float("nan")])},
            "w.scale has a scale that is negative",
        ),
        ({"w.scale": -torch.ones(4)}, "w.scale has a scale that is negative or not finite"),
        ({"w": torch.ones(4, dtype=torch.int8)}, "w is int8 but not a matrix: [4]"),
    ],
)
def test_damaged_int8_file_is_refused_with_file_and_tensor_name(tmp_path, change, message):
    tensors = {"w": torch.ones(4, 6, dtype=torch.int8), "w.scale": torch.ones(4)} | change
    path = tmp_path / "model.safetensors"
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    with pytest.raises(InputError) as refused:
        read_tensors(path)
    assert str(refused.value).startswith(f"{path}: {message}")
    assert "\n" not in str(refused.value)
