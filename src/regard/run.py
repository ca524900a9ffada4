"""`regard train`: from text files to a model folder.

Everything that can be wrong with the input is found before anything is written; the run folder
appears whole, with its configuration and vocabularies; then the loop takes over.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from regard.config import SECTIONS, Config
from regard.errors import InputError, TrainingFailed
from regard.files import new_folder, write_file
from regard.model.transformer import Transformer
from regard.models import load_task, load_weights
from regard.tasks.translate import Translate, bleu
from regard.text.corpus import Report, read_pairs
from regard.text.rows import Rows
from regard.text.store import Store, build_pairs
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import Checkpoints, contiguous, read_tensors
from regard.training.loop import Interrupted, State, Trainer
from regard.training.machine import keep_freed_memory
from regard.training.processes import Processes
from regard.training.progress import Progress, duration

SAMPLES = 3  # translations shown at each validation


def train(
    config: Config | None,
    out: Path,
    *,
    resume: bool = False,
    start_from: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
) -> dict[str, Any]:
    """Train and leave a model folder; gives back its final scores.

    resume: go on with the run that lies at `out`; config may be None then, and if it is given it
    must be the run's own, but for training.steps. Where there is no run yet, it starts.
    """
    keep_freed_memory()
    exists = (out / "config.yaml").is_file()
    if exists and not resume:
        raise InputError(f"{out} is a run already: go on with --resume, or take another --out")
    if exists:
        config = same_run(Config.load(out / "config.yaml"), config, out)
    elif config is None:
        raise InputError(f"{out} is not a run: there is nothing to resume")
    resume = exists
    if config.training.tensorboard and find_spec("tensorboard") is None:
        raise InputError("training.tensorboard=true needs another package: pip install tensorboard")
    processes = Processes(device)
    progress = Progress(config.training.steps, quiet or not processes.first)
    try:
        trainer, validation = prepare(config, out, start_from, processes, progress, quiet, resume)
        if resume:
            trainer.resume()
        with progress:
            trainer.train()
        processes.wait()
        return finish(trainer, validation) if processes.first else {}
    except Interrupted:
        progress.say(f"stopped, and saved; go on with: regard train --resume --out {out}")
        raise KeyboardInterrupt from None
    except InputError:
        raise
    except (OSError, RuntimeError) as error:
        raise TrainingFailed(
            f"{explain(error, processes, out)}. Go on with: regard train --resume --out {out}"
        ) from error
    finally:
        processes.close()


def explain(error: OSError | RuntimeError, processes: Processes, out: Path) -> str:
    """What went wrong, for those who will not read a traceback (--debug shows it)."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        steps = Checkpoints(out, 1, 1).steps()
        last = f"the newest checkpoint is of step {steps[-1]}" if steps else "nothing was saved yet"
        return f"the disk of {out} is full; {last}; make room"
    if processes.world > 1 and not isinstance(error, TrainingFailed):
        return f"another process of this run was lost ({' '.join(str(error).split())[:200]})"
    if isinstance(error, TrainingFailed):
        return str(error)
    raise error


def same_run(old: Config, new: Config | None, out: Path) -> Config:
    """The configuration of the run at `out`; the one given may only move its end."""
    if new is None:
        return old
    learned = ("vocabulary_size", "source_vocabulary_size")  # from the data, when the run began
    for section in SECTIONS:
        before, now = (vars(getattr(config, section)) for config in (old, new))
        for name in before:
            if before[name] != now[name] and name not in (*learned, "steps"):
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
    quiet: bool,
    resume: bool,
) -> tuple[Trainer, Validation | None]:
    data = config.data
    if len(data.train) != 2 or len(data.valid) not in (0, 2):
        raise InputError("--train and --valid take two files for translate: source, then target")
    train_files, valid_files = (tuple(map(Path, files)) for files in (data.train, data.valid))
    old = out if resume else start_from
    if processes.first:  # the others read what it wrote
        task = load_task(old) if old is not None else learn(config, quiet)
        folder = cache_folder()
        store, report = build(train_files, task, folder, config, quiet)
        held_out = build(valid_files, task, folder, config, True)[0] if valid_files else None
        report.show(progress.console)
        model_config = replace(
            config.model,
            vocabulary_size=task.target.size,
            source_vocabulary_size=task.source.size,
        )
        config = replace(config, model=model_config)
        if not resume:
            with new_folder(out) as folder_:
                (folder_ / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
                task.target.save(folder_ / "tokenizer.json")
                if task.source is not task.target:
                    task.source.save(folder_ / "source-tokenizer.json")
    processes.wait()
    if not processes.first:
        config, task = Config.load(out / "config.yaml"), load_task(out)
        store = build(train_files, task, cache_folder(), config, True)[0]
        held_out = None
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model)
    if start_from is not None and not resume:
        load_weights(model, read_tensors(start_from / "model.safetensors"), start_from)
    validation = None
    if held_out is not None:
        validation = Validation(config, task, held_out, valid_files)
    elif valid_files:
        validation = Validation(config, task, store, valid_files)  # of a process that only waits
    trainer = Trainer(config, out, model, task, store, processes, progress, validation)
    return trainer, validation


