"""`regard train`: from text files to a model folder.

Everything that can be wrong with the input is found before anything is written; the run folder
appears whole, with its configuration and vocabularies; then the loop takes over.
"""

from __future__ import annotations

import errno
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regard.box import folder_of
from regard.config import Config, DecodingConfig, brought
from regard.decoding.captured import forget
from regard.errors import InputError, TrainingFailed
from regard.files import cache_folder, new_folder, place_of, write_file
from regard.model.transformer import Transformer
from regard.model_files import file_checksums, load_weights, newest_weights
from regard.settings import SECTIONS
from regard.tasks.make import KINDS, learn_task, load_task, load_tokenizers
from regard.tasks.task import Task
from regard.text.rows import Rows
from regard.training.checkpoint import (
    Checkpoints,
    contiguous,
    not_finite,
    read_tensors,
    to_bytes,
)
from regard.training.loop import Interrupted, Trainer, is_out_of_memory
from regard.training.machine import keep_freed_memory
from regard.training.processes import Processes
from regard.training.progress import Progress, duration, said

SAMPLES = 3  # answers shown at each validation
UNFINISHED = "- training has not ended"


class NoModel(TrainingFailed):
    """No weights of a run can be used: to go on with it would not help."""


def train(
    config: Config | None,
    out: Path,
    *,
    resume: bool = False,
    start_from: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Train and leave a model folder; gives back its final scores.

    command: the words after `regard`, for the model's card; none: trained from Python.
    resume: go on with the run that lies at `out`; config may be None then, and if it is given it
    must be the run's own, but for training.steps. Where there is no run yet, it starts.
    """
    keep_freed_memory()
    start_from = None if start_from is None else folder_of(start_from)
    processes = Processes(device)
    try:
        exists = bool(processes.agree((out / "config.yaml").is_file()))
        config = checked(config, out, exists, resume)
        progress = Progress(config.training.steps, quiet or not processes.first)
        trainer, validation = prepare(config, out, start_from, processes, progress, exists, command)
        if exists:
            trainer.resume()
        with progress:
            trainer.train()
        processes.wait()
        return finish(trainer, validation, command) if processes.first else {}
    except Interrupted:
        again = f"regard train --resume --out {out}"
        raise KeyboardInterrupt(f"stopped, and saved; go on with: {again}") from None
    except (InputError, NoModel):
        raise
    except (OSError, RuntimeError) as error:
        again = f". Go on with: regard train --resume --out {out}" if out.exists() else ""
        raise TrainingFailed(explain(error, out) + again) from error
    finally:
        processes.close()


def checked(config: Config | None, out: Path, exists: bool, resume: bool) -> Config:
    """The configuration to train with, once it fits what lies at `out`."""
    if exists and not resume:
        raise InputError(f"{out} is a run already: go on with --resume, or take another --out")
    if exists:
        return same_run(Config.load(out / "config.yaml"), config, out)
    if config is None:
        raise InputError(f"{out} is not a run: there is nothing to resume")
    place_of(out)  # or it would be refused when all is read
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} exists and is not a run: take another --out")
    if config.training.tensorboard and find_spec("tensorboard") is None:
        raise InputError("training.tensorboard=true needs another package: pip install tensorboard")
    return config


def explain(error: OSError | RuntimeError, out: Path) -> str:
    """What went wrong, for those who will not read a traceback (--debug shows it)."""
    said = " ".join(str(error).split())[:200]
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        steps = Checkpoints(out).steps()
        last = f"the newest checkpoint is of step {steps[-1]}" if steps else "nothing was saved yet"
        return f"the disk of {out} is full; {last}; make room"
    if isinstance(error, OSError | TrainingFailed):
        return said
    if is_out_of_memory(error):
        less = "lower training.batch_tokens or take a smaller --preset"
        return f"out of memory, and no smaller piece is left: {less} ({said})"
    if isinstance(error, dist.DistError) or "onnection" in said:  # reset, closed, refused
        return f"another process of this run was lost ({said})"
    raise error


def same_run(old: Config, new: Config | None, out: Path) -> Config:
    """The configuration of the run at `out`; the one given may only move its end."""
    if new is None:
        return old
    if new.task != old.task:
        raise InputError(f"{out} is a run of --task {old.task}, not {new.task}: take another --out")
    free = [
        ("training", "steps"),
        ("model", "vocabulary_size"),
        ("model", "source_vocabulary_size"),
        ("model", "classes"),
    ]
    for section in SECTIONS:
        before, now = (vars(getattr(config, section)) for config in (old, new))
        for name in before:  # the vocabulary is what it was when the run began
            if before[name] != now[name] and (section, name) not in free:
                raise InputError(
                    f"{section}.{name} is {before[name]} in the run at {out} but {now[name]} here: "
                    "--resume goes on with the run as it was (training.steps may change)"
                )
    return replace(old, training=replace(old.training, steps=new.training.steps))


def prepare(
    config: Config,
    out: Path,
    start_from: Path | None,
    processes: Processes,
    progress: Progress,
    exists: bool,
    command: Sequence[str],
) -> tuple[Trainer, Validation | None]:
    """Read, learn, tokenise and build everything; the run folder is written when all of it fits."""
    data, first, quiet = config.data, processes.first, progress.console.quiet
    train_files, valid_files = (
        [Path(file) for file in files] for files in (data.train, data.valid)
    )
    if not first:  # the first process learns, and the others read what it wrote
        processes.wait()
        config = Config.load(out / "config.yaml")
    if exists or not first:
        KINDS[config.task].check_files(train_files)
        task = load_task(out, config)
    else:
        given = None
        if start_from is not None:
            before = Config.load(start_from / "config.yaml")
            brought(config.task, before.data, vars(data))
            given = load_tokenizers(start_from)
        task = learn_task(config, given, progress.say, quiet)
    store, report = task.build(train_files, cache_folder(), config, quiet)
    report.show(progress.console)
    config = replace(config, model=replace(config.model, **task.model_options()))
    task.prepare(store, config)
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model)
    if start_from is not None and not exists:
        load_body(model, task, start_from)
    validation = Validation(config, task, valid_files) if valid_files else None
    trainer = Trainer(config, out, model, task, store, processes, progress, validation)
    if first:
        if exists:  # training.steps may be another
            write_file(out / "config.yaml", config.to_yaml())
        else:
            with new_folder(out) as folder:
                (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
                (folder / "README.md").write_text(card(config, command), encoding="utf-8")
                task.save(folder)
        processes.wait()
    return trainer, validation


def load_body(model: Transformer, task: Task, start_from: Path) -> None:
    """Begin with the weights of another model: all of them, or all but the head where that one's
    head says something else."""
    tensors, before = newest_weights(start_from), Config.load(start_from / "config.yaml")
    same = before.model.head == model.config.head and before.model.classes == model.config.classes
    if task.name == "classify" and before.task == "classify":
        then = load_task(start_from, before)
        same = same and getattr(then, "labels", None) == getattr(task, "labels", None)
    if not same:
        own = {k: v for k, v in model.state_dict().items() if k.startswith("head.")}
        tensors = {k: v for k, v in tensors.items() if not k.startswith("head.")} | own
    try:
        load_weights(model, tensors, start_from)
    except InputError as error:
        sizes = "--from brings the sizes: leave out --preset and model.*"
        raise InputError(f"{error}; {sizes}") from None


class Validation:
    """Loss, the task's score and a few samples on held-out data."""

    def __init__(self, config: Config, task: Task, files: list[Path]) -> None:
        self.config, self.task = config, task
        self.store, _ = task.build(files, cache_folder(), config, True)
        self.examples = list(task.read(files, config))
        sizes = task.sizes(self.store)
        total = int(sizes[task.counted].sum())
        longest = max(int(side.max()) * total / int(side.sum()) for side in sizes)
        budget = max(config.training.batch_tokens, math.ceil(longest) + 1)
        self.rows = Rows(sizes, budget, self.store.fingerprint, 0, counted=task.counted)
        # Greedy, whatever decoding.beam is: fast, and enough to compare a run with itself.
        self.greedy = DecodingConfig(beam=1, max_length=config.decoding.max_length)

    @torch.no_grad()
    def __call__(self, model: Transformer) -> dict[str, Any]:
        model.eval()
        device = model.output_matrix().device
        total, tokens, row = 0.0, 0, 0
        while self.rows.epoch_of(row) == 0:
            batch = self.task.batch(self.store, self.rows[row], device)
            total += float(self.task.loss(model, batch, 0.0)[1])
            tokens += batch.tokens
            row += 1
        loss = total / tokens
        scores, samples = self.task.from_loss(loss, self.store), list[str]()
        if scores is None:
            found = self.task.evaluate(model, self.examples, self.config, self.greedy)
            scores, samples = found.scores, found.samples[:SAMPLES]
            forget(model)
        # A task without scores of the wanted kind (embed from plain pairs) has its first one.
        better = scores.get(self.task.better, next(iter(scores.values())))
        score = -loss if self.task.better == "loss" else better
        return {"loss": loss, **scores, "score": score, "samples": samples}


def finish(
    trainer: Trainer, validation: Validation | None, command: Sequence[str]
) -> dict[str, Any]:
    """Choose the final weights (last, best, or the mean of the last checkpoints) and write them."""
    run, model, say = trainer.run, trainer.model, trainer.progress.say
    last = contiguous(dict(model.state_dict()))
    choices = {"last": last}
    if trainer.training.average > 1:
        mean, steps = trainer.checkpoints.average(trainer.training.average)
        if len(steps) > 1:
            choices[f"mean of {len(steps)} checkpoints"] = mean
    try:
        if (run / "best.safetensors").exists():
            choices["best"] = read_tensors(run / "best.safetensors")
    except InputError as error:
        say(f"{error}; going on without it")
    for name in [name for name, weights in choices.items() if not_finite(weights)]:
        say(f"the {name} weights have a number that is not finite; going on without them")
        del choices[name]
    if not choices:
        raise NoModel(
            f"the weights of {run} have a number that is not finite: no model is written; train "
            "again with a lower training.learning_rate or a longer training.warmup"
        )
    scores: dict[str, dict[str, Any]] = {}
    name = list(choices)[-1]
    if validation is not None:
        for candidate, weights in choices.items():
            model.load_state_dict(weights)
            scores[candidate] = validation(model)
            say(f"{candidate}: validation {said(scores[candidate])}")
        name = max(scores, key=lambda one: (scores[one]["score"], -scores[one]["loss"]))
        model.load_state_dict(choices[name])
        if validation.task.finish(model.eval(), validation.examples):
            validation.task.save(run)
            scores[name] = validation(model)
    write_file(run / "model.safetensors", to_bytes(choices[name], files=file_checksums(run)))
    result = {k: v for k, v in scores.get(name, {}).items() if k not in ("score", "samples")}
    state = trainer.state
    told = {"final": name, "seconds": round(state.seconds, 1), "dropped": state.dropped}
    trainer.record(state.step, **told, **result)
    end = [
        f"- trained {state.step:,} steps in {duration(state.seconds)}; final weights: {name}",
        *(f"- validation {key}: {value}" for key, value in result.items()),
    ]
    path = run / "README.md"
    there = path.is_file()
    begun = path.read_text(encoding="utf-8") if there else card(trainer.config, command)
    write_file(path, begun.replace(UNFINISHED, "\n".join(end)))
    dropped = f", {state.dropped} steps dropped" if state.dropped else ""
    say(f"{run} is ready: {name} weights, {duration(state.seconds)} of training{dropped}")
    return result


def card(config: Config, command: Sequence[str]) -> str:
    """The model's card as training begins: data and command; its end fills in the rest."""
    ran = f"command: `{shlex.join(['regard', *command])}`" if command else "trained from Python"
    return "\n".join([
        f"# A regard model: {config.task}", "",
        f"- data: {' '.join(config.data.train)}",
        f"- validation data: {' '.join(config.data.valid) or 'none'}",
        f"- {ran}",
        UNFINISHED, "",
        "Every setting is in config.yaml, every figure in metrics.jsonl.", "",
    ])  # fmt: skip
