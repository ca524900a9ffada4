"""The end of a run: compare candidates for the final weights and write the best.

The file gets its final name last, after it has been read back and, if there is validation data,
evaluated. The scores in a model folder are therefore always those of its weights.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.sections import Config, DecodingConfig
from regard.errors import InputError, TrainingFailed
from regard.files import LARGEST_CARD, PREFIX, cache_folder, read_bounded, sync_folder, write_file
from regard.model.transformer import Transformer
from regard.text.sampler import BatchSampler
from regard.training.checkpoint import (
    Checkpoints,
    State,
    not_finite,
    read_tensors,
    snapshot,
    to_bytes,
)
from regard.training.metrics import append_metrics
from regard.training.model_folder import NAMES, file_checksums
from regard.training.names import BEST, CARD, WEIGHTS
from regard.training.objective import Say, Task
from regard.training.progress import Progress, describe, duration
from regard.training.trainer import OWN

SAMPLES = 3  # predictions shown at each validation
UNFINISHED = "- training has not ended"


class NoModel(TrainingFailed):
    """No weights of a run can be used, and resuming it would not help."""


class Validation:
    """Loss, the task's score and a few samples on held-out data."""

    def __init__(self, config: Config, task: Task, files: list[Path]) -> None:
        self.task = task
        self.store, _ = task.build(files, cache_folder(), config, True)
        self.examples = list(task.read(files, config))
        sizes = task.sizes(self.store)
        total = int(sizes[task.counted].sum())
        longest = max(int(side.max()) * total / int(side.sum()) for side in sizes)
        budget = max(config.training.batch_tokens, math.ceil(longest) + 1)
        self.rows = BatchSampler(sizes, budget, self.store.fingerprint, 0, counted=task.counted)
        # Greedy decoding is fast and sufficient for comparing the weights of one run.
        greedy = DecodingConfig(beam=1, max_length=config.decoding.max_length)
        self.config = replace(config, decoding=greedy)

    @torch.no_grad()
    def __call__(self, model: Transformer) -> dict[str, Any]:
        model.eval()
        device = model.output_matrix().device
        total, tokens, row = 0.0, 0, 0
        while self.rows.epoch_of(row) == 0:
            batch = self.task.batch(self.store, self.rows[row], device, 0)
            total += float(self.task.loss(model, batch)[1])
            tokens += batch.tokens
            row += 1
        loss = total / tokens
        scores, samples = self.task.from_loss(loss, self.store), list[str]()
        if scores is None:
            result = self.task.evaluate(model, self.examples, self.config)
            scores, samples = result.scores, result.samples[:SAMPLES]
        # A task without its usual score (embed with plain pairs) uses its first score.
        better = scores.get(self.task.better, next(iter(scores.values())))
        score = -loss if self.task.better == "loss" else better
        return {"loss": loss, **scores, "score": score, "samples": samples}


@dataclass
class EndedRun:
    """A run that has ended, or was interrupted, with the weights of its last step in `model`."""

    folder: Path
    config: Config
    model: Transformer
    state: State
    progress: Progress

    @property
    def checkpoints(self) -> Checkpoints:
        training = self.config.training
        return Checkpoints(self.folder, training.keep, training.checkpoint_every)


def finish(
    ended: EndedRun, validation: Validation | None, command: Sequence[str], force: bool
) -> dict[str, Any]:
    """Choose the final weights (last, best, or the mean of the last checkpoints), write them, and
    verify the written file. Returns the final scores."""
    run, model, state, say = ended.folder, ended.model, ended.state, ended.progress.say
    choices = candidates(ended, force)
    name, score = list(choices)[-1], {}
    if validation is not None:
        scores: dict[str, dict[str, Any]] = {}
        for candidate, weights in choices.items():
            model.load_state_dict(weights)
            scores[candidate] = validation(model)
            say(f"{candidate}: validation {describe(scores[candidate])}")
        name = max(scores, key=lambda key: (scores[key]["score"], -scores[key]["loss"]))
        score = scores[name]
        model.load_state_dict(choices[name])
    with staged_files(run, model, validation) as staged:
        written = staged / WEIGHTS
        write_file(written, to_bytes(choices[name], files=file_checksums(staged)))
        if validation is not None:
            score = evaluate_stored(written, score, model, validation, run)
        result = {k: v for k, v in score.items() if k not in OWN}
        summary = {"final": name, "seconds": round(state.seconds, 1), "dropped": state.dropped}
        append_metrics(run, state.step, {**summary, **result})
        end = [
            f"- trained {state.step:,} steps in {duration(state.seconds)}; final weights: {name}",
            *(f"- validation {key}: {value}" for key, value in result.items()),
        ]
        write_card(run / CARD, "\n".join(end), card(ended.config, command))
        install(staged, run)
    dropped = f", {state.dropped} steps dropped" if state.dropped else ""
    final = f"the {name}" if name.startswith("mean") else f"the {name} weights"
    time = f"{duration(state.seconds)} of training{dropped}"
    say(f"{run} is ready after {time}: its weights are {final}")
    return result


