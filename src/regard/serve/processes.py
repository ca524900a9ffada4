"""Processes that accept connections from the same sockets.

The parent starts the workers, replaces those that end, and ends all of them when it gets SIGTERM or
SIGINT. It does not import what the workers need, and it is never forked: a process that was forked
after torch has started threads could not use them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from regard.console import warn
from regard.errors import InputError
from regard.serve.shared import SharedNumbers

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MOST_FAILURES = 3  # processes in a row that end before they are ready, until the service ends
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  # seconds before a worker is replaced
STABLE = 60.0  # seconds that a worker runs until earlier failures no longer count
GRACE = 10.0  # seconds after the drain until workers are killed
YIELD = 0.001  # seconds in which another process can accept a connection
BAD_INPUT = 2  # exit code of a worker that cannot start because of its options


class FairSocket(socket.socket):
    """A listening socket whose connections are spread over the processes that accept from it.

    asyncio accepts all waiting connections at once, so that one process could get all connections
    of clients that connect at the same time. Here it accepts one at a time, and a process that has
    accepted more connections than another one lets the other go first.

    Args:
        descriptor: of the socket.
        accepted: the number of accepted connections of each process.
        index: the row of this process.
    """

    def __init__(self, descriptor: int, accepted: SharedNumbers, index: int) -> None:
        super().__init__(fileno=descriptor)
        rows = [accepted.row(i) for i in range(accepted.rows)]
        self._own = rows.pop(index)
        self._others = rows
        self._returns = False  # whether the next call returns to the event loop

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; the call after it only returns to the event loop."""
        if self._returns:
            self._returns = False
            raise BlockingIOError
        if any(row[0] < self._own[0] for row in self._others):
            time.sleep(YIELD)
        connection = super().accept()
        self._own[0] += 1
        self._returns = True
        return connection


@dataclass
class Worker:
    """What a worker process gets from its parent."""

    index: int
    count: int  # number of workers
    sockets: list[socket.socket]  # listening sockets
    shared: Any  # the argument of `run_processes`
    accept_early: bool  # whether to accept connections before the models are loaded
    channel: Connection
    accepted: SharedNumbers  # connections of each worker

    def report_ready(self) -> None:
        """Report that the models are loaded."""
        with suppress(OSError):  # the parent has ended
            self.channel.send_bytes(b"ready")

    def fair_sockets(self) -> list[socket.socket]:
        """The listening sockets. Call it once."""
        row = self.accepted.row(self.index)
        row[0] = max(self.accepted.row(i)[0] for i in range(self.count))
        return [FairSocket(each.detach(), self.accepted, self.index) for each in self.sockets]


Serve = Callable[[Worker], int]


def run_processes(
    count: int,
    sockets: list[socket.socket],
    serve: Serve,
    shared: Any = None,
    *,
    drain: float = 30.0,
    ended: Callable[[int], None] = lambda index: None,
) -> int:
    """Run workers until SIGTERM or SIGINT. Call it in the main thread.

    A worker that ends is replaced. If workers end before any of them is ready, all end.

    Args:
        count: the number of workers.
        sockets: listening sockets, which are closed at the end.
        serve: runs in each worker until SIGTERM and returns its exit code. Picklable.
        shared: passed to each worker. Picklable.
        drain: the seconds that a worker may need after SIGTERM.
        ended: called with the index of each worker that has ended and will be replaced.

    Returns:
        The exit code: 0 after SIGTERM, 130 after SIGINT, 2 if a worker cannot start because of its
        options, 1 if workers fail for another reason or do not end.
    """
    accepted = SharedNumbers(count, 1)
    slots = [Slot(index, accepted) for index in range(count)]
    with signals() as received:
        resource_tracker.ensure_running()  # it changes the signal mask, which Slot.start needs
        try:
            while not received.pending():
                start_missing(slots, sockets, serve, shared)
                sources = [source for slot in slots for source in slot.sources()]
                wait([*sources, received.reader], pause(slots))
                for slot in slots:
                    if not slot.has_ended():
                        continue
                    if slot.process.exitcode == BAD_INPUT and not slot.ready:
                        return BAD_INPUT  # the worker has reported the error
                    if slot.failed_starts >= MOST_FAILURES and not any(s.ready for s in slots):
                        warn("workers end before they are ready: see the messages above")
                        return 1
                    slot.end()
                    ended(slot.index)
            code = 130 if received.pop() == signal.SIGINT else 0
            close(sockets)
            return code if stop(slots, received, drain) else 1
        finally:
            close(sockets)
            for slot in slots:
                slot.kill()


def close(sockets: list[socket.socket]) -> None:
    """Close sockets."""
    for each in sockets:
        each.close()


