"""The training loop: steps, validation, checkpoints and resuming.

A step is a pure function of the weights, the optimiser's state and the number of the step:
`BatchSampler` determines its examples, and (seed, row) seeds its dropout. Therefore a run that
resumes from its newest valid checkpoint continues bit for bit, and the number of processes changes
only rounding.

The host never waits for the GPU inside a step. The GPU itself decides whether a step is dropped,
and the metrics of a step are read while the next step runs.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.config.parameters import operations
from regard.config.sections import Config
from regard.device import choose_dtype, peak, wide_dtype
from regard.errors import InputError, TrainingFailed
from regard.files import remove_leftovers, write_file
from regard.model.transformer import Transformer
from regard.ops.cpu import build as native
from regard.text.sampler import BatchSampler
from regard.training.callbacks import Callbacks, RunInfo, StepInfo, ValidationInfo
from regard.training.checkpoint import Checkpoints, State, to_bytes
from regard.training.cuda_graph import StepGraphs
from regard.training.distributed import Processes
from regard.training.losses import Batch
from regard.training.metrics import append_metrics, forget_metrics_after
from regard.training.names import BEST, CONFIG, EVENTS, STATE
from regard.training.objective import Objective
from regard.training.optimiser import (
    learning_rate,
    load_optimiser,
    make_optimiser,
    optimiser_tensors,
    update,
)
from regard.training.progress import Progress, describe

MAX_NONFINITE_STEPS = 5  # consecutive steps without a finite loss before the run stops
PENDING = {"cuda": 1}  # steps by device whose metrics may still be pending; other devices: none
OWN = ("score", "samples")  # results of a validation that are not metrics
# Options that a resumed run may change, because the weights of a step do not depend on them.
FREE = {
    # The files may have moved: the fingerprint identifies the contents. The run has its vocabulary.
    "data": ("train", "valid", "vocabulary", "vocabulary_size", "shared_vocabulary", "dialogue"),
    "training": ("steps", "epochs", "validate_every", "checkpoint_every", "keep", "average",
                 "patience", "cuda_graphs", "tensorboard"),
}  # fmt: skip


class Interrupted(Exception):
    """A signal stopped the run; its state is saved (exit code 130)."""


class PendingStep:
    """A step whose metrics are still being copied from the device."""

    def __init__(
        self, number: int, rate: float, rows: list[NDArray[np.int64]], sums: Tensor
    ) -> None:
        self.number, self.rate, self.rows = number, rate, rows
        self.arrived: torch.cuda.Event | None = None
        self.values = sums
        if sums.is_cuda:
            self.values = torch.empty_like(sums, device="cpu", pin_memory=True)
            self.values.copy_(sums, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def sums(self) -> list[float]:
        """The sums of loss, likelihood and tokens, the number of processes that received a stop
        signal, and the norm of the gradient."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.values.tolist()


