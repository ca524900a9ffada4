"""What `regard lab path` and `regard lab recall` have in common: the kinds of layer, the model they
are put into, and how long it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch

from regard.config.model import ModelConfig
from regard.config.parameters import closed_form
from regard.console import make_console, make_progress
from regard.errors import InputError
from regard.lab.drill import exercise_model, practise
from regard.lab.gradients import AT_ONCE
from regard.lab.kinds import check_kinds, kinds, title
from regard.lab.lessons import (
    QUESTIONS,
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
from regard.lab.trainings import check_budget, check_seeds
from regard.model.transformer import Transformer
from regard.training.distributed import choose_device

HEADS = 4
ASKED = 65_536  # tokens that drill.py asks at once, where they are of many sequences


@dataclass(frozen=True)
class School:
    """Models that differ in the kind of layer alone."""

    kinds: Sequence[str]
    layers: int
    d_model: int
    window: int
    kernel: int
    seconds: float | None  # of training, for each model; or
    steps: int | None
    seeds: Sequence[int]
    device: str

    def check(self, farthest: int, sequences: int, what: str) -> None:
        """Refuse what cannot be trained so far back, or have the gradients of so many sequences
        measured; `what` is the option that asks for it."""
        check_kinds(self.kinds)
        check_seeds(self.seeds)
        if self.d_model < HEADS or self.d_model % HEADS:
            raise InputError(f"--d-model must be a multiple of {HEADS}, not {self.d_model}")
        check_budget(self.seconds, self.steps)
        where = choose_device(self.device)
        longest = farthest + 1 + self.before(farthest)
        sizes = f"{what} with --layers {self.layers}, --d-model {self.d_model}"
        if not {"convolution", "dilated"}.isdisjoint(self.kinds):
            sizes += f", --kernel {self.kernel}"
        refuse(self.needed_memory(longest, sequences, where), where, sizes)

    def models(self) -> Iterator[tuple[int, str]]:
        """(seed, kind): all kinds, again and again, so that a machine that is busy for a while is
        not unfair to one of them."""
        return product(self.seeds, self.kinds)

    def needed_memory(self, longest: int, sequences: int, device: torch.device) -> float:
        """Bytes, as they were measured, of the kind that needs most: its weights with gradients and
        Adam's two moments; and what layers keep for the way back in a training step, or of the
        sequences whose gradients are measured in float64; or what one layer works with when all
        questions of a distance are asked. All models stay until the end."""
        asked = max(longest, min(ASKED, QUESTIONS * longest))  # tokens at once
        measured = max(longest, min(AT_ONCE, sequences * longest))
        kept, most = 0.0, 0.0
        for name in self.kinds:
            weights = sum(part.parameters for part in closed_form(self.config(name)).values())
            # Numbers for each feature of a token: a convolution has its k neighbours beside it.
            near = self.kernel if name in ("convolution", "dilated") else 0
            keeps = 90 if name in ("lstm", "gru") else 25 + near
            training = 4 * (keeps * self.layers + 5 * near) * row_tokens(longest)
            asking = 4 * (25 + 3 * near) * asked
            gradients = 8 * (25 * self.layers + 5 * near) * measured
            needed = 20.0 * weights + self.d_model * max(training, asking, gradients)
            if device.type == "cuda" and name == "attention":
                # No lean kernel of attention takes float64 there: every layer keeps its matrix.
                needed += 8 * HEADS * (self.layers + 1) * longest * measured
            kept, most = kept + 4.0 * weights * len(self.seeds), max(most, needed)
        return kept + most

    def config(self, name: str) -> ModelConfig:
        return exercise_model({
            "vocabulary_size": VOCABULARY, "encoder_layers": self.layers, "heads": HEADS,
            "d_model": self.d_model, "d_ff": 2 * self.d_model,
            **kinds(self.window, self.kernel)[name],
        })  # fmt: skip

    def title(self, name: str) -> str:
        return title(name, self.window, self.kernel)

    def new_model(self, name: str, seed: int) -> Transformer:
        """Padded attention on every device: others would compile while the clock runs."""
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
        console = make_console(stderr=True, quiet=quiet)
        self.progress = make_progress(console, disable=quiet)
        self.by_time = school.seconds is not None
        each = school.seconds if school.seconds is not None else school.steps
        self.task = self.progress.add_task(
            "", total=len(school.kinds) * len(school.seeds) * (each or 0)
        )

    def name(self, text: str) -> None:
        self.progress.update(self.task, description=text)

    def advance(self, seconds: float, steps: int) -> None:
        self.progress.advance(self.task, seconds if self.by_time else steps)

    def say(self, text: str) -> None:
        self.progress.console.print(text, soft_wrap=True)
