"""The models that `regard lab path` and `regard lab recall` train: one for each kind of layer and
seed, equal in everything else. They learn to recall a token.

The task: a marked token, then n - 1 others, then a query for the marked token. The marked token is
written in a second alphabet of the same symbols, so that its content identifies it: a layer needs
no arithmetic of positions, only a path.

The curriculum: a model starts with the token before the last and goes on to twice the distance
whenever 95% of its predictions are correct; the shorter distances stay among the examples so that
they are not forgotten. From long distances alone a recurrent model learns nothing, because its
gradient vanishes on the way, and its steps on long sequences are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch

from regard.config.model import ModelConfig
from regard.config.parameters import closed_form
from regard.console import make_console, make_progress
from regard.device import choose_device
from regard.errors import InputError
from regard.lab.common import synthetic
from regard.lab.common.gradients import AT_ONCE
from regard.lab.common.layer_kinds import check_layer_kinds, layer_options, layer_title
from regard.lab.common.memory import check_memory
from regard.lab.common.synthetic import Example, Generate, TrainedModel, train_synthetic
from regard.lab.common.training import check_budget, check_seeds
from regard.model.transformer import Transformer

SYMBOLS = 16
QUERY, VOCABULARY = 2 * SYMBOLS, 2 * SYMBOLS + 1
CHANCE = 1 / SYMBOLS
PASS, CHECK = 0.95, 5  # accuracy needed for the next distance; steps between two checks
# The best of 1e-3, 2e-3, 3e-3 and 5e-3 for attention, LSTM and GRU together, tried on one seed.
TRAINING = {"learning_rate": 3e-3, "warmup": 10, "label_smoothing": 0.0}
QUESTIONS = 128  # test examples of one length, at most
BATCH_TOKENS = 1024  # of a training step, unless two of the longest sequences need more
HEADS = 4

Advance = Callable[[float, int], None]  # called with seconds and steps since the last call


def recall_example(random: np.random.Generator, length: int, distance: int) -> Example:
    """A sequence whose last token queries the one `distance` before it."""
    tokens = random.integers(SYMBOLS, size=length)
    marked = length - 1 - distance
    target = tokens[marked]
    tokens[marked] += SYMBOLS
    tokens[-1] = QUERY
    return Example(tokens, np.array([length - 1]), np.array([target]))


def recall_examples(before: int) -> Generate:
    """Examples with `before` tokens before the marked one: the length determines the distance."""
    return lambda random, length: recall_example(random, length, length - 1 - before)


def tokens_before(layers: int, kernel: int, farthest: int) -> int:
    """The number of tokens before the marked one. A dilated convolution reaches some places only by
    going (k^(L-1) - 1) / 2 too far and back again, so these places must exist."""
    return min(kernel ** (layers - 1) // 2, farthest)


def curriculum_distances(farthest: int, extra: Sequence[int] = ()) -> list[int]:
    """1, 2, 4, ... up to the farthest, and the extra ones."""
    return sorted({*(2**i for i in range(farthest.bit_length())), *extra, farthest})


def batch_tokens(longest: int) -> int:
    return max(BATCH_TOKENS, 2 * longest)


@dataclass
class RecallModel(TrainedModel):
    learned: dict[int, float] = field(default_factory=dict)  # distance: seconds until learned


def train_recall(
    start: Transformer,
    distances: Sequence[int],
    before: int,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    device: str = "auto",
    seed: int = 1,
    advance: Advance | None = None,
) -> RecallModel:
    """Train on one distance after the other until the time is over or the steps are done. Once
    all distances are learned, training continues on examples of all of them."""
    generate = recall_examples(before)
    task, total = synthetic.SyntheticTask(generate), RecallModel(start)
    while (seconds is None or total.seconds < seconds) and (steps is None or total.steps < steps):
        stage = len(total.learned)
        lengths = [distance + 1 + before for distance in distances[: stage + 1]]
        reported = 0.0

        def after_step(now: TrainedModel, stage: int = stage, longest: int = lengths[-1]) -> bool:
            nonlocal reported
            if advance is not None:
                advance(now.seconds - reported, 1)
            reported = now.seconds
            if stage == len(distances) or now.steps % CHECK:
                return False
            count = max(20, min(100, 4096 // longest))
            passed = task.accuracy(now.model, longest, count, seed + now.steps) >= PASS
            if passed:
                total.learned[distances[stage]] = total.seconds + now.seconds
            return passed

        trained = train_synthetic(
            start.config, generate, lengths,
            seconds=None if seconds is None else seconds - total.seconds,
            steps=None if steps is None else steps - total.steps,
            training={"batch_tokens": batch_tokens(lengths[-1]), **TRAINING},
            device=device, seed=1000 * seed + stage, start=total.model, after_step=after_step,
        )  # fmt: skip
        total.model = trained.model
        total.steps, total.seconds = total.steps + trained.steps, total.seconds + trained.seconds
    return total


@dataclass(frozen=True)
class RecallTraining:
    """Models that differ only in the kind of layer, and how long each is trained."""

    kinds: Sequence[str]
    layers: int
    d_model: int
    window: int
    kernel: int
    seconds: float | None  # of training for each model, or
    steps: int | None
    seeds: Sequence[int]
    device: str

    @property
    def budget(self) -> str:
        return f"{self.steps} steps" if self.seconds is None else f"{self.seconds:g} s"

    def check(self, farthest: int, sequences: int, request: str) -> None:
        """Refuse settings that are wrong or that do not fit into memory.

        farthest: the longest distance. sequences: the number of those whose gradients are measured.
        request: the option that determines both, for the error message.
        """
        check_layer_kinds(self.kinds)
        check_seeds(self.seeds)
        if self.d_model < HEADS or self.d_model % HEADS:
            raise InputError(f"--d-model must be a multiple of {HEADS}, not {self.d_model}")
        check_budget(self.seconds, self.steps)
        device = choose_device(self.device)
        longest = farthest + 1 + self.before(farthest)
        sizes = f"{request} with --layers {self.layers}, --d-model {self.d_model}"
        if not {"convolution", "dilated"}.isdisjoint(self.kinds):
            sizes += f", --kernel {self.kernel}"
        check_memory(self.needed_memory(longest, sequences, device), device, sizes)

    def needed_memory(self, longest: int, sequences: int, device: torch.device) -> float:
        """Bytes that the largest model needs, with factors that were measured: its weights with
        gradients and Adam's two moments, and the largest of the activations of a training step, of
        a test, and of the sequences whose gradients are measured in float64. All models stay in
        memory until the end."""
        tested = max(longest, min(synthetic.AT_ONCE, QUESTIONS * longest))  # tokens at once
        measured = max(longest, min(AT_ONCE, sequences * longest))
        permanent, peak = 0.0, 0.0
        for name in self.kinds:
            weights = sum(part.parameters for part in closed_form(self.config(name)).values())
            # Numbers for each feature of a token: a convolution also has its k neighbours.
            near = self.kernel if name in ("convolution", "dilated") else 0
            keeps = 90 if name in ("lstm", "gru") else 25 + near
            training = 4 * (keeps * self.layers + 5 * near) * batch_tokens(longest)
            testing = 4 * (25 + 3 * near) * tested
            gradients = 8 * (25 * self.layers + 5 * near) * measured
            needed = 20.0 * weights + self.d_model * max(training, testing, gradients)
            if device.type == "cuda" and name == "attention":
                # No efficient kernel there supports float64: every layer keeps its n x n matrix.
                needed += 8 * HEADS * (self.layers + 1) * longest * measured
            permanent, peak = permanent + 4.0 * weights * len(self.seeds), max(peak, needed)
        return permanent + peak

    def config(self, name: str) -> ModelConfig:
        return synthetic.small_encoder({
            "vocabulary_size": VOCABULARY, "encoder_layers": self.layers, "heads": HEADS,
            "d_model": self.d_model, "d_ff": 2 * self.d_model,
            **layer_options(self.window, self.kernel)[name],
        })  # fmt: skip

    def title(self, name: str) -> str:
        return layer_title(name, self.window, self.kernel)

    def new_model(self, name: str, seed: int) -> Transformer:
        """A model with padded attention: other backends would compile kernels in training time."""
        torch.manual_seed(seed)
        return Transformer(self.config(name), "padded")

    def before(self, farthest: int) -> int:
        return tokens_before(self.layers, self.kernel, farthest)

    def train_all(
        self, farthest: int, extra: Sequence[int], quiet: bool
    ) -> Iterator[tuple[int, str, RecallModel]]:
        """Train all models on distances 1, 2, 4, ... `farthest` and the extra ones; yields (seed,
        kind, trained model). The kinds take turns, so that a temporarily busy machine slows all of
        them."""
        each = self.steps if self.seconds is None else self.seconds
        with make_progress(make_console(stderr=True, quiet=quiet), disable=quiet) as bar:
            bar_task = bar.add_task("", total=len(self.kinds) * len(self.seeds) * (each or 0))

            def advance(seconds: float, steps: int) -> None:
                bar.advance(bar_task, steps if self.seconds is None else seconds)

            for seed, name in product(self.seeds, self.kinds):
                title = f"{self.title(name)}, seed {seed}"
                bar.update(bar_task, description=title)
                trained = self.train(name, seed, farthest, extra, advance)
                far = max(trained.learned, default=0)
                outcome = f"learned up to {far} back" if far else "learned no distance"
                bar.console.print(f"{title}: {trained.steps} steps, {outcome}", soft_wrap=True)
                yield seed, name, trained

    def train(
        self, name: str, seed: int, farthest: int, extra: Sequence[int], advance: Advance
    ) -> RecallModel:
        distances, before = curriculum_distances(farthest, extra), self.before(farthest)
        if seed == self.seeds[0]:  # a warm-up: what is slow only once is not counted
            train_synthetic(
                self.config(name), recall_examples(before),
                [distance + 1 + before for distance in distances], steps=2,
                training={"batch_tokens": batch_tokens(farthest + 1 + before), **TRAINING},
                device=self.device, seed=seed, start=self.new_model(name, seed),
            )  # fmt: skip
        return train_recall(
            self.new_model(name, seed), distances, before, seconds=self.seconds, steps=self.steps,
            device=self.device, seed=seed, advance=advance,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"device": choose_device(self.device).type, "heads": HEADS}
