"""Weights in a byte each: a matrix W [O, I] as whole numbers from -127 to 127 and a scale for each
row, [O].

Weights are quantised only here: for a packed model folder (box/pack.py), for `--dtype int8`, and
for int8 products on a CPU (decoding/engines/cpu_weights.py). A scale has 17 significant bits
instead of 24, so that its product with a 7-bit integer is exact in float32. Quantising restored
weights again therefore gives the same integers and scales, and a packed model gives the same
predictions.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from regard.errors import InputError

LARGEST = 127
SPARE = 2**7 - 1  # the last binary digits of a scale, which stay zero
SUFFIX = ".scale"  # the scale of the tensor NAME is called NAME.scale


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight[O, I] -> whole numbers [O, I] in int8, and what a unit of each row is worth, [O]."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1) / LARGEST
    # Rounded up: the largest weight of a row must not become more than 127 units.
    scale = ((scale.view(torch.int32) + SPARE) & ~SPARE).view(torch.float32)
    units = torch.where(scale > 0, scale, 1)[:, None]
    return (weight / units).round().to(torch.int8), scale


def restored(numbers: Tensor, scale: Tensor) -> Tensor:
    """What `rounded` gave, as weights again: [O, I]."""
    return numbers.float() * scale[:, None]


def packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix in bytes, with its scales beside it; what is no matrix is small, and stays."""
    small: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            small[name], small[name + SUFFIX] = rounded(tensor)
        else:
            small[name] = tensor
    return small


def unpacked(tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights of a file, packed or not, once every matrix in bytes has the scales it needs."""
    weights = dict(tensors)
    for name, numbers in tensors.items():
        if numbers.dtype != torch.int8:
            continue
        scale = weights.pop(name + SUFFIX, None)
        if numbers.dim() != 2:
            raise InputError(f"{path}: {name} is in bytes but no matrix: {list(numbers.shape)}")
        if scale is None:
            raise InputError(f"{path}: {name} is in bytes, but {name}{SUFFIX} is missing")
        if scale.dtype != torch.float32 or scale.shape != numbers.shape[:1]:
            raise InputError(
                f"{path}: {name}{SUFFIX} is {list(scale.shape)} of {scale.dtype}, "
                f"but {name} needs {list(numbers.shape[:1])} of {torch.float32}"
            )
        if not bool((scale.isfinite() & (scale >= 0)).all()):
            raise InputError(f"{path}: {name}{SUFFIX} has a number that is no scale")
        weights[name] = restored(numbers, scale)
    return weights
