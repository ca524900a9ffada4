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
from pathlib import Path

import torch

from regard.device import synchronise
from regard.lab.common.layers import REFERENCE, Layer

ENOUGH, MOST = 0.15, 30  # seconds and times that a pass is repeated
PASSES = ("forward", "training")


class Pass:
    """A pass of n tokens through a layer."""

    def __init__(self, layer: Layer, n: int, training: bool) -> None:
        self.layer, self.training = layer, training
        self.x = torch.randn(n, layer.config.d_model, device=layer.device, dtype=layer.dtype)
        self.x.requires_grad_(training)
        with torch.set_grad_enabled(training):
            self.plan = layer.plan(n)

    def once(self) -> None:
        with torch.set_grad_enabled(self.training):
            result = self.layer(self.x, self.plan)
            if self.training:
                self.forget()
                result.sum().backward()

    def forget(self) -> None:
        self.x.grad = None
        self.layer.module.zero_grad(set_to_none=True)

    def seconds(self, enough: float = ENOUGH) -> float:
        """The best of as many as fit into a little while, at least one. The first is not among
        them: what is made once (kernels, plans) is not the layer's time."""
        self.once()
        best, began, times = float("inf"), time.perf_counter(), 0
        while not times or (time.perf_counter() - began < enough and times < MOST):
            synchronise(self.layer.device)
            start = time.perf_counter()
            self.once()
            synchronise(self.layer.device)
            best, times = min(best, time.perf_counter() - start), times + 1
        return best

    def memory(self) -> int | None:
        """Bytes at the peak; None where the system does not tell."""
        self.once()
        self.forget()
        return peak_memory(self.once, self.layer.device)


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