def build(
    files: tuple[Path, ...], task: Translate, folder: Path, config: Config, quiet: bool
) -> tuple[Store, Report]:
    limits = config.data.max_length, config.data.max_ratio
    return build_pairs((files[0], files[1]), (task.source, task.target), folder, *limits, quiet)


def learn(config: Config, quiet: bool) -> Translate:
    """Learn the vocabularies from the training files, reading every line of every file once: what
    is wrong with them is said here, before anything is written."""
    data = config.data
    if data.valid:
        for _ in read_pairs(Path(data.valid[0]), Path(data.valid[1])):
            pass

    def lines(side: int | None) -> Iterator[str]:
        for _, *pair in read_pairs(Path(data.train[0]), Path(data.train[1])):
            yield from pair if side is None else [pair[side]]

    if data.shared_vocabulary:
        shared = Tokenizer.learn(lines(None), data.vocabulary, data.vocabulary_size, quiet)
        return Translate(shared, shared)
    source, target = (
        Tokenizer.learn(lines(side), data.vocabulary, data.vocabulary_size, quiet)
        for side in (0, 1)
    )
    return Translate(source, target)


def cache_folder() -> Path:
    """Where tokenised corpora lie between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("REGARD_CACHE") or Path(home) / "regard")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Validation:
    """Loss, BLEU and a few samples on held-out data."""

    def __init__(
        self, config: Config, task: Translate, store: Store, files: tuple[Path, ...]
    ) -> None:
        self.config, self.task, self.store = config, task, store
        self.pairs = [(s, t) for _, s, t in read_pairs(files[0], files[1])]

    @torch.no_grad()
    def __call__(self, model: Transformer) -> dict[str, Any]:
        model.eval()
        device = model.output_matrix().device
        budget = max(self.config.training.batch_tokens, self.config.data.max_length)
        rows = Rows(self.store.lengths, budget, self.store.fingerprint, 0)
        total, row = 0.0, 0
        while rows.epoch_of(row) == 0:
            batch = self.task.batch(self.store, rows[row], device)
            total += float(self.task.loss(model, batch, 0.0)[1])
            row += 1
        answers = self.task.answer(
            model, [source for source, _ in self.pairs], self.config.decoding.max_length
        )
        scores = bleu(answers, [target for _, target in self.pairs])
        samples = [
            f"{source} -> {answer}  (wanted: {target})"
            for (source, target), answer in list(zip(self.pairs, answers, strict=True))[:SAMPLES]
        ]
        loss = total / int(self.store.lengths[-1].sum())
        return {"loss": loss, **scores, "score": scores["bleu"], "samples": samples}


def finish(trainer: Trainer, validation: Validation | None) -> dict[str, Any]:
    """Choose the final weights (last, best, or the mean of the last checkpoints) and write them."""
    run, model, say = trainer.run, trainer.model, trainer.progress.say
    last = contiguous(dict(model.state_dict()))
    choices = {"last": last}
    if trainer.training.average > 1:
        mean, steps = trainer.checkpoints.average(trainer.training.average)
        if len(steps) > 1:
            choices[f"mean of {len(steps)} checkpoints"] = mean
    if (run / "best.safetensors").exists():
        choices["best"] = read_tensors(run / "best.safetensors")
    scores: dict[str, dict[str, Any]] = {}
    name = list(choices)[-1] if validation is None else ""
    if validation is not None:
        for candidate, weights in choices.items():
            model.load_state_dict(weights)
            scores[candidate] = validation(model)
            say(f"{candidate}: validation BLEU {scores[candidate]['bleu']:.2f}")
        name = max(scores, key=lambda candidate: scores[candidate]["score"])
    write_file(run / "model.safetensors", save(contiguous(choices[name])))
    result = {k: v for k, v in scores.get(name, {}).items() if k not in ("score", "samples")}
    trainer.record(final=name, seconds=round(trainer.state.seconds, 1), **result)
    write_file(run / "README.md", card(trainer.config, trainer.state, name, result))
    say(f"{run} is ready: {name} weights, {duration(trainer.state.seconds)} of training")
    return result


def card(config: Config, state: State, name: str, scores: dict[str, Any]) -> str:
    """The model's card: data, command, scores."""
    lines = [
        f"# A regard model: {config.task}", "",
        f"- data: {' '.join(config.data.train)}",
        f"- validation data: {' '.join(config.data.valid) or 'none'}",
        f"- command: `{' '.join(['regard', *sys.argv[1:]])}`",
        f"- trained {state.step:,} steps in {duration(state.seconds)}; final weights: {name}",
        *(f"- validation {key}: {value}" for key, value in scores.items()), "",
        "Every setting is in config.yaml, every figure in metrics.jsonl.", "",
    ]  # fmt: skip
    return "\n".join(lines)
