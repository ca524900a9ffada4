"""What the machine can do, and how to be good to its memory."""

from __future__ import annotations

import ctypes
import math
import sys
import time

import torch


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product: the most to hope for, measured here."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = math.inf
    for _ in range(5):
        synchronise(device)
        start = time.perf_counter()
        a @ b
        synchronise(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def keep_freed_memory() -> None:
    """Tell glibc not to give large freed blocks back to the system: each would return as page
    faults at the next step. Elsewhere than on Linux with glibc it does nothing."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
