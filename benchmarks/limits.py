"""What this machine could do at most: bytes read and operations a second, measured in each run.

The limit of a piece of work is the time to read each weight once, or to multiply with it,
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

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}  # of a weight
INT8_SIZE = 2048  # of the product that measures int8
BEST: dict[tuple[str | int, ...], float] = {}


@dataclass(frozen=True)
class Limit:
    """Weights of a precision that are read and multiplied at the machine's speed."""

    weights: int
    size: int  # their bytes
    bandwidth: float  # bytes a second
    peak: float  # operations a second

    @classmethod
    def measure(cls, weights: int, device: torch.device, dtype: str) -> Limit:
        size = weights * BYTES[dtype]
        # The weights of a small model stay in the cache, which is faster than memory. Starting the
        # sum takes time, too: what can be read of more is possible for less, so the best counts.
        sizes = (size, 2 * size, 4 * size, 2**28)
        speed = max(bandwidth(n, device) for n in sizes if n >= size)
        return cls(weights, size, speed, best_peak(device, dtype))

    def seconds(self, rows: int, other: float = 0.0) -> float:
        """The least time for so many rows at once, with other operations beside."""
        return max(self.size / self.bandwidth, (2 * self.weights * rows + other) / self.peak)

    def __str__(self) -> str:
        return (
            f"{self.size / 1e6:,.1f} MB at {self.bandwidth / 1e9:,.0f} GB/s, "
            f"{self.peak / 1e9:,.0f} Gflop/s"
        )


def weights_of_a_step(config: ModelConfig) -> int:
    """Those that each step of a decoder needs: not those of the memory's keys and values, which
    are made once for a sentence, nor biases and norms, which are few."""
    d, width = config.d_model, config.heads * config.head_size
    cross = 2 * d * width if config.has_encoder else 0
    layer = 4 * d * width + cross + 2 * d * config.d_ff
    return config.decoder_layers * layer + config.vocabulary_size * d


def decoding_limit(limit: Limit, batch: int, beam: int, steps: int) -> float:
    """Target tokens a second, if nothing but the decoder's steps took time. In the first step a
    sentence has but one hypothesis."""
    seconds = limit.seconds(batch) + (steps - 1) * limit.seconds(batch * beam)
    return batch * steps / seconds


def best_peak(device: torch.device, dtype: str) -> float:
    """Operations a second; several times, since something else may run at one of them."""
    measure = peak_int8 if dtype == "int8" else partial(peak, dtype=getattr(torch, dtype))
    return best_seen(("peak", device.type, dtype), max(measure(device) for _ in range(5)))


def best_seen(what: tuple[str | int, ...], value: float) -> float:
    """The best that this process has measured: what was possible once is possible."""
    BEST[what] = max(value, BEST.get(what, 0.0))
    return BEST[what]


def peak_int8(device: torch.device) -> float:
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
    """Bytes a second that a sum over so many reads. There and back again: what is read last and
    then first is still in the cache, of which a program may make use as well."""
    values = torch.ones(size // 4, device=device)
    there, calls, best = values.chunk(8), 10, 0.0
    ways = there, there[::-1]
    for back in (False, True) * 3:
        synchronise(device)
        start = time.perf_counter()
        for call in range(calls):
            for part in ways[call % 2] if back else (values,):
                part.sum()
        synchronise(device)
        best = max(best, calls * values.nbytes / (time.perf_counter() - start))
    return best_seen(("bandwidth", device.type, size), best)
