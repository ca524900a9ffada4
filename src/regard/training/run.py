"""A training run: from text files to a model folder. `regard.tasks.train` passes the tasks in.

All input is checked before anything is written. Then the run folder is created with its
configuration and vocabularies and locked against other processes, and training starts.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regard.config.sections import Config, inherited_vocabulary
from regard.config.settings import SECTIONS
from regard.console import print_counts
from regard.device import choose_device, keep_freed_memory
from regard.errors import InputError, TrainingFailed, warn_user
from regard.files import cache_folder, new_folder, place_of, remove_leftovers, write_file
from regard.model.transformer import Transformer
from regard.text.external import as_tokenizers
from regard.text.tokenizer import Tokenizer
from regard.training.callbacks import CallbackFailed, Callbacks, EndInfo
from regard.training.checkpoint import Checkpoints
from regard.training.distributed import Processes
from regard.training.finish import EndedRun, NoModel, Validation, averaged_steps, card, finish
from regard.training.lock import FolderLock
from regard.training.metrics import forget_metrics_after
from regard.training.model_folder import load_tokenizers, load_weights
from regard.training.names import CARD, CONFIG, DATA
from regard.training.objective import Task, TaskClass
from regard.training.progress import Progress
from regard.training.shipped import folder_of, is_boxed, model_name
from regard.training.trainer import Interrupted, Trainer, is_out_of_memory
from regard.training.unfinished import last_weights, newest_weights

FEW_EXAMPLES = 10  # scores on fewer held-out examples are not reliable


def train(
    config: Config | None, out: Path, *, find_task: Callable[[str], TaskClass],
    resume: bool = False, force: bool = False, start_from: Path | None = None,
    device: str | torch.device = "auto", quiet: bool = False, tokenizer: object = None,
    command: Sequence[str] = (), callbacks: Callbacks | None = None,
    data_folder: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train a model and write its folder.

    find_task: the class of a task by name; `regard.tasks.train.train_config` documents the other
        arguments.
    """
    keep_freed_memory()
    start_from = None if start_from is None else folder_of(start_from)
    tokenizers = None if tokenizer is None else as_tokenizers(tokenizer)
    processes, lock = Processes(device), FolderLock()
    callbacks = callbacks or Callbacks()
    try:
        exists = bool(processes.agree((out / CONFIG).is_file()))
        config = checked(config, out, exists, resume, command)
        if exists and processes.first:
            lock.acquire(out)
        progress = Progress(config.training.steps, quiet or not processes.first)
        trainer, validation = prepare(
            config, out, find_task(config.task), start_from, processes, progress, exists, command,
            lock, callbacks, data_folder, tokenizers,
        )  # fmt: skip
        if exists:
            trainer.resume()
            if processes.first:
                last = max(trainer.training.steps, trainer.state.step)
                averaged_steps(ended_run(trainer), last, force)
        with progress:
            trainer.train()
        processes.wait()
        if not processes.first:
            return {}
        scores = finish(ended_run(trainer), validation, command, force)
    except CallbackFailed as failed:
        raise failed.error from failed.error.__cause__
    except Interrupted:
        use = f"; to use it as it is: regard finish {out}" if command else ""
        raise KeyboardInterrupt(
            f"training was stopped and saved at step {trainer.state.step:,}; to continue: "
            f"{continue_with(out, command)}{use}"
        ) from None
    except (InputError, NoModel):
        raise
    except (OSError, RuntimeError) as error:
        again = f". Continue with: {continue_with(out, command)}" if out.exists() else ""
        raise TrainingFailed(explain(error, out) + again) from error
    finally:
        lock.release(out)
        processes.close()
    callbacks.call("on_end", lambda: EndInfo(out, trainer.state.step, scores))
    if callbacks.error is not None:
        raise callbacks.error
    return scores


def continue_with(out: Path, command: Sequence[str]) -> str:
    """How to resume a run: a command if a command started it, otherwise a Python call."""
    if command:
        return f"regard train --resume --out {out}"
    return f"regard.train(out={str(out)!r}, resume=True)"


def ended_run(trainer: Trainer) -> EndedRun:
    return EndedRun(trainer.run, trainer.config, trainer.model, trainer.state, trainer.progress)


