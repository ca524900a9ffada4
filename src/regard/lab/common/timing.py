"""Wall time and peak memory of one layer, and the time of training steps of whole models.

A layer is timed forward and as a training step (forward and backward). The best of several passes
counts, since a busy machine only adds time. Its memory is the peak beside input and weights:
on a GPU what torch allocated, on Linux the peak of the process's resident memory, which includes
the buffers of the kernels.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from regard.config.sections import Config
from regard.device import synchronise
from regard.lab.common.layers import REFERENCE, Layer
from regard.lab.common.report import plural
from regard.model.transformer import Transformer
from regard.tasks.task import Task
from regard.text.store import Store
from regard.training.distributed import Processes
from regard.training.progress import Progress
from regard.training.trainer import Trainer

ENOUGH, MOST = 0.15, 30  # seconds and number of repetitions of a pass, at most
PASSES = ("forward", "training")
CPU = torch.device("cpu")

TimedStep = tuple[float, int, int]  # seconds, examples, targets


def machine_name(device: torch.device) -> str:
    if device.type != "cpu":
        return device.type
    return f"cpu, {plural(torch.get_num_threads(), 'thread')}"


class Pass:
    """A pass of n tokens through a layer."""

    def __init__(self, layer: Layer, n: int, training: bool) -> None:
        self.layer, self.training = layer, training
        self.x = torch.randn(n, layer.config.d_model, device=layer.device, dtype=layer.dtype)
        self.x.requires_grad_(training)
        with torch.set_grad_enabled(training):
            self.plan = layer.plan(n)

    def run(self) -> None:
        with torch.set_grad_enabled(self.training):
            result = self.layer(self.x, self.plan)
            if self.training:
                self.clear_gradients()
                result.sum().backward()

    def clear_gradients(self) -> None:
        self.x.grad = None
        self.layer.module.zero_grad(set_to_none=True)

    def seconds(self, enough: float = ENOUGH) -> float:
        """The best of the repetitions that fit into `enough` seconds, at least one. A first pass,
        which builds kernels and plans, is not counted."""
        self.run()
        best, began, times = float("inf"), time.perf_counter(), 0
        while not times or (time.perf_counter() - began < enough and times < MOST):
            synchronise(self.layer.device)
            start = time.perf_counter()
            self.run()
            synchronise(self.layer.device)
            best, times = min(best, time.perf_counter() - start), times + 1
        return best

    def memory(self) -> int | None:
        """Peak bytes; None where the system does not report them."""
        self.run()
        self.clear_gradients()
        return peak_memory(self.run, self.layer.device)


def peak_memory(work: Callable[[], None], device: torch.device) -> int | None:
    """Peak bytes that `work` needs beside what was allocated before; None: not reported."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated(device)) - before
    resident = None
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # memory that the allocator keeps would hide new use
        with suppress(OSError):  # not allowed in some containers
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            resident = resident_memory("VmRSS")
    work()
    return None if resident is None else max(0, resident_memory("VmHWM") - resident)


def resident_memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def needed_memory(name: str, n: int, d: int, window: int, kernel: int) -> float:
    """Upper estimate of the bytes that a training step of a layer needs."""
    features = {"convolution": 8 + 3 * kernel, "dilated": 8 + 3 * kernel, "feed-forward": 30}
    tokens = 4.0 * n * d * features.get(name, 40)
    weights = 4.0 * d * d * max(20, 4 * kernel if name in ("convolution", "dilated") else 0)
    if name == REFERENCE:  # scores, masked scores, weights and their gradients, for each head
        return tokens + weights + 10 * 4.0 * n * n * max(1, d // 64)
    if name == "restricted":  # keys are in three pieces, and each piece has its mask
        return 2 * tokens + weights + 12.0 * n * max(64, min(window, n))
    return tokens + weights


def time_training_steps(
    models: Sequence[tuple[Config, Task]], store: Store, device: str, warm_up: int, steps: int
) -> list[list[TimedStep]]:
    """Time the trainer's own steps of several models, on the first batches of training.

    The models take turns step by step, so that a temporarily busy machine slows all of them.
    The first `warm_up` steps are not counted.
    """
    processes = Processes(device)
    timed: list[list[TimedStep]] = [[] for _ in models]
    with tempfile.TemporaryDirectory() as folder:
        trainers = []
        for config, task in models:
            progress = Progress(warm_up + steps, quiet=True)
            progress.pause()  # starts its clock
            model = Transformer(config.model)
            out = Path(folder)
            trainers.append(Trainer(config, out, model, task, store, processes, progress, None))
        for step in range(warm_up + steps):
            for (config, task), trainer, times in zip(models, trainers, timed, strict=True):
                count = config.training.accumulate
                rows = [trainer.rows[row] for row in range(step * count, (step + 1) * count)]
                began = time.perf_counter()
                trainer.step()
                synchronise(processes.device)
                seconds = time.perf_counter() - began
                if step >= warm_up:
                    targets = sum(task.batch(store, row, CPU).tokens for row in rows)
                    times.append((seconds, sum(map(len, rows)), targets))
    return timed
