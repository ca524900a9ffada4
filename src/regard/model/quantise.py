"""Weights in int8: a matrix W [O, I] as integers from -127 to 127 and a scale for each row, [O].

Weights are quantised only here: for a quantised model folder (box/pack.py), for `--dtype int8`, and
for int8 products on a CPU (decoding/engines/cpu_weights.py). A scale has 17 significant bits
instead of 24, so that its product with a 7-bit integer is exact in float32. Quantising restored
weights again therefore gives the same integers and scales, and a quantised model gives the same
predictions.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from regard.errors import InputError

LARGEST = 127
SPARE = 2**7 - 1  # the lowest bits of a scale, which are zero
SUFFIX = ".scale"  # the scale of the tensor NAME is called NAME.scale


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight[O, I] -> integers [O, I] in int8, and the scale of each row, [O]."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1) / LARGEST
    # Rounded up: the largest weight of a row must not become more than 127 units.
    scale = ((scale.view(torch.int32) + SPARE) & ~SPARE).view(torch.float32)
    units = torch.where(scale > 0, scale, 1)[:, None]
    return (weight / units).round().to(torch.int8), scale


def dequantise(numbers: Tensor, scale: Tensor) -> Tensor:
    """The weights of integers and scales: [O, I]."""
    return numbers.float() * scale[:, None]


def quantise_all(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix in int8 and its scales; other tensors are small and stay as they are."""
    small = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            small[name], small[name + SUFFIX] = quantise(tensor)
    return small


def dequantise_all(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights of a file, quantised or not.

    Raises:
        InputError: a quantised matrix has no valid scales.
    """
    weights = dict(tensors)
    for name, numbers in tensors.items():
        if numbers.dtype != torch.int8:
            continue
        scale = weights.pop(name + SUFFIX, None)
        if numbers.dim() != 2:
            raise InputError(f"{path}: {name} is int8 but not a matrix: {list(numbers.shape)}")
        if scale is None:
            raise InputError(f"{path}: {name} is int8, but {name}{SUFFIX} is missing")
        if scale.dtype != torch.float32 or scale.shape != numbers.shape[:1]:
            raise InputError(
                f"{path}: {name}{SUFFIX} is {list(scale.shape)} of {scale.dtype}, "
                f"but {name} needs {list(numbers.shape[:1])} of {torch.float32}"
            )
        if not bool((scale.isfinite() & (scale >= 0)).all()):
            raise InputError(f"{path}: {name}{SUFFIX} has a scale that is negative or not finite")
        weights[name] = dequantise(numbers, scale)
    return weights