def finish_run(
    out: Path, *, find_task: Callable[[str], TaskClass], force: bool = False,
    device: str = "auto", quiet: bool = False, command: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Choose and write the final weights of an interrupted run without further training.

    find_task: the class of a task by name; `regard.tasks.train.finish_run` documents the other
        arguments.
    """
    if is_boxed(out):
        raise InputError(f"{out} comes with the package and is finished: finish needs a run folder")
    if not (out / CONFIG).is_file():
        raise InputError(f"{out} is not a run: it has no config.yaml")
    keep_freed_memory()
    lock, progress = FolderLock(), Progress(0, quiet)
    lock.acquire(out)
    try:
        config = Config.load(out / CONFIG)
        remove_leftovers(out)
        stored = last_weights(out)
        task = find_task(config.task).load(out, config)
        model = Transformer(config.model)
        load_weights(model, stored.tensors, out)
        valid_files = list(map(Path, config.data.valid))
        validation = Validation(config, task, valid_files) if valid_files else None
        forget_metrics_after(out, stored.state.step)
        ended = EndedRun(out, config, model.to(choose_device(device)), stored.state, progress)
        scores = finish(ended, validation, command, force)
        step, steps = stored.state.step, config.training.steps
        if step < steps:
            progress.say(
                f"the training stopped at step {step:,} of {steps:,}; to continue: "
                f"{continue_with(out, command)}"
            )
        return scores
    finally:
        lock.release(out)


def checked(
    config: Config | None, out: Path, exists: bool, resume: bool, command: Sequence[str] = ()
) -> Config:
    """The configuration to train with; an InputError if it does not fit the folder `out`."""
    if exists and not resume:
        raise InputError(
            f"{out} already contains a run: continue it with {continue_with(out, command)}, or "
            "choose a different folder"
        )
    if exists:
        return same_run(Config.load(out / CONFIG), config, out)
    if config is None:
        raise InputError(f"{out} is not a run: there is nothing to resume")
    place_of(out)  # refuse a place that cannot be written to before the data is read
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} exists and is not a run: choose a different folder")
    if config.training.tensorboard and find_spec("tensorboard") is None:
        raise InputError("training.tensorboard=true needs another package: pip install tensorboard")
    return config


def explain(error: OSError | RuntimeError, out: Path) -> str:
    """One line for an error that is not the user's mistake (--debug shows the traceback)."""
    if isinstance(error, TrainingFailed):
        return str(error)
    message = " ".join(str(error).split())[:200]
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        steps = Checkpoints(out).steps()
        last = f"the newest checkpoint is step {steps[-1]}" if steps else "nothing was saved yet"
        return f"the disk of {out} is full; {last}; free some space"
    if isinstance(error, OSError):
        return message
    if is_out_of_memory(error):
        less = "lower training.batch_tokens or choose a smaller preset"
        return f"out of memory, and rows cannot be split any further: {less} ({message})"
    if isinstance(error, dist.DistError) or "onnection" in message:  # reset, closed, refused
        return f"another process of this run was lost ({message})"
    raise error


def same_run(old: Config, new: Config | None, out: Path) -> Config:
    """The configuration of the run at `out`; `new` may change only training.steps and
    training.epochs."""
    if new is None:
        return old
    if new.task != old.task:
        raise InputError(
            f"{out} is a run of the task {old.task}, not {new.task}: choose a different folder"
        )
    # The vocabulary and the classes do not change after the start of a run.
    free = {"training.steps", "training.epochs", "model.vocabulary_size",
            "model.source_vocabulary_size", "model.classes"}  # fmt: skip
    for section in SECTIONS:
        before, now = (vars(getattr(config, section)) for config in (old, new))
        for name in before:
            if before[name] != now[name] and f"{section}.{name}" not in free:
                raise InputError(
                    f"{section}.{name} is {before[name]} in the run at {out} but {now[name]} here: "
                    "a run resumes with its own settings (except training.steps)"
                )
    steps, epochs = new.training.steps, new.training.epochs
    return replace(old, training=replace(old.training, steps=steps, epochs=epochs))


def prepare(
    config: Config, out: Path, task_class: TaskClass, start_from: Path | None,
    processes: Processes, progress: Progress, exists: bool, command: Sequence[str],
    lock: FolderLock, callbacks: Callbacks, data_folder: Path | None,
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
) -> tuple[Trainer, Validation | None]:  # fmt: skip
    """Read the data, learn the vocabulary, tokenise and build the model. A new run folder is
    written and locked after all of this has succeeded."""
    data, first, quiet = config.data, processes.first, progress.console.quiet
    train_files, valid_files = (list(map(Path, files)) for files in (data.train, data.valid))
    if not first:  # the first process learns and writes the vocabulary, which the others read
        processes.wait()
        config = Config.load(out / CONFIG)
    if exists or not first:
        task_class.check_files(train_files)
        task = task_class.load(out, config, tokenizers)
    else:
        if tokenizers is not None and data.bpe_dropout:
            raise InputError("data.bpe_dropout needs a learned vocabulary: it cannot be combined "
                             "with a tokenizer of your own")  # fmt: skip
        if start_from is not None:
            before = Config.load(start_from / CONFIG)
            inherited_vocabulary(before.data, vars(data))
            tokenizers = load_tokenizers(start_from, tokenizers=tokenizers)
        task = task_class.learn(config, tokenizers, progress.say, quiet)
        if start_from is not None:
            task.started_from(start_from)
    store, report = task.build(train_files, cache_folder(), config, quiet)
    print_counts(report.counts, report.total, progress.console)
    if first and (warning := report.warning()):
        warn_user(warning)
    config = replace(config, model=replace(config.model, **task.model_options()))
    task.prepare(store, config)
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model)
    if start_from is not None and not exists:
        loaded = load_body(model, config, task, task_class, start_from, tokenizers)
        progress.say(f"the training starts from {model_name(start_from)}: {loaded}")
    validation = Validation(config, task, valid_files) if valid_files else None
    if first and validation is not None and data.valid_share and not exists:
        count = max(len(validation.examples), len(validation.store))
        if count < FEW_EXAMPLES:
            noun = "example" if count == 1 else "examples"
            warn_user(
                f"data.valid={data.valid[0]} is only {count} {noun}: scores on so few examples are "
                "not reliable; hold out more"
            )
    if data_folder is not None:
        config = with_moved_files(config, data_folder, out / DATA)
    trainer = Trainer(config, out, model, task, store, processes, progress, validation, callbacks)
    if config.training.epochs:
        trainer.limit_epochs(config.training.epochs)
        config = trainer.config
    if first:
        if exists:  # training.steps may have changed
            write_file(out / CONFIG, config.to_yaml())
        else:
            with new_folder(out) as folder:
                lock.acquire(folder)
                (folder / CONFIG).write_text(config.to_yaml(), encoding="utf-8")
                (folder / CARD).write_text(card(config, command), encoding="utf-8")
                task.save(folder)
                if data_folder is not None:
                    shutil.move(data_folder, folder / DATA)
        processes.wait()
    return trainer, validation


