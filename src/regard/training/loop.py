"""The training loop: rows in, a better model out, and a way back from anything.

A step is a pure function of the weights, the optimiser's state and the step's number: its rows
come from `Rows`, its dropout is seeded by (seed, row). So resuming is reading the newest whole
checkpoint and going on, bit for bit, and the number of processes changes nothing but rounding.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.config import Config
from regard.errors import InputError, TrainingFailed
from regard.files import remove_leftovers, write_file
from regard.model.parameters import operations
from regard.model.transformer import Transformer
from regard.text.rows import Rows
from regard.training.checkpoint import Checkpoints, to_bytes
from regard.training.machine import peak
from regard.training.optimiser import (
    learning_rate,
    load_optimiser,
    make_optimiser,
    optimiser_tensors,
)
from regard.training.processes import Processes, scale_gradients
from regard.training.progress import Progress, said

HOPELESS = 5  # steps in a row without a finite loss before the run stops


class Corpus(Protocol):
    """What the loop needs to know of the examples; the rest is between them and their task."""

    @property
    def fingerprint(self) -> str: ...


class Task(Protocol):
    """What the loop needs to know of a task."""

    name: ClassVar[str]
    counted: ClassVar[int]

    def sizes(self, store: Any) -> list[NDArray[Any]]: ...

    def batch(
        self, store: Any, examples: NDArray[np.int64], device: torch.device, seed: int
    ) -> Any: ...

    def loss(
        self, model: Transformer, batch: Any, smoothing: float, r_drop: float
    ) -> tuple[Tensor, Tensor]: ...


class Interrupted(Exception):
    """A signal asked to stop; what was done is saved (exit code 130)."""


@dataclass
class State:
    """What a checkpoint holds beside tensors."""

    step: int = 0
    rows: int = 1  # of one step, over all processes
    best: float = -math.inf  # validation score
    best_step: int = 0
    waited: int = 0  # validations since
    dropped: int = 0  # steps without a finite loss
    pieces: int = 1  # that a row is cut into, since memory ran out
    seconds: float = 0.0  # of training so far
    corpus: str = ""  # fingerprint of the training data


class Trainer:
    def __init__(
        self,
        config: Config,
        run: Path,
        model: Transformer,
        task: Task,
        store: Corpus,
        processes: Processes,
        progress: Progress,
        validate: Callable[[Transformer], dict[str, Any]] | None,
    ) -> None:
        self.config, self.training, self.run = config, config.training, run
        self.task, self.store, self.processes, self.progress = task, store, processes, progress
        self.validate = validate
        self.model = model.to(processes.device)
        self.optimiser = make_optimiser(model, self.training)
        self.checkpoints = Checkpoints(run, self.training.keep, self.training.checkpoint_every)
        self.state = State(
            rows=self.training.accumulate * processes.world, corpus=store.fingerprint
        )
        budget, seed = self.training.batch_tokens, self.training.seed
        progress.words = config.model.head in ("language-model", "masked-language-model")
        self.sizes = task.sizes(store)
        share, counted = config.data.share, task.counted
        self.rows = Rows(self.sizes, budget, store.fingerprint, seed, share, counted)
        self.dtype = choose_dtype(self.training.dtype, processes.device)
        self.peak = peak(processes.device, self.dtype) * processes.world
        self.asked_to_stop = False
        self.unlucky = 0  # steps in a row without a finite loss
        self.events: Any = None  # for TensorBoard, once training begins
        if self.training.compile and processes.device.type == "cuda":
            for stack in (model.encoder, model.decoder):
                if stack is not None:
                    stack.compile()

    # ---- resuming -----------------------------------------------------------------------

    def resume(self) -> None:
        """Go back to the newest whole checkpoint; say which ones are broken."""
        if self.processes.first:
            remove_leftovers(self.run)
        state, broken = self.checkpoints.newest()
        for what in broken:
            self.progress.say(f"{what}; going back to the one before")
        if state is None:  # it ended before its first checkpoint: from the beginning
            self._forget_metrics_after(0)
            return
        if state.get("corpus") != self.store.fingerprint:
            raise InputError(
                f"the training files are not those that {self.run} began with: resuming would not "
                "continue it; start another run with --from"
            )
        self.model.load_state_dict(self.checkpoints.weights(state["step"]))
        load_optimiser(self.model, self.optimiser, self.checkpoints.optimiser(state["step"]))
        self.state = State(**{name: state[name] for name in vars(State())})
        if self.state.rows % self.processes.world:
            raise InputError(
                f"the run takes {self.state.rows} rows a step, which {self.processes.world} "
                "processes cannot share evenly: resume with another number of them"
            )
        self._forget_metrics_after(self.state.step)

    def _forget_metrics_after(self, step: int) -> None:
        path = self.run / "metrics.jsonl"
        if self.processes.first and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if is_until(line, step)]
            if len(kept) < len(lines):
                write_file(path, "".join(kept))

    def record(self, **values: Any) -> None:
        if self.processes.first:
            # JSON knows no NaN; a step without a finite loss has none to report.
            values = {k: v for k, v in values.items() if not isinstance(v, float) or isfinite(v)}
            with (self.run / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": self.state.step, **values}) + "\n")
            for name, value in values.items():
                if self.events is not None and isinstance(value, int | float):
                    self.events.add_scalar(name, value, self.state.step)

    # ---- training -----------------------------------------------------------------------

    def train(self) -> None:
        """Until the last step, until patience ends, or until somebody says stop."""
        if self.training.tensorboard and self.processes.first:
            self.events = open_events(self.run)
        previous = {s: signal.signal(s, self._stop) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            while self.state.step < self.training.steps and not self._out_of_patience():
                began = time.perf_counter()
                stop = self.step()
                self.state.seconds += time.perf_counter() - began
                step = self.state.step
                last = step == self.training.steps
                if self.validate is not None and (step % self.training.validate_every == 0 or last):
                    self._validate()
                if step % self.training.checkpoint_every == 0 or last or stop:
                    self.save()
                if stop:
                    raise Interrupted
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            if self.events is not None:
                self.events.close()
                self.events = None

    def _stop(self, _: int, __: FrameType | None) -> None:
        self.asked_to_stop = True  # the step is finished first

    def _out_of_patience(self) -> bool:
        return 0 < self.training.patience <= self.state.waited

    def step(self) -> bool:
        """One optimiser step; True if any process was asked to stop."""
        number = self.state.step + 1
        first = (number - 1) * self.state.rows
        rows = [self.rows[row] for row in range(first, first + self.state.rows)]
        while (sums := self._gradients(rows, first)) is None:
            self.state.pieces *= 2
            said = f"rows are cut into {self.state.pieces} pieces from now on"
            self.progress.say(f"out of memory: {said}")
        sums[3] = float(self.asked_to_stop)
        self.processes.sum_gradients(self.model)
        sums = self.processes.sum(sums.to(self.processes.device))
        loss, likelihood, tokens, stop = sums.tolist()
        scale_gradients(self.model.parameters(), 1 / tokens)  # the real ones of the whole step
        rate = learning_rate(number, self.training)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip or math.inf)
        self.state.step = number
        if isfinite(loss) and bool(norm.isfinite()):
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self.optimiser.step()
            self.unlucky = 0
        else:
            self._drop_step(number)
        lengths = [[int(n) for row in rows for n in side[row]] for side in self.sizes]
        work = operations(self.config.model, lengths[0], lengths[-1], round(tokens))
        figures = self.progress.step(
            number, likelihood / tokens, rate, sum(lengths[self.task.counted]), work, self.peak
        )
        if number % 50 == 0 or number == 1:
            self.record(
                **figures, gradient=round(float(norm), 4), epoch=self.rows.epoch_of(first),
                dropped=self.state.dropped,
            )  # fmt: skip
        return stop > 0

    def _gradients(self, rows: list[NDArray[np.int64]], first: int) -> Tensor | None:
        """This process's share of the gradients, as sums over tokens, and the sums of loss,
        negative log-likelihood and tokens; None if memory ran out."""
        t, device = self.training, self.processes.device
        self.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        sums = torch.zeros(4, dtype=torch.float64)
        try:
            for i in range(self.processes.rank, len(rows), self.processes.world):
                pieces = min(self.state.pieces, len(rows[i]))
                for piece, examples in enumerate(np.array_split(rows[i], pieces)):
                    random = np.random.SeedSequence([t.seed, first + i, piece])
                    seed = int(random.generate_state(1, np.uint32)[0])
                    torch.manual_seed(seed)
                    batch = self.task.batch(self.store, examples, device, seed)
                    with torch.autocast(device.type, self.dtype, self.dtype != torch.float32):
                        loss, likelihood = self.task.loss(
                            self.model, batch, t.label_smoothing, t.r_drop
                        )
                    loss.backward()
                    sums[:2] += torch.stack([loss.detach(), likelihood.detach()]).cpu()
                    sums[2] += batch.tokens
        except RuntimeError as error:
            if not is_out_of_memory(error) or self.state.pieces >= max(len(row) for row in rows):
                raise
            torch.cuda.empty_cache()
            return None
        return sums

    def _drop_step(self, number: int) -> None:
        self.state.dropped += 1
        self.unlucky += 1
        self.progress.say(f"step {number}: the loss is not finite, so the step is dropped")
        if self.unlucky >= HOPELESS:
            self.save()
            raise TrainingFailed(
                f"{self.unlucky} steps in a row had no finite loss; what was before is saved: "
                f"start another run with --from {self.run} and a lower training.learning_rate, a "
                "longer training.warmup or training.clip=1, or go on and hope"
            )

    # ---- validation and saving ----------------------------------------------------------

    def _validate(self) -> None:
        if self.processes.first and self.validate is not None:
            found = self.validate(self.model)
            score = found["score"]
            self.state.waited += 1
            if score > self.state.best:
                self.state.best, self.state.best_step, self.state.waited = score, self.state.step, 0
                write_file(self.run / "best.safetensors", to_bytes(dict(self.model.state_dict())))
            self.record(**{f"valid_{name}": value for name, value in found.items()
                           if name not in ("score", "samples")})  # fmt: skip
            self.progress.say(f"step {self.state.step:,}  validation: {said(found)}")
            for sample in found["samples"]:
                self.progress.say(f"  {sample}")
        if self.processes.world > 1:  # all must agree on when patience ends
            waited = torch.tensor([self.state.waited if self.processes.first else 0])
            self.state.waited = int(self.processes.sum(waited.to(self.processes.device)))
        self.progress.pause()

    def save(self) -> None:
        if self.processes.first:
            tensors = optimiser_tensors(self.model, self.optimiser)
            self.checkpoints.save(
                self.state.step, dict(self.model.state_dict()), tensors, vars(self.state)
            )
        self.processes.wait()
        self.progress.pause()


def open_events(run: Path) -> Any:
    """A writer of events for TensorBoard."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run / "events"))


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def is_until(line: str, step: int) -> bool:
    """Whether a line of the metrics file is whole and not after a step, nor the run's last word."""
    try:
        values = json.loads(line)
        return bool(values["step"] <= step) and "final" not in values
    except (ValueError, KeyError, TypeError):
        return False
