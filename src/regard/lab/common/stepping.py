"""How long a training step takes: the trainer's own, of several models in turns.

One after the other again and again, so that a machine that is busy for a while is unfair to none
of them; what counts is the median.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from regard.config.sections import Config
from regard.device import synchronise
from regard.model.transformer import Transformer
from regard.tasks.task import Task
from regard.text.store import Store
from regard.training.distributed import Processes
from regard.training.progress import Progress
from regard.training.trainer import Trainer

Step = tuple[float, int, int]  # seconds, examples, targets


def time_steps(
    models: Sequence[tuple[Config, Task]], store: Store, device: str, warm: int, steps: int
) -> list[list[Step]]:
    """For each model its steps, after some that are not counted, on the rows that training begins
    with; nothing of it is kept."""
    processes = Processes(device)
    found: list[list[Step]] = [[] for _ in models]
    with tempfile.TemporaryDirectory() as folder:
        trainers = []
        for config, task in models:
            progress = Progress(warm + steps, quiet=True)
            progress.pause()  # its clock starts
            model = Transformer(config.model)
            trainers.append(
                Trainer(config, Path(folder), model, task, store, processes, progress, None)
            )
        for step in range(warm + steps):
            for (config, task), trainer, times in zip(models, trainers, found, strict=True):
                count = config.training.accumulate
                rows = [trainer.rows[row] for row in range(step * count, (step + 1) * count)]
                began = time.perf_counter()
                trainer.step()
                synchronise(processes.device)
                seconds = time.perf_counter() - began
                if step >= warm:
                    told = sum(task.batch(store, row, torch.device("cpu")).tokens for row in rows)
                    times.append((seconds, sum(map(len, rows)), told))
    return found
