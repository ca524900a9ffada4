"""Scores of the checkpoints of a training, and its speed."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from regard.files import new_folder
from regard.predictor.loading import load
from regard.tasks.evaluation import read_examples
from regard.training.checkpoint import FILES, Checkpoints

PAPER = 2.5e9  # target tokens of the paper's base model: 100,000 steps of 25,000


def score(folder: Path, files: list[Path], device: str) -> dict[str, Any]:
    """The scores of `regard evaluate`, without intervals, which take long."""
    model = load(folder, device, "float32")
    evaluation = model.evaluate_examples(read_examples(model.task, files, model.config))
    return {**evaluation.scores, "examples": evaluation.count}


def at_step(run: Path, step: int) -> Path:
    """A model folder with the weights of a checkpoint."""
    folder = run / "at" / f"step-{step}"
    if not folder.is_dir():
        with new_folder(folder) as new:
            for path in run.iterdir():
                if path.is_file() and path.suffix in (".yaml", ".json", ".md"):
                    shutil.copy(path, new)
            shutil.copy(Checkpoints(run).path(step) / FILES[0], new / "model.safetensors")
    return folder


def last_step(run: Path) -> int:
    return Checkpoints(run).steps()[-1]


def point(run: Path, step: int, files: list[Path], device: str) -> dict[str, Any]:
    """The scores of a checkpoint and the training time up to it."""
    seconds = Checkpoints(run).check(step)["seconds"]
    folder = at_step(run, step)
    scores = score(folder, files, device)
    shutil.rmtree(folder)
    return {"step": step, "seconds": round(seconds, 1), **scores}


def speed(run: Path) -> float:
    """Tokens per second: the median over the metrics file."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return statistics.median(row["tokens_per_second"] for row in rows if "tokens_per_second" in row)
