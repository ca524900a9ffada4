"""Training runs in parallel: each is a process of its own, `regard train --resume`, with a log.

With processes, small models can share a GPU, a run that fails does not affect the others, and an
interruption (Ctrl-C, a kill) is handled as in one training run: the state is saved, and the same
command continues.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import TimeRemainingColumn as TimeLeft

from regard.config.sections import Config
from regard.console import make_progress
from regard.files import write_file
from regard.training.progress import duration

PAUSE = 0.2  # seconds between two polls of the processes
TAIL = 4096  # bytes at the end of a file that hold its last line


@dataclass
class TrainingProcess:
    name: str  # VARIANT-SEED
    config: Config
    out: Path
    failed: str = ""  # why, in one line
    process: subprocess.Popen[bytes] | None = None
    task: TaskID | None = field(default=None, repr=False)

    @property
    def run(self) -> Path:
        return self.out / "runs" / self.name

    @property
    def log(self) -> Path:
        return self.out / "logs" / f"{self.name}.log"

    def start(self, device: str, threads: int | None) -> None:
        file = self.out / "configs" / f"{self.name}.yaml"
        for folder in (file.parent, self.log.parent, self.run.parent):
            folder.mkdir(parents=True, exist_ok=True)
        write_file(file, self.config.to_yaml())
        command = ["train", "--config", file, "--resume", "--out", self.run, "--device", device]
        environment = dict(os.environ)
        if threads is not None:  # by default each process would use all cores
            for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):
                environment.setdefault(name, str(threads))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "regard", *map(str, command)], env=environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which forwards it once
                preexec_fn=interrupt_with_parent(),
            )  # fmt: skip

    def step(self) -> int:
        """The last step in its metrics."""
        for line in reversed(last_lines(self.run / "metrics.jsonl")):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue  # an incomplete line
        return 0

    def ended(self) -> bool:
        """Whether the process has ended; if it failed, `failed` is the last line of its log."""
        assert self.process is not None
        code = self.process.poll()
        if code:
            lines = [line for line in last_lines(self.log) if line.strip()]
            why = lines[-1].strip().removeprefix("regard: ") if lines else f"exit code {code}"
            self.failed = why if code > 0 else f"killed by signal {-code}; last: {why}"
        return code is not None


def interrupt_with_parent() -> Callable[[], None] | None:
    """A function for the new process: have the kernel interrupt it when the parent is killed.
    Otherwise it would go on, and the next call would train in the same folder. Linux only."""
    if sys.platform != "linux":
        return None
    set_death_signal = 1
    # prctl is looked up here: few operations are safe after a fork.
    return partial(ctypes.CDLL(None).prctl, set_death_signal, signal.SIGINT)


def last_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            return file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    except OSError:
        return []


def train_all(
    processes: Sequence[TrainingProcess], at_once: int, device: str, console: Console
) -> None:
    """Train all of them, `at_once` in parallel. A failure is recorded in `failed`.

    After Ctrl-C or SIGTERM each run saves its state and stops; then KeyboardInterrupt is raised.
    """
    threads = max(1, (os.cpu_count() or 1) // at_once) if at_once > 1 else None
    waiting, running, done = list(processes), list[TrainingProcess](), 0
    signals: list[int] = []
    progress = RunsProgress(processes, console)
    previous = {
        number: signal.signal(number, lambda number, _: signals.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with progress.bars:
            while (waiting or running) and not signals:
                while waiting and len(running) < at_once:
                    running.append(waiting.pop(0))
                    running[-1].start(device, threads)
                    progress.started(running[-1])
                time.sleep(PAUSE)
                for training in [entry for entry in running if entry.ended()]:
                    running.remove(training)
                    done += 1
                    progress.ended(training, done)
                progress.update(running)
            if running:
                console.print(f"stopping {len(running)} training runs; each saves its state")
    finally:
        children = [entry.process for entry in running if entry.process is not None]
        for child in children:
            child.send_signal(signal.SIGINT)
        for child in children:
            child.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if signals:
        raise KeyboardInterrupt("stopped and saved; run the same command again to continue")


class RunsProgress:
    """A progress bar for each running process and one for all; a line for each that has ended."""

    def __init__(self, processes: Sequence[TrainingProcess], console: Console) -> None:
        self.processes, self.console, self.began = processes, console, time.monotonic()
        self.bars = make_progress(
            console, BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeLeft(),
            disable=console.quiet or not console.is_terminal, refresh_per_second=2,
            speed_estimate_period=300,
        )  # fmt: skip
        total = sum(entry.config.training.steps for entry in processes)
        self.all = self.bars.add_task(f"{len(processes)} training runs", total=total)

    def started(self, training: TrainingProcess) -> None:
        steps = training.config.training.steps
        training.task = self.bars.add_task(f"  {training.name}", total=steps)

    def update(self, running: Sequence[TrainingProcess]) -> None:
        if self.bars.disable:
            return
        for training in running:
            assert training.task is not None
            self.bars.update(training.task, completed=training.step())
        ended = [
            entry for entry in self.processes if entry.process is not None and entry not in running
        ]
        whole = sum(entry.config.training.steps for entry in ended)
        self.bars.update(self.all, completed=whole + sum(entry.step() for entry in running))

    def ended(self, training: TrainingProcess, done: int) -> None:
        if training.task is not None:
            self.bars.remove_task(training.task)
        spent = time.monotonic() - self.began
        left = duration(spent / done * (len(self.processes) - done))
        failed = f"failed: {training.failed} (see {training.log})"
        line = f"{training.name}: {failed if training.failed else 'trained'}; "
        line += f"{done} of {len(self.processes)}, about {left} left"
        self.console.print(line, soft_wrap=True)