@contextmanager
def staged_files(run: Path, model: Transformer, validation: Validation | None) -> Iterator[Path]:
    """A temporary folder in the run folder with the files that belong to the final weights. Some
    tasks fit parameters at the end (classify: the temperature), which changes one of the files."""
    staged = run / f"{PREFIX}{os.getpid()}-final"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    try:
        for name in NAMES:
            if (run / name).exists():
                shutil.copyfile(run / name, staged / name)
        if validation is not None and validation.task.finish(model.eval(), validation.examples):
            validation.task.save(staged)
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def install(staged: Path, run: Path) -> None:
    """Move the final weights, and the files that changed with them, into the run folder.

    Two files cannot be replaced at once. Weights of an earlier end of the run are therefore removed
    first if another file changes: a process that is killed in between leaves an unfinished run,
    which can be used, and not weights with the files of other weights, which cannot.
    """
    before, after = file_checksums(run), file_checksums(staged)
    changed = [name for name in after if after[name] != before.get(name)]
    if changed:
        (run / WEIGHTS).unlink(missing_ok=True)
    for name in (*changed, WEIGHTS):
        os.replace(staged / name, run / name)
    sync_folder(run)


def candidates(ended: EndedRun, force: bool) -> dict[str, dict[str, Tensor]]:
    """The candidates for the final weights; they do not share memory."""
    run, say = ended.folder, ended.progress.say
    choices = {"last": snapshot(dict(ended.model.state_dict()))}
    steps = averaged_steps(ended, ended.state.step, force)
    if len(steps) > 1:
        choices[f"mean of {len(steps)} checkpoints"] = ended.checkpoints.average(steps)
    try:
        if (run / BEST).exists():
            choices["best"] = read_tensors(run / BEST)
    except InputError as error:
        without_damaged([str(error)], force, run, say)
    for name in [name for name, weights in choices.items() if not_finite(weights)]:
        say(f"the {name} weights contain NaN or infinity; continuing without them")
        del choices[name]
    if not choices:
        raise NoModel(
            f"the weights of {run} contain NaN or infinity: no model is written; train again with "
            "a lower training.learning_rate or a longer training.warmup"
        )
    return choices


def averaged_steps(ended: EndedRun, last: int, force: bool) -> list[int]:
    """The steps until now whose checkpoints will be averaged when the run ends at step `last`. A
    damaged checkpoint is an error; with `force`, it is left out of the mean."""
    average, checkpoints = ended.config.training.average, ended.checkpoints
    if average == 1:
        return []
    steps = checkpoints.averaged(average, last)
    damage = {s: checkpoints.damage(s) for s in steps if s <= ended.state.step}
    damaged = [text for text in damage.values() if text]
    if damaged:
        without_damaged(damaged, force, ended.folder, ended.progress.say)
    return [step for step, text in damage.items() if not text]


def without_damaged(damaged: list[str], force: bool, run: Path, say: Say) -> None:
    """Report damaged files that the final weights depend on; an error, unless `force` is set."""
    if not force:
        raise InputError(
            f"{damaged[0]}; without it the final weights of {run} may differ: restore it, or "
            "continue without it by resuming with force"
        )
    for text in damaged:
        say(f"{text}; continuing without it (force)")


def evaluate_stored(
    path: Path, chosen: dict[str, Any], model: Transformer, validation: Validation, run: Path
) -> dict[str, Any]:
    """The scores of the weights on the disk. Their loss must equal that of the chosen weights, up
    to a tolerance for sums in a different order."""
    model.load_state_dict(read_tensors(path))
    stored = validation(model)
    tolerance = 1e-4 if model.output_matrix().device.type == "cpu" else 1e-2
    losses = chosen["loss"], stored["loss"]
    if not math.isclose(*losses, rel_tol=tolerance) and not all(map(math.isnan, losses)):
        raise NoModel(
            f"{run}: the validation loss of the chosen weights is {losses[0]}, that of the written "
            f"weights {losses[1]}: no model is written; please report this as a bug"
        )
    return stored


def write_card(path: Path, end: str, new: str) -> None:
    """Write the results into the model card. If the run has ended before, the card is updated, and
    the user's own text is kept."""
    text = new
    if path.exists():
        text = read_bounded(path, LARGEST_CARD, "a model card").decode("utf-8", "surrogateescape")
    old = rf"^(?:{re.escape(UNFINISHED)}|- trained [\d,]+ steps in .*(?:\n- validation \w+: .*)*)$"
    text = re.sub(old, lambda _: end, text, count=1, flags=re.MULTILINE)
    write_file(path, text.encode("utf-8", "surrogateescape"))


def card(config: Config, command: Sequence[str]) -> str:
    """The model card at the start of training: data and command; `finish` adds the results."""
    origin = f"command: `{shlex.join(['regard', *command])}`" if command else "trained from Python"
    return "\n".join([
        f"# A regard model: {config.task}", "",
        f"- data: {' '.join(config.data.train)}",
        f"- validation data: {' '.join(config.data.valid) or 'none'}",
        f"- longest input: {config.longest_input:,} tokens",
        f"- {origin}",
        UNFINISHED, "",
        "All settings are in config.yaml, all metrics in metrics.jsonl.", "",
    ])  # fmt: skip
