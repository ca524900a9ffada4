"""Calls from several threads at once, for tests."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of the calls, in order; each runs in its own thread, and all start together."""
    start = Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def check_concurrent(
    calls: dict[str, Callable[[], object]], threads: int = 8, rounds: int = 10
) -> int:
    """Run every call in every thread `rounds` times, each thread in a different order, and
    compare each result with that of a sequential call. Returns the number of calls."""
    alone = {name: repr(call()) for name, call in calls.items()}
    names = list(calls)

    def work(number: int) -> list[str]:
        different = []
        for turn in range(rounds):
            shift = (number * 3 + turn) % len(names)
            order = names[shift:] + names[:shift]
            for name in reversed(order) if number % 2 else order:
                if repr(calls[name]()) != alone[name]:
                    different.append(name)
        return different

    different = at_once([lambda number=number: work(number) for number in range(threads)])
    assert not any(different), f"results that differ: {[names for names in different if names]}"
    return threads * rounds * len(names)
