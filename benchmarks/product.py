"""Matrix products with few rows, as in a decoding step: F.linear and the product of regard.

The matrices rotate, so that each is read from memory, as in a real step, where all layers take
turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.ops import linear

BYTES = 1e8  # of all matrices of one shape together: larger than any cache


def seconds(call: Callable[[Tensor], Tensor], matrices: list[Tensor], repeats: int) -> float:
    """The median time of a call."""
    times = []
    for i in range(repeats + 3):  # three calls of warm-up
        start = time.perf_counter()
        call(matrices[i % len(matrices)])
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:])


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks product", description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 32, 128])
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args(arguments)
    print("matrix            rows   F.linear     regard   faster    read at")
    for size, width in ((37_000, 512), (2048, 512), (512, 2048), (10_000, 128), (128, 512)):
        count = max(2, int(BYTES / (4 * size * width)))
        matrices = [torch.randn(size, width) for _ in range(count)]
        for rows in options.rows:
            x = torch.randn(rows, width)
            with torch.no_grad():
                theirs = seconds(partial(F.linear, x), matrices, options.repeats)
                ours = seconds(partial(linear, x), matrices, options.repeats)
                error = (linear(x, matrices[0]) - F.linear(x, matrices[0])).abs().max()
            assert error < 1e-2, error
            print(
                f"{size:6,} x {width:5,} {rows:6} {theirs * 1e6:8,.0f} us {ours * 1e6:7,.0f} us "
                f"{theirs / ours:7.2f}x {4 * size * width / ours / 1e9:5.0f} GB/s"
            )