def with_moved_files(config: Config, source: Path, target: Path) -> Config:
    """The configuration after its data files have been moved from one folder to another."""

    def moved(names: list[str]) -> list[str]:
        paths = [Path(name) for name in names]
        return [str(target.absolute() / p.name) if p.parent == source else str(p) for p in paths]

    data = replace(config.data, train=moved(config.data.train), valid=moved(config.data.valid))
    return replace(config, data=data)


def load_body(
    model: Transformer, config: Config, task: Task, task_class: TaskClass, start_from: Path,
    tokenizers: tuple[Tokenizer, Tokenizer] | None,
) -> str:  # fmt: skip
    """Load the weights of another model: all of them, or all but the head if the outputs of that
    model mean something else. Returns which weights were loaded, for a message."""
    tensors, before = newest_weights(start_from), Config.load(start_from / CONFIG)
    same = before.model.head == model.config.head and before.model.classes == model.config.classes
    if same and before.task == config.task:
        same = task.same_head(task_class.load(start_from, before, tokenizers))
    if not same:
        body = {k: v for k, v in tensors.items() if not k.startswith("head.")}
        tensors = body | {k: v for k, v in model.state_dict().items() if k.startswith("head.")}
    try:
        load_weights(model, tensors, start_from)
    except InputError as error:
        sizes = "the sizes must be those of the model to start from: leave out model.*"
        raise InputError(f"{error}; {sizes}") from None
    return "all weights are loaded" if same else "all weights are loaded except the output head"
