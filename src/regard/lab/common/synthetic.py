"""Synthetic tasks: generated sequences with a known target at some of their positions, learned by
the real model with the real trainer.

They show what a layer can learn, because the needed information is at a known distance.
Examples are generated from the seed of their batch, so that they never repeat and cannot be
memorised; like every batch, a batch of them is a pure function of seed and step.
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
from regard.device import synchronise
from regard.model.transformer import Transformer
from regard.tasks.batches import packed
from regard.tasks.configuration import make_config
from regard.tasks.task import Ids
from regard.training.distributed import Processes
from regard.training.losses import Batch, token_loss
from regard.training.progress import Progress
from regard.training.trainer import Trainer

EXAMPLES = 4096  # lengths in one epoch of batches; the content of examples never repeats
AT_ONCE = 65_536  # tokens of a test


class Example(NamedTuple):
    tokens: Ids  # [n]
    where: Ids  # [t]: the positions that have a target
    targets: Ids  # [t]


Generate = Callable[[np.random.Generator, int], Example]  # an example of a given length


class Lengths(NamedTuple):
    """What the trainer needs to know of examples before they are generated."""

    lengths: list[NDArray[np.int64]]
    fingerprint: str


class SyntheticTask:
    """A task whose examples are generated on demand."""

    name: ClassVar[str] = "synthetic"
    counted: ClassVar[int] = 0
    loss = staticmethod(token_loss)

    def __init__(self, generate: Generate) -> None:
        self.generate = generate

    def sizes(self, store: Lengths) -> list[NDArray[Any]]:
        return store.lengths

    def batch(self, store: Lengths, examples: Ids, device: torch.device, seed: int) -> Batch:
        return self.make_batch(store.lengths[0][examples], device, np.random.default_rng(seed))

    def make_batch(self, lengths: Ids, device: torch.device, random: np.random.Generator) -> Batch:
        examples = [self.generate(random, int(length)) for length in lengths]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        where = np.concatenate(
            [example.where + at for example, at in zip(examples, starts, strict=True)]
        )
        targets = np.concatenate([example.targets for example in examples])
        return Batch(
            packed([example.tokens for example in examples], device), None,
            torch.from_numpy(targets).to(device), torch.from_numpy(where).to(device),
        )  # fmt: skip

    @torch.no_grad()
    def accuracy(self, model: Transformer, length: int, count: int, seed: int) -> float:
        """The share of correct predictions on `count` examples of this length."""
        model.eval()
        device, random = model.output_matrix().device, np.random.default_rng([seed, length])
        correct = total = 0
        at_once = max(1, AT_ONCE // length)
        for first in range(0, count, at_once):
            lengths = np.full(min(at_once, count - first), length)
            batch = self.make_batch(lengths, device, random)
            assert batch.source is not None
            hidden = model.hidden(batch.source)[batch.where]  # [t, D]
            predicted = model.head(hidden, batch.source, model.output_matrix()).argmax(-1)
            correct += int((predicted == batch.labels).sum())
            total += batch.tokens
        return correct / total


@dataclass
class TrainedModel:
    model: Transformer
    steps: int = 0
    seconds: float = 0.0  # of training steps alone


def small_encoder(options: dict[str, Any]) -> ModelConfig:
    """A small encoder that predicts tokens; pre-norm, without dropout."""
    defaults: dict[str, Any] = {
        "style": "encoder", "encoder_layers": 2, "d_model": 64, "heads": 4, "d_ff": 128,
        "norm_first": True, "dropout": 0.0,
    }  # fmt: skip
    return ModelConfig.from_dict(defaults | options)


def train_synthetic(
    config: ModelConfig,
    generate: Generate,
    lengths: Sequence[int],
    *,
    seconds: float | None = None,
    steps: int | None = None,
    training: dict[str, Any] | None = None,
    device: str = "auto",
    seed: int = 1,
    start: Transformer | None = None,
    after_step: Callable[[TrainedModel], bool | None] | None = None,
) -> TrainedModel:
    """Train on examples of these lengths, in equal shares, for a time or a number of steps.

    training: options of the section `training`. start: a model whose training continues.
    after_step: called after every step; its time does not count; True ends the training.
    """
    options = {
        "batch_tokens": max(2048, max(lengths)), "learning_rate": 1e-3, "warmup": 50,
        "schedule": "constant", "dtype": "float32", **(training or {}), "seed": seed,
    }  # fmt: skip
    whole = replace(make_config("fill", "tiny", {"training": options}), model=config)
    mixed = np.resize(np.asarray(lengths, dtype=np.int64), EXAMPLES)
    # The order of batches depends on the fingerprint: with another text, results would change.
    store = Lengths([mixed], f"drill {sorted(lengths)}")
    limit = 1_000_000 if steps is None else steps
    processes, progress = Processes(device), Progress(limit, quiet=True)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            whole, Path(folder), start or Transformer(config), SyntheticTask(generate), store,
            processes, progress, None,
        )  # fmt: skip
        progress.pause()  # starts its clock
        trained = TrainedModel(trainer.model)
        while trained.steps < limit and (seconds is None or trained.seconds < seconds):
            began = time.perf_counter()
            trainer.step()
            synchronise(processes.device)
            trained.seconds += time.perf_counter() - began
            trained.steps += 1
            if after_step is not None and after_step(trained):
                break
    return trained
