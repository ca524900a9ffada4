"""Programs to compare, each in a process of its own, answering one request at a time.

It is for the threads' sake. Where a process has more OpenMP threads than there are cores, idle
ones included, GNU OpenMP hardly spins before it puts a waiting thread to sleep. A second pool in
the process (another program's) is enough for that: CTranslate2 in int8 with a beam of 4 wrote 190
tokens/s on 2 cores beside PyTorch's pool, and 2,800 with one pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

LEAST = 0.05  # seconds of a turn: what comes after a pause is slow at first, whoever's it is
Call = Callable[[], Any]  # what is timed
Prepare = Callable[..., Call]  # from a request; what it does itself is not timed
Make = Callable[..., Prepare]  # in the new process; everything that takes time but once


class Missing(Exception):
    """A program cannot be had here; says why."""


class Program:
    """What a process answers."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection

    def wait(self) -> None:
        """Until it is ready; Missing where it never will be."""
        missing = self.received()
        if missing is not None:
            raise Missing(missing)

    def __call__(self, *request: Any) -> tuple[Any, float]:
        """Its answer, and how many seconds that took over there."""
        self.connection.send(request)
        answer, seconds = self.received()
        return answer, seconds

    def received(self) -> Any:
        try:
            return self.connection.recv()
        except EOFError:
            raise SystemExit("a program's process came to an end: it says why above") from None


@contextmanager
def started(make: Make, *arguments: Any) -> Iterator[Program]:
    """A program that is being made: wait for it before the first request."""
    context = get_context("spawn")  # nothing of this process's threads
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, make, arguments), daemon=True)
    process.start()
    there.close()  # so that its end over there is an end here
    try:
        yield Program(here)
    finally:
        here.close()
        process.join()


def serve(connection: Connection[Any, Any], make: Make, arguments: tuple[Any, ...]) -> None:
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
            answer, calls = call(), calls + 1
            seconds = time.perf_counter() - start
        connection.send((answer, seconds / calls))
