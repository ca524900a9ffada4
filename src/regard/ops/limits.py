"""Limits of devices: checks of devices and dtypes, and replacements for missing operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard import device as devices
from regard.errors import InputError


def check_device(device: torch.device | None) -> None:
    """Raise InputError if this computer does not have the device; None passes."""
    if device is not None:
        devices.check_device(device)


def check_dtype(dtype: torch.dtype) -> None:
    """Raise InputError for float16."""
    if dtype == torch.float16:
        raise InputError(devices.FLOAT16)


def angles(positions: Tensor, size: int, base: float) -> Tensor:
    """[N] positions -> [N, size/2] angles: position / base^(2i/size), in float64.

    A device without float64 gets angles below 2 pi in float32, computed on the CPU. Their sines and
    cosines are as precise as float32 allows.
    """
    device = devices.search_device(positions.device)
    steps = torch.arange(0, size, 2, dtype=torch.float64, device=device)
    angle = positions.to(device).double()[:, None] * base ** (-steps / size)
    wide = devices.wide_dtype(positions.device)
    if wide != torch.float64:
        angle = angle.remainder(2 * math.pi)
    return angle.to(positions.device, wide)


def segment_means(x: Tensor, lengths: Tensor) -> Tensor:
    """The mean of the rows of each segment: x[N, D], lengths[B] -> [B, D]."""
    if x.device.type != "mps":
        return torch.segment_reduce(x, "mean", lengths=lengths, axis=0)
    # PyTorch has no segment_reduce for MPS.
    owner = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
    sums = x.new_zeros(len(lengths), x.shape[1]).index_add(0, owner, x)
    return sums / lengths[:, None]