class Trainer:
    """Trains a model in a run folder.

    Args:
        config: the configuration of the run.
        run: the run folder, for metrics, checkpoints and the best weights.
        model: the model to train; it is moved to the device of this process.
        task: gives the batches and their loss.
        store: the training examples; the trainer needs only their `fingerprint`.
        processes: this process among those that train the model.
        progress: the progress line.
        validate: computes the scores of the model on held-out data; None: no validation.
        callbacks: functions of the user (callbacks.py); None: no callbacks.
    """

    def __init__(
        self, config: Config, run: Path, model: Transformer, task: Objective, store: Any,
        processes: Processes, progress: Progress,
        validate: Callable[[Transformer], dict[str, Any]] | None,
        callbacks: Callbacks | None = None,
    ) -> None:  # fmt: skip
        self.config, self.training, self.run = config, config.training, run
        self.task, self.store, self.processes, self.progress = task, store, processes, progress
        self.validate, self.callbacks = validate, callbacks or Callbacks()
        self.model = model.to(processes.device)
        self.optimiser = make_optimiser(model, self.training)
        self.checkpoints = Checkpoints(run, self.training.keep, self.training.checkpoint_every)
        rows = self.training.accumulate * processes.world
        self.state = State(rows=rows, corpus=store.fingerprint)
        progress.words = config.model.head in ("language-model", "masked-language-model")
        self.sizes = task.sizes(store)
        self.rows = BatchSampler(
            self.sizes, self.training.batch_tokens, store.fingerprint, self.training.seed,
            config.data.share, task.counted,
        )  # fmt: skip
        self.dtype = choose_dtype(self.training.dtype, processes.device, fast_bfloat16)
        self.peak = peak(processes.device, self.dtype) * processes.world
        self.stop_requested = False
        self.nonfinite_steps = 0  # consecutive steps without a finite loss
        self.pending: deque[PendingStep] = deque()
        self.events: Any = None  # for TensorBoard, once training begins
        self.graphs = StepGraphs(model, self._loss, self.rows.budgets, self.dtype)

    def limit_epochs(self, epochs: float) -> None:
        """Replace training.epochs by the number of steps that follows from the first epoch. (The
        number of rows of later epochs differs slightly.)

        Args:
            epochs: the number of passes over the training data.
        """
        steps = max(1, round(epochs * self.rows.epoch_size() / self.state.rows))
        self.training = replace(self.training, steps=steps, epochs=0.0)
        self.config = replace(self.config, training=self.training)
        self.progress.steps = steps

    # ---- training -----------------------------------------------------------------------

    def train(self) -> None:
        """Train until the last step, until patience ends, or until a callback or a signal stops the
        run.

        Raises:
            Interrupted: a signal stopped the run; its state is saved.
            CallbackFailed: a callback raised an exception; the state is saved.
            TrainingFailed: the loss was NaN or infinity in too many consecutive steps.
        """
        if self.training.tensorboard and self.processes.first:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(self.run / EVENTS))
        previous = {}
        if threading.current_thread() is threading.main_thread():  # Python's rule for signals
            previous = {s: signal.signal(s, self._stop) for s in (signal.SIGINT, signal.SIGTERM)}
        patience, end = self.training.patience or inf, ""
        try:
            self._call("on_start", lambda: RunInfo(
                self.run, self.config, self.model, self.state.step, self.training.steps
            ))  # fmt: skip
            self.callbacks.raise_error()
            while self.state.step < self.training.steps and self.state.waited < patience:
                began = time.perf_counter()
                stop = self.step()
                self.state.seconds += time.perf_counter() - began
                step, end = self.state.step, self._requested_end()
                last = step == self.training.steps or end == "stop"
                validates = step % self.training.validate_every == 0 or last
                saves = step % self.training.checkpoint_every == 0 or last
                if validates or saves or stop or end:
                    stop |= self._read_metrics()
                if self.validate is not None and validates and end != "error":
                    self._validate()
                end = end or self._requested_end()
                if saves or stop or end:
                    self.save()
                self.callbacks.raise_error()
                if stop or end == "error":
                    raise Interrupted
                if end:
                    break
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            if self.events is not None:
                self.events.close()
                self.events = None

    def _stop(self, *_: object) -> None:
        self.stop_requested = True  # after the current step

    def _call(self, name: str, make: Callable[[], Any]) -> None:
        """Call the callbacks of this name in the first process."""
        if self.processes.first:
            self.callbacks.call(name, make)

    def _requested_end(self) -> str:
        """Whether callbacks end the run: "stop", "error" or "". All processes decide the same."""
        if not self.callbacks:
            return ""
        code = 2 if self.callbacks.error is not None else int(self.callbacks.stop)
        return ("", "stop", "error")[self.processes.agree(code)]

    def step(self) -> bool:
        """Take one optimiser step.

        Returns:
            Whether any process has received a stop signal.
        """
        number = self.state.step + 1
        first = (number - 1) * self.state.rows
        rows = [self.rows[row] for row in range(first, first + self.state.rows)]
        while (sums := self._gradients(rows, first)) is None:
            self.state.pieces *= 2
            pieces = f"rows are cut into {self.state.pieces} pieces from now on"
            self.progress.say(f"out of memory: {pieces}")
        if self.stop_requested:
            sums[3] = 1
        self.processes.sum_gradients(self.model)
        sums = self.processes.sum(sums)
        rate = learning_rate(number, self.training)
        norm = update(self.model, self.optimiser, rate, sums[0], sums[2], self.training.clip)
        self.state.step = number
        self.pending.append(PendingStep(number, rate, rows, torch.cat([sums, norm.to(sums)[None]])))
        return self._read_metrics(PENDING.get(self.processes.device.type, 0))

    def _gradients(self, rows: list[NDArray[np.int64]], first: int) -> Tensor | None:
        """Compute this process's share of the gradients, as sums over tokens. Returns the sums of
        loss, negative log-likelihood and tokens, and a 0 (see `step`); None if memory ran out."""
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        device = self.processes.device
        sums = torch.zeros(4, dtype=wide_dtype(device), device=device)
        try:
            for i in range(self.processes.rank, len(rows), self.processes.world):
                pieces = min(self.state.pieces, len(rows[i]))
                for piece, examples in enumerate(np.array_split(rows[i], pieces)):
                    random = np.random.SeedSequence([self.training.seed, first + i, piece])
                    seed = int(random.generate_state(1, np.uint32)[0])
                    torch.manual_seed(seed)
                    sums[2] += self._add_gradients(examples, seed, sums)
        except RuntimeError as error:
            if not is_out_of_memory(error) or self.state.pieces >= max(len(row) for row in rows):
                raise
            torch.cuda.empty_cache()
            return None
        return sums

    def _add_gradients(self, examples: NDArray[np.int64], seed: int, sums: Tensor) -> int:
        """Add the gradients of one batch to those of the model, and its loss and likelihood to
        `sums`. Returns its number of tokens."""
        device = self.processes.device
        if self.training.cuda_graphs and self.graphs.usable:
            batch = self.task.batch(self.store, examples, torch.device("cpu"), seed)
            if (size := self.graphs.size(batch)) and isinstance(batch, Batch):
                sums[:2] += self.graphs.gradients(batch, seed, size)
                return batch.tokens
        batch = self.task.batch(self.store, examples, device, seed)
        with torch.autocast(device.type, self.dtype, self.dtype != torch.float32):
            loss, likelihood = self._loss(batch)
        loss.backward()
        sums[:2] += torch.stack([loss.detach(), likelihood.detach()])
        return batch.tokens

    def _loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        t = self.training
        return self.task.loss(self.model, batch, t.label_smoothing, t.r_drop)

    def _read_metrics(self, pending: int = 0) -> bool:
        """Read the metrics of all but the last `pending` steps, or of all steps if the run may have
        to stop for a loss that is not finite. True if any process received a stop signal."""
        stop = False
        while len(self.pending) > (pending if self.nonfinite_steps < MAX_NONFINITE_STEPS else 0):
            stop |= self._finish_step(self.pending.popleft())
        if self.nonfinite_steps >= MAX_NONFINITE_STEPS:
            self.save()
            raise TrainingFailed(
                f"the loss was NaN or infinity in {self.nonfinite_steps} consecutive steps; the "
                f"weights before them are saved in {self.run}: start a new run from them with a "
                "lower training.learning_rate, a longer training.warmup or training.clip=1"
            )
        return stop

    def _finish_step(self, step: PendingStep) -> bool:
        """Count, show and record a step; True if any process received a stop signal."""
        loss, likelihood, tokens, stop, norm = step.sums()
        finite = isfinite(loss) and isfinite(norm)
        if finite:
            self.nonfinite_steps = 0
        else:
            self.state.dropped += 1
            self.nonfinite_steps += 1
            self.progress.say(f"step {step.number}: the loss is NaN or infinity; step dropped")
        lengths = [[int(n) for row in step.rows for n in side[row]] for side in self.sizes]
        work = operations(self.config.model, lengths[0], lengths[-1], round(tokens))
        metrics = self.progress.step(
            step.number, likelihood / tokens, step.rate, sum(lengths[self.task.counted]), work,
            self.peak,
        )  # fmt: skip
        if step.number % 50 == 0 or step.number == 1:
            metrics["gradient"] = round(norm, 4)
            metrics["epoch"] = self.rows.epoch_of((step.number - 1) * self.state.rows)
            self.record(step.number, **metrics, dropped=self.state.dropped)
        self._call("on_step", lambda: StepInfo(
            step.number, self.training.steps, likelihood / tokens, step.rate, norm,
            sum(lengths[self.task.counted]), metrics["tokens_per_second"], not finite,
        ))  # fmt: skip
        return stop > 0

    def record(self, step: int, **values: Any) -> None:
        """Append a line to metrics.jsonl, in the first process.

        Args:
            step: the number of the step.
            **values: the metrics by name.
        """
        if self.processes.first:
            values = append_metrics(self.run, step, values)
            for name, value in values.items():
                if self.events is not None and isinstance(value, int | float):
                    self.events.add_scalar(name, value, step)

    # ---- validation and saving ----------------------------------------------------------

    def _validate(self) -> None:
        if self.processes.first and self.validate is not None:
            result = self.validate(self.model)
            score = result["score"]
            self.state.waited += 1
            if score > self.state.best:
                self.state.best, self.state.best_step, self.state.waited = score, self.state.step, 0
                weights = to_bytes(dict(self.model.state_dict()), step=self.state.step)
                write_file(self.run / BEST, weights)
            scores = {name: v for name, v in result.items() if name not in OWN}
            self.record(self.state.step, **{f"valid_{name}": v for name, v in scores.items()})
            self.progress.say(f"step {self.state.step:,}  validation: {describe(result)}")
            for sample in result["samples"]:
                self.progress.say(f"  {sample}")
            self._call("on_validation", lambda: ValidationInfo(
                self.state.step, result["loss"], score, self.state.best_step == self.state.step,
                {name: v for name, v in scores.items() if not isinstance(v, str)},
                tuple(result["samples"]),
            ))  # fmt: skip
        self.state.waited = self.processes.agree(self.state.waited)  # so that all stop together
        self.progress.pause()

    def save(self) -> None:
        """Write a checkpoint, in the first process."""
        if self.processes.first:
            tensors = optimiser_tensors(self.model, self.optimiser)
            state = {**vars(self.state), "config": self._options()}
            self.checkpoints.save(self.state.step, dict(self.model.state_dict()), tensors, state)
        self.processes.wait()
        self.progress.pause()

    # ---- resuming -----------------------------------------------------------------------

    def resume(self) -> None:
        """Restore the newest valid checkpoint and report the damaged ones.

        Raises:
            InputError: the training data or the configuration differs from that of the checkpoint,
                or this number of processes cannot continue the run.
        """
        if self.processes.first:
            remove_leftovers(self.run)
        state, broken = self.checkpoints.newest()
        for message in broken:
            self.progress.say(f"{message}; falling back to the previous checkpoint")
        if state is None:  # the run ended before its first checkpoint: start from the beginning
            self._forget_metrics_after(0)
            return
        self._check_config(state)
        if state.get("corpus") != self.store.fingerprint:
            raise InputError(
                f"the training files are not the ones {self.run} was started with, so it cannot be "
                "resumed: start a new run from its weights"
            )
        self.model.load_state_dict(self.checkpoints.weights(state["step"]))
        load_optimiser(self.model, self.optimiser, self.checkpoints.optimiser(state["step"]))
        self.state = State.of(state, self.checkpoints.path(state["step"]))
        if self.state.rows % self.processes.world:
            raise InputError(
                f"the run uses {self.state.rows} rows per step, which {self.processes.world} "
                "processes cannot share evenly: resume with a different number of processes"
            )
        self._forget_metrics_after(self.state.step)

    def _check_config(self, state: dict[str, Any]) -> None:
        """Refuse a configuration that differs from the one that the checkpoint was trained with."""
        # Earlier versions recorded the section `model` only, or nothing.
        trained = state.get("config", {"model": state.get("model", {})})
        for section, now in self._options().items():
            options = trained.get(section, {}) if isinstance(trained, dict) else trained
            if not isinstance(options, dict):
                path = self.checkpoints.path(state["step"]) / STATE
                raise InputError(f"{path} is damaged: its options are {options!r:.40}")
            for name, before in options.items():
                if now.get(name, before) != before and name not in FREE.get(section, ()):
                    here = f"{self.run / CONFIG}: {section}.{name} is {now[name]!s:.60}"
                    raise InputError(
                        f"{here}, but the run was trained with {before!s:.60}: restore it, or "
                        "start a new run from its weights"
                    )

    def _options(self) -> dict[str, dict[str, Any]]:
        """The options that the weights depend on, as a checkpoint records them."""
        c = self.config
        return {"model": c.model.to_dict(), "data": asdict(c.data), "training": asdict(c.training)}

    def _forget_metrics_after(self, step: int) -> None:
        if self.processes.first:
            forget_metrics_after(self.run, step)


def fast_bfloat16() -> bool:
    """Whether a training step on this CPU is faster in bfloat16."""
    fast = native.features() & {"avx512_bf16", "amx_bf16"}
    return bool(fast) and native.library("training") is not None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the device, or the computer, has too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