def start_missing(
    slots: list[Slot], sockets: list[socket.socket], serve: Serve, shared: Any
) -> None:
    """Start the workers that do not run. Until a worker is ready, only the first one is started: it
    writes the mapped weights, and an error in the options is reported once."""
    none_ready = not any(slot.ready for slot in slots)
    for slot in slots[:1] if none_ready else slots:
        if slot.process is None and slot.start_at <= time.monotonic():
            slot.start(serve, len(slots), sockets, shared, none_ready)


def pause(slots: list[Slot]) -> float | None:
    """The seconds until the next worker is started; None if all of them run."""
    starts = [slot.start_at for slot in slots if slot.process is None and slot.start_at]
    return max(0.0, min(starts) - time.monotonic()) if starts else None


def stop(slots: list[Slot], received: Signals, drain: float) -> bool:
    """Let the workers end, until a second signal or the end of the drain. Returns whether all of
    them have ended."""
    processes = [slot.process for slot in slots if slot.process is not None]
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + drain + GRACE
    while running := [process.sentinel for process in processes if process.is_alive()]:
        seconds = deadline - time.monotonic()
        if received.pending() or seconds < 0:
            return False
        wait([*running, received.reader], seconds)
    return True


class Slot:
    """The place of one worker, in which processes follow each other."""

    def __init__(self, index: int, accepted: SharedNumbers) -> None:
        self.index, self.accepted = index, accepted
        self.process: Any = None  # multiprocessing.context.SpawnProcess
        self.channel: Connection | None = None
        self.ready = False  # whether the worker has reported it
        self.failures = 0  # ends in a row of processes that did not run for long
        self.failed_starts = 0  # processes in a row that were not ready
        self.started = self.start_at = 0.0  # times of this process and of the next one

    def start(
        self, serve: Serve, count: int, sockets: list[socket.socket], shared: Any,
        accept_early: bool,
    ) -> None:  # fmt: skip
        """Start a process."""
        context = multiprocessing.get_context("spawn")
        self.channel, channel = context.Pipe(duplex=False)
        worker = Worker(self.index, count, sockets, shared, accept_early, channel, self.accepted)
        self.process = context.Process(target=run_worker, args=(serve, worker), daemon=True)
        # The process inherits the mask, so that Ctrl-C does not interrupt it while it starts.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        channel.close()
        self.started = time.monotonic()
        self.failed_starts += 1

    def sources(self) -> list[Any]:
        """What to wait for: the end of the process, and its message."""
        if self.process is None:
            return []
        return [self.process.sentinel, *([] if self.ready else [self.channel])]

    def has_ended(self) -> bool:
        """Whether the process has ended; also notes whether it was ready."""
        if self.process is None:
            return False
        if not self.ready and self.channel is not None and self.channel.poll():
            with suppress(EOFError, OSError):  # it has ended without a message
                self.ready = bool(self.channel.recv_bytes())
                self.failed_starts = 0
        return not self.process.is_alive()

    def end(self) -> None:
        """Free the place of a process that has ended, for a new one after a pause."""
        now, code = time.monotonic(), self.process.exitcode
        self.failures = self.failures + 1 if now < self.started + STABLE else 1
        seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self.failures - 1))
        reason = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        warn(f"worker {self.index} ended ({reason}); a new one starts in {seconds:g} s")
        self.start_at, self.ready = now + seconds, False
        self.kill()

    def kill(self) -> None:
        """End the process, if there is one."""
        if self.process is not None and self.channel is not None:
            self.process.kill()
            self.process.join()
            self.process.close()
            self.channel.close()
            self.process = self.channel = None


class Signals:
    """Signals that a process has received; `reader` can be waited for."""

    def __init__(self) -> None:
        self.reader, self.writer = socket.socketpair()
        self.reader.setblocking(False)
        self.writer.setblocking(False)

    def pending(self) -> bool:
        """Whether a signal has arrived."""
        with suppress(BlockingIOError):
            return bool(self.reader.recv(1, socket.MSG_PEEK))
        return False

    def pop(self) -> int:
        """Remove and return the first signal that has arrived."""
        return self.reader.recv(1)[0]


@contextmanager
def signals() -> Iterator[Signals]:
    """Collect SIGINT and SIGTERM instead of their usual effect."""
    received = Signals()
    handlers = [signal.signal(number, lambda number, frame: None) for number in SIGNALS]
    before = signal.set_wakeup_fd(received.writer.fileno())
    try:
        yield received
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in zip(SIGNALS, handlers, strict=True):
            signal.signal(number, handler)
        received.reader.close()
        received.writer.close()


def run_worker(serve: Serve, worker: Worker) -> None:
    """The main function of a worker process."""
    os.setsid()  # Ctrl-C in a terminal is for the parent, which sends SIGTERM
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also a signal that has already arrived
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        code = serve(worker)
    except InputError as error:
        warn(str(error))
        code = BAD_INPUT
    sys.exit(code)


def end_with_parent() -> None:
    """End this process when its parent has ended, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
