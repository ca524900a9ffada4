"""Exercises: made-up sequences with something to be told at some of their positions, practised by
the real model with the real trainer.

What a layer can learn is seen best where the answer is known to be there, at a distance one
chooses. An exercise is made anew from the row's seed each time it is asked for, so there is no end
of them and none to learn by heart; like every batch it is a pure function of seed and step.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config.model import ModelConfig
from regard.config.sections import Config
from regard.device import synchronise
from regard.model.transformer import Transformer
from regard.tasks.batches import packed
from regard.tasks.task import Ids
from regard.training.distributed import Processes
from regard.training.losses import Batch, Loss, token_loss
from regard.training.progress import Progress
from regard.training.trainer import Trainer

EXAMPLES = 4096  # lengths in the round from which rows are filled; their content never repeats


class Exercise(NamedTuple):
    tokens: Ids  # [n]
    where: Ids  # [t]: the positions that have something to tell
    answers: Ids  # [t]: the token that each of them should tell


Make = Callable[[np.random.Generator, int], Exercise]  # of a given length


@dataclass(frozen=True)
class Lengths:
    """All that the trainer knows of the examples before they are made."""

    lengths: list[NDArray[np.int64]]
    fingerprint: str


class Drill:
    """A task whose examples are made when they are asked for."""

    name: ClassVar[str] = "drill"
    counted: ClassVar[int] = 0

    def __init__(self, make: Make) -> None:
        self.make = make

    def sizes(self, store: Lengths) -> list[NDArray[Any]]:
        return store.lengths

    def batch(self, store: Lengths, examples: Ids, device: torch.device, seed: int) -> Batch:
        return self.exercises(store.lengths[0][examples], device, np.random.default_rng(seed))

    def exercises(self, lengths: Ids, device: torch.device, random: np.random.Generator) -> Batch:
        made = [self.make(random, int(length)) for length in lengths]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        where = np.concatenate([one.where + at for one, at in zip(made, starts, strict=True)])
        answers = np.concatenate([one.answers for one in made])
        return Batch(
            packed([one.tokens for one in made], device), None,
            torch.from_numpy(answers).to(device), torch.from_numpy(where).to(device),
        )  # fmt: skip

    @property
    def loss(self) -> Loss:
        return token_loss

    @torch.no_grad()
    def accuracy(self, model: Transformer, length: int, count: int, seed: int) -> float:
        """How much of `count` exercises of this length is told right."""
        model.eval()
        device, random = model.output_matrix().device, np.random.default_rng([seed, length])
        right = total = 0
        at_once = max(1, 65_536 // length)
        for first in range(0, count, at_once):
            lengths = np.full(min(at_once, count - first), length)
            batch = self.exercises(lengths, device, random)
            assert batch.source is not None
            hidden = model.hidden(batch.source)[batch.where]  # [t, D]
            told = model.head(hidden, batch.source, model.output_matrix()).argmax(-1)
            right, total = right + int((told == batch.labels).sum()), total + batch.tokens
        return right / total


@dataclass
class Practised:
    model: Transformer
    steps: int
    seconds: float  # of training steps alone
    tokens: int


def exercise_model(options: dict[str, Any]) -> ModelConfig:
    """A small encoder that tells tokens; pre-norm, without dropout."""
    defaults: dict[str, Any] = {
        "style": "encoder", "encoder_layers": 2, "d_model": 64, "heads": 4, "d_ff": 128,
        "norm_first": True, "dropout": 0.0,
    }  # fmt: skip
    return ModelConfig.from_dict(defaults | options)


def practise(
    model: ModelConfig,
    make: Make,
    lengths: Sequence[int],
    *,
    seconds: float = float("inf"),
    steps: int = 1_000_000,
    training: dict[str, Any] | None = None,
    device: str = "auto",
    seed: int = 1,
    start: Transformer | None = None,
    watch: Callable[[Practised], bool | None] | None = None,
) -> Practised:
    """Train on exercises of these lengths until the time is over or the steps are done.

    training: options of the section `training`, as everywhere.
    start: a model that goes on learning; none: a new one.
    watch: called after every step; what it takes is not counted as training; True ends it.
    """
    options = {
        "batch_tokens": max(2048, max(lengths)), "learning_rate": 1e-3, "warmup": 50,
        "schedule": "constant", "dtype": "float32", **(training or {}), "seed": seed,
    }  # fmt: skip
    config = replace(Config.build("fill", "tiny", {"training": options}), model=model)
    mixed = np.resize(np.asarray(lengths, dtype=np.int64), EXAMPLES)
    store = Lengths([mixed], f"drill {sorted(lengths)}")
    processes, progress = Processes(device), Progress(steps, quiet=True)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            config, Path(folder), start or Transformer(model), Drill(make), store, processes,
            progress, None,
        )  # fmt: skip
        progress.pause()  # its clock starts
        done = Practised(trainer.model, 0, 0.0, 0)
        while done.steps < steps and done.seconds < seconds:
            began = time.perf_counter()
            trainer.step()
            synchronise(processes.device)
            done.seconds += time.perf_counter() - began
            done.tokens += int(trainer.sizes[0][trainer.rows[done.steps]].sum())
            done.steps += 1
            if watch is not None and watch(done):
                break
    return done
