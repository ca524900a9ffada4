"""The hardware: choice of device and dtype, memory settings, and peak speed."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Callable

import torch

from regard.errors import InputError


def choose_device(name: str, index: int = 0) -> torch.device:
    """The device called `name`: auto (the GPU if there is one, otherwise the CPU), cpu, or cuda
    (the GPU with this index)."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: there is no CUDA device here; use --device cpu or auto")
    return torch.device(name, index) if name == "cuda" else torch.device(name)


def choose_dtype(name: str, device: torch.device, fast_bfloat16: Callable[[], bool]) -> torch.dtype:
    """The dtype called `name`; `auto` is bfloat16 where it is faster, otherwise float32.

    fast_bfloat16: whether bfloat16 is faster on this CPU (on a GPU it always is); called only if
    that is needed.
    """
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" or fast_bfloat16() else "float32"
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product, measured: an upper limit for a model."""
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
    """Wait until a GPU has finished its work; on a CPU there is nothing to wait for."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks instead of returning them to the system, which would cost
    page faults in the next step. Does nothing on systems other than Linux with glibc."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
