"""Wall time and peak memory of a layer, forward and as a training step (forward and backward).

Times are the best of several: what a busy machine adds is not the layer's. Memory is what a pass
needs at most beside its input and its weights: on a GPU what torch allocated, on Linux the peak of
the process's resident memory, which has what the kernels themselves keep.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.lab.layers import REFERENCE, Layer
from regard.training.machine import synchronise

ENOUGH, MOST = 0.15, 30  # seconds and times that a pass is repeated
PASSES = ("forward", "training")


@dataclass(frozen=True)
class Measured:
    seconds: float
    memory: int | None  # bytes; None where the system does not tell


def measure(layer: Layer, n: int, training: bool) -> Measured:
    """One pass of n tokens, again and again for a little while."""
    x = torch.randn(n, layer.config.d_model, device=layer.device, dtype=layer.dtype)
    x.requires_grad_(training)
    with torch.set_grad_enabled(training):
        plan = layer.plan(n)

        def once() -> None:
            result = layer(x, plan)
            if training:
                x.grad = None
                layer.module.zero_grad(set_to_none=True)
                result.sum().backward()

        once()  # what is made once (kernels, plans) is not the layer's time
        x.grad = None
        layer.module.zero_grad(set_to_none=True)
        memory = peak_memory(once, layer.device)
        best, began, times = float("inf"), time.perf_counter(), 0
        while not times or (time.perf_counter() - began < ENOUGH and times < MOST):
            synchronise(layer.device)
            start = time.perf_counter()
            once()
            synchronise(layer.device)
            best, times = min(best, time.perf_counter() - start), times + 1
    return Measured(best, memory)


def peak_memory(work: Callable[[], None], device: torch.device) -> int | None:
    """Bytes that `work` needs at most beside what was there before."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated(device)) - before
    if sys.platform != "linux":
        work()
        return None
    ctypes.CDLL(None).malloc_trim(0)  # free memory that is kept would hide what is taken again
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    except OSError:  # some containers do not let it
        work()
        return None
    before = resident("VmRSS")
    work()
    return max(0, resident("VmHWM") - before)


def resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")


def needed_memory(name: str, n: int, d: int, window: int, kernel: int) -> float:
    """Bytes that a training step is predicted to need, on the safe side."""
    rows = {"convolution": 8 + 3 * kernel, "dilated": 8 + 3 * kernel, "feed-forward": 30}
    row = 4.0 * n * d * rows.get(name, 40)
    weights = 4.0 * d * d * max(20, 4 * kernel if name in ("convolution", "dilated") else 0)
    if name == REFERENCE:  # scores, masked scores, weights and their gradients, for each head
        return row + weights + 10 * 4.0 * n * n * max(1, d // 64)
    if name == "restricted":  # keys stand in three pieces, and each piece has its mask
        return 2 * row + weights + 12.0 * n * max(64, min(window, n))
    return row + weights
