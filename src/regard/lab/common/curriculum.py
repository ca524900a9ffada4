"""Lessons in recall: a token that is marked, then n - 1 others, then a query that must tell it.

The token to be told is written in a second alphabet of the same symbols, so that content says
which it is: a layer needs no arithmetic of positions, only a way back. A model starts with the
token before the last and goes on to twice the distance whenever it tells nineteen of twenty right,
with the shorter distances among the exercises so that they are not forgotten. From the far ones
alone recurrence learns nothing, its gradient is gone before it arrives; and its steps on long
sequences are slow. Lessons are the same for every kind of layer and let each go as far as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from regard.config.model import ModelConfig
from regard.lab.common.synthetic import Drill, Exercise, Make, Practised, practise
from regard.model.transformer import Transformer

SYMBOLS = 16
QUERY, VOCABULARY = 2 * SYMBOLS, 2 * SYMBOLS + 1
CHANCE = 1 / SYMBOLS
PASS, CHECK = 0.95, 5  # told right to go on; steps between two checks
# The best of 1e-3, 2e-3, 3e-3 and 5e-3 for attention, LSTM and GRU together, tried on one seed.
TRAINING = {"learning_rate": 3e-3, "warmup": 10, "label_smoothing": 0.0}
QUESTIONS = 128  # at most, of one length, when it is seen what was learned
ROW = 1024  # tokens of a training step, where two of the longest need no more

Tick = Callable[[float, int], None]  # what was done since the last time: seconds, steps


def exercise(random: np.random.Generator, length: int, distance: int) -> Exercise:
    """A sequence whose last token asks for the one `distance` before it."""
    tokens = random.integers(SYMBOLS, size=length)
    where = length - 1 - distance
    answer = tokens[where]
    tokens[where] += SYMBOLS
    tokens[-1] = QUERY
    return Exercise(tokens, np.array([length - 1]), np.array([answer]))


def exercises(before: int) -> Make:
    """With `before` tokens before the one to be told: a length says the distance."""
    return lambda random, length: exercise(random, length, length - 1 - before)


def tokens_before(layers: int, kernel: int, farthest: int) -> int:
    """A dilated convolution comes to some places only by going too far and back again; there must
    be tokens to go to: (k^(L-1) - 1) / 2 of them."""
    return min(kernel ** (layers - 1) // 2, farthest)


def lesson_distances(farthest: int, asked: Sequence[int] = ()) -> list[int]:
    """1, 2, 4, ... up to the farthest, and what is asked besides."""
    doubled = [2**i for i in range(farthest.bit_length())]
    return sorted({*doubled, *asked, farthest})


def row_tokens(longest: int) -> int:
    return max(ROW, 2 * longest)


@dataclass
class Learned:
    model: Transformer
    steps: int = 0
    seconds: float = 0.0  # of training steps
    passed: dict[int, float] = field(default_factory=dict)  # distance: seconds until it was learned


def learn(
    config: ModelConfig,
    distances: Sequence[int],
    before: int,
    *,
    seconds: float = float("inf"),
    steps: int = 1_000_000,
    device: str = "auto",
    seed: int = 1,
    start: Transformer,
    tick: Tick | None = None,
) -> Learned:
    """One lesson after the other until the time is over or the steps are done; where all lessons
    are learned before, exercises of all distances until then."""
    make = exercises(before)
    drill, learned = Drill(make), Learned(start)
    while learned.seconds < seconds and learned.steps < steps:
        lesson = len(learned.passed)
        lengths = [distance + 1 + before for distance in distances[: lesson + 1]]
        shown = 0.0

        def watch(done: Practised, lesson: int = lesson, goal: int = lengths[-1]) -> bool:
            nonlocal shown
            if tick is not None:
                tick(done.seconds - shown, 1)
            shown = done.seconds
            if lesson == len(distances) or done.steps % CHECK:
                return False
            some = max(20, min(100, 4096 // goal))
            passed = drill.accuracy(done.model, goal, some, seed + done.steps) >= PASS
            if passed:
                learned.passed[distances[lesson]] = learned.seconds + done.seconds
            return passed

        done = practise(
            config, make, lengths,
            seconds=seconds - learned.seconds, steps=steps - learned.steps,
            training={"batch_tokens": row_tokens(lengths[-1]), **TRAINING},
            device=device, seed=1000 * seed + lesson, start=learned.model, watch=watch,
        )  # fmt: skip
        learned.model = done.model
        learned.steps, learned.seconds = learned.steps + done.steps, learned.seconds + done.seconds
    return learned
