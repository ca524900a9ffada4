"""Programs to compare, each in its own process, which handles one request at a time.

Separate processes avoid interference between thread pools. If a process has more OpenMP threads
than there are cores, including idle ones, GNU OpenMP hardly spins before it puts a waiting thread
to sleep. A second pool in the process is enough for that: CTranslate2 in int8 with a beam of 4
generated 190 tokens/s on 2 cores in a process with PyTorch's pool, and 2,800 with one pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

LEAST = 0.05  # seconds per turn, because every program is slow at first after a pause
Call = Callable[[], Any]  # the timed work
Prepare = Callable[..., Call]  # makes the work from a request; not timed
Make = Callable[..., Prepare]  # in the new process: one-time work


class Missing(Exception):
    """A program is not available here; the message gives the reason."""


class Program:
    """A connection to the process of a program."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection

    def wait(self) -> None:
        """Wait until the program is ready.

        Raises:
            Missing: it is not available.
        """
        missing = self.received()
        if missing is not None:
            raise Missing(missing)

    def __call__(self, *request: Any) -> tuple[Any, float]:
        """The output for a request, and the seconds that it took in the process."""
        self.connection.send(request)
        output, seconds = self.received()
        return output, seconds

    def received(self) -> Any:
        try:
            return self.connection.recv()
        except EOFError:
            raise SystemExit("the process of a program ended; its messages are above") from None


@contextmanager
def started(make: Make, *arguments: Any) -> Iterator[Program]:
    """Start the process of a program. Call `wait` before the first request."""
    context = get_context("spawn")  # does not copy the threads of this process
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, make, arguments), daemon=True)
    process.start()
    there.close()  # so that recv fails when the process ends
    try:
        yield Program(here)
    finally:
        here.close()
        process.join()


def serve(connection: Connection[Any, Any], make: Make, arguments: tuple[Any, ...]) -> None:
    """Handle requests until the connection is closed; runs in the new process."""
    from regard.errors import InputError

    try:
        prepare = make(*arguments)
    except (ImportError, InputError) as error:
        connection.send(str(error))
        return
    connection.send(None)
    while True:
        try:
            request = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        call = prepare(*request)
        start, calls, seconds = time.perf_counter(), 0, 0.0
        while seconds < LEAST:
            output, calls = call(), calls + 1
            seconds = time.perf_counter() - start
        connection.send((output, seconds / calls))
