"""Hardware limits, measured in each run: bytes read and operations per second.

The limit of a piece of work is the time to read each weight once or the time to multiply with it,
whichever is longer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial

import torch

from regard import ModelConfig
from regard.device import peak, synchronise

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}  # per weight
INT8_SIZE = 2048  # size of the matrices that measure int8
BEST: dict[tuple[str | int, ...], float] = {}


@dataclass(frozen=True)
class Limit:
    """The limit of work with a number of weights in one precision."""

    weights: int
    size: int  # bytes of the weights
    bandwidth: float  # bytes per second
    peak: float  # operations per second

    @classmethod
    def measure(cls, weights: int, device: torch.device, dtype: str) -> Limit:
        size = weights * BYTES[dtype]
        # The weights of a small model stay in the cache, which is faster than memory. The overhead
        # of a short sum is large, so the speed at larger sizes counts as well.
        sizes = (size, 2 * size, 4 * size, 2**28)
        speed = max(bandwidth(n, device) for n in sizes if n >= size)
        return cls(weights, size, speed, best_peak(device, dtype))

    def seconds(self, rows: int, other: float = 0.0) -> float:
        """The minimum time for this number of rows at once, with `other` further operations."""
        return max(self.size / self.bandwidth, (2 * self.weights * rows + other) / self.peak)

    def __str__(self) -> str:
        return (
            f"{self.size / 1e6:,.1f} MB at {self.bandwidth / 1e9:,.0f} GB/s, "
            f"{self.peak / 1e9:,.0f} Gflop/s"
        )


def weights_of_a_step(config: ModelConfig) -> int:
    """The number of weights that each decoding step reads: without those for keys and values of the
    memory, which are computed once per sentence, and without biases and norms, which are few."""
    d, width = config.d_model, config.heads * config.head_size
    cross = 2 * d * width if config.has_encoder else 0
    layer = 4 * d * width + cross + 2 * d * config.d_ff
    return config.decoder_layers * layer + config.vocabulary_size * d


def decoding_limit(limit: Limit, batch: int, beam: int, steps: int) -> float:
    """Target tokens per second if only the decoding steps took time. In the first step, a sentence
    has one hypothesis."""
    seconds = limit.seconds(batch) + (steps - 1) * limit.seconds(batch * beam)
    return batch * steps / seconds


def best_peak(device: torch.device, dtype: str) -> float:
    """Operations per second: the best of several measurements, in case the machine is busy."""
    measure = peak_int8 if dtype == "int8" else partial(peak, dtype=getattr(torch, dtype))
    return best_seen(("peak", device.type, dtype), max(measure(device) for _ in range(5)))


def best_seen(quantity: tuple[str | int, ...], value: float) -> float:
    """The best value that this process has measured."""
    BEST[quantity] = max(value, BEST.get(quantity, 0.0))
    return BEST[quantity]


def peak_int8(device: torch.device) -> float:
    """Operations per second of an int8 matrix product."""
    a, b = (
        torch.randint(-127, 128, (INT8_SIZE, INT8_SIZE), dtype=torch.int8, device=device)
        for _ in range(2)
    )
    best = math.inf
    for _ in range(5):
        synchronise(device)
        start = time.perf_counter()
        torch._int_mm(a, b)
        synchronise(device)
        best = min(best, time.perf_counter() - start)
    return 2 * INT8_SIZE**3 / best


def bandwidth(size: int, device: torch.device) -> float:
    """Bytes per second of a sum over `size` bytes. Also measures alternating directions: the part
    that was read last is still in the cache when it is read first, which a program may exploit."""
    values = torch.ones(size // 4, device=device)
    parts, calls, best = values.chunk(8), 10, 0.0
    directions = parts, parts[::-1]
    for alternate in (False, True) * 3:
        synchronise(device)
        start = time.perf_counter()
        for call in range(calls):
            for part in directions[call % 2] if alternate else (values,):
                part.sum()
        synchronise(device)
        best = max(best, calls * values.nbytes / (time.perf_counter() - start))
    return best_seen(("bandwidth", device.type, size), best)
