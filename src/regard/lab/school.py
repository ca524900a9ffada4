"""What `regard lab path` and `regard lab recall` have in common: the kinds of layer, the model they
are put into, and how long it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from regard.errors import InputError
from regard.lab.drill import exercise_model, practise
from regard.lab.kinds import check_kinds, kinds, title
from regard.lab.lessons import (
    TRAINING,
    VOCABULARY,
    Learned,
    exercises,
    learn,
    lesson_distances,
    row_tokens,
    tokens_before,
)
from regard.lab.memory import refuse
from regard.lab.trainings import check_seeds
from regard.model.config import ModelConfig
from regard.model.transformer import Transformer
from regard.training.processes import choose_device

HEADS = 4


@dataclass(frozen=True)
class School:
    """Models that differ in the kind of layer alone."""

    mixers: Sequence[str]
    layers: int
    d_model: int
    window: int
    kernel: int
    seconds: float | None  # of training, for each model; or
    steps: int | None
    seeds: Sequence[int]
    device: str

    def check(self, longest: int, what: str) -> None:
        """Refuse what cannot be trained; `what` says which option asks for sequences so long."""
        check_kinds(self.mixers)
        check_seeds(self.seeds)
        for option in ("layers", "window", "kernel"):
            if getattr(self, option) < 1:
                raise InputError(f"--{option} must be at least 1, not {getattr(self, option)}")
        if self.d_model < HEADS or self.d_model % HEADS:
            raise InputError(f"--d-model must be a multiple of {HEADS}, not {self.d_model}")
        if self.seconds is not None and self.steps is not None:
            raise InputError("--seconds and --steps exclude each other")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise InputError(f"--seconds must be above 0, not {self.seconds:g}")
        if self.steps is not None and self.steps < 1:
            raise InputError(f"--steps must be at least 1, not {self.steps}")
        for seed in self.seeds:
            if seed < 0:
                raise InputError(f"--seed must be at least 0, not {seed}")
        where = choose_device(self.device)
        refuse(self.needed_memory(longest, where), where, what)

    def models(self) -> Iterator[tuple[int, str]]:
        """(seed, kind): all kinds, again and again, so that a machine that is busy for a while is
        not unfair to one of them."""
        return product(self.seeds, self.mixers)

    def needed_memory(self, longest: int, device: torch.device) -> float:
        """Bytes of a training step on the longest sequences, as it was measured: what layers keep
        for the way back. Gradients of one such sequence in float64 need as many, and on a GPU the
        whole matrix of attention with them, for which there is no lean kernel."""
        keeps = max(90 if name in ("lstm", "gru") else 25 for name in self.mixers) * self.d_model
        needed = 4.0 * keeps * self.layers * row_tokens(longest)
        if device.type == "cuda" and "attention" in self.mixers:
            needed += 3.0 * 8 * HEADS * longest**2
        return needed

    def config(self, name: str) -> ModelConfig:
        return exercise_model({
            "vocabulary_size": VOCABULARY, "encoder_layers": self.layers, "heads": HEADS,
            "d_model": self.d_model, "d_ff": 2 * self.d_model,
            **kinds(self.window, self.kernel)[name],
        })  # fmt: skip

    def title(self, name: str) -> str:
        return title(name, self.window, self.kernel)

    def new_model(self, name: str, seed: int) -> Transformer:
        """Padded attention on every device: flex would compile while the clock runs."""
        torch.manual_seed(seed)
        return Transformer(self.config(name), "padded")

    def before(self, farthest: int) -> int:
        return tokens_before(self.layers, self.kernel, farthest)

    def teach(self, name: str, seed: int, farthest: int, asked: Sequence[int], bar: Bar) -> Learned:
        """A new model after all its lessons."""
        distances, before = lesson_distances(farthest, asked), self.before(farthest)
        config, model = self.config(name), self.new_model(name, seed)
        if seed == self.seeds[0]:  # what is slow for the first time only is not counted
            practise(
                config, exercises(before), [distance + 1 + before for distance in distances],
                steps=2, training={"batch_tokens": row_tokens(farthest + 1 + before), **TRAINING},
                device=self.device, seed=seed, start=self.new_model(name, seed),
            )  # fmt: skip
        learned = learn(
            config, distances, before, seconds=self.seconds or math.inf,
            steps=self.steps or 1_000_000, device=self.device, seed=seed, start=model,
            tick=bar.advance,
        )  # fmt: skip
        far = max(learned.passed, default=0)
        said = f"learned up to {far} back" if far else "learned no distance"
        bar.say(f"{self.title(name)}, seed {seed}: {learned.steps} steps, {said}")
        return learned

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"device": choose_device(self.device).type, "heads": HEADS}


class Bar:
    """How far all trainings are, on standard error."""

    def __init__(self, school: School, quiet: bool) -> None:
        console = Console(stderr=True, highlight=False, quiet=quiet)
        self.progress = Progress(console=console, transient=True, disable=quiet)
        self.by_time = school.seconds is not None
        each = school.seconds if school.seconds is not None else school.steps
        self.task = self.progress.add_task(
            "", total=len(school.mixers) * len(school.seeds) * (each or 0)
        )

    def name(self, text: str) -> None:
        self.progress.update(self.task, description=text)

    def advance(self, seconds: float, steps: int) -> None:
        self.progress.advance(self.task, seconds if self.by_time else steps)

    def say(self, text: str) -> None:
        self.progress.console.print(text, markup=False, soft_wrap=True)
