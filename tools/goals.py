"""The performance goals, row by row, which docs/performance.md compares with the measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.compare import PEERS
from benchmarks.ratios import SMALLER_IS_BETTER, Row

ASYNCHRONOUS = "CTranslate2 int8, asynchronous"
NOT_A_PEER = PEERS["pytorch"][0]  # regard without C++ code


@dataclass(frozen=True)
class Goal:
    """For one piece of work: a ratio to the best peer, or an absolute figure."""

    benchmark: str
    work: str
    device: str = "cpu"
    times: float | None = None
    figure: float | None = None  # a minimum; for seconds and bytes a maximum
    peers: str = ""  # only peers whose name starts with this

    def describe(self, unit: str) -> str:
        if self.figure is None:
            return f"{self.times:g}x {self.peers or 'the best peer'}"
        return f"at {'most' if unit in SMALLER_IS_BETTER else 'least'} {self.figure:,g} {unit}"


@dataclass(frozen=True)
class Reached:
    """The best precision of regard next to the best peer of the same run."""

    row: Row  # with that precision and peer

    def meets(self, goal: Goal) -> bool:
        if goal.figure is None:
            return goal.times is None or self.row.ratio >= goal.times
        smaller = self.row.unit in SMALLER_IS_BETTER
        return self.row.value <= goal.figure if smaller else self.row.value >= goal.figure


def reached(rows: Iterable[Row], goal: Goal) -> Reached | None:
    """The row of the best precision of regard and the best peer, which is the lowest ratio."""
    chosen = [
        row for row in rows
        if (row.benchmark, row.work, row.device) == (goal.benchmark, goal.work, goal.device)
        and row.peer.startswith(goal.peers) and not row.peer.startswith(NOT_A_PEER)
    ]  # fmt: skip
    if not chosen:
        return None
    better = min if chosen[0].unit in SMALLER_IS_BETTER else max
    best = better(row.value for row in chosen)
    return Reached(min((row for row in chosen if row.value == best), key=lambda row: row.ratio))


def decoding(works: Sequence[tuple[str, float]], benchmark: str = "decode") -> list[Goal]:
    return [Goal(benchmark, work, times=times, peers="CTranslate2") for work, times in works]


SECTIONS: dict[str, list[Goal]] = {
    "training_gpu": [
        Goal("train", "base, 25,000 tokens", "cuda", figure=850_000),
        Goal("train", "gpt2, 16 x 1,024 tokens", "cuda", figure=510_000),
        Goal("train", "base, 25,000 tokens: memory", "cuda", figure=9.0),
        Goal("startup", "base, caches warm", "cuda", figure=20.0),
    ],
    "latency": [
        Goal("latency", f"{verb}, cache {cache}", figure=3.0)
        for verb in ("translate", "classify", "fill", "generate", "embed", "search")
        for cache in ("cold", "warm")
    ],
    "serving": [
        Goal("serve", "base, 32 clients, beam 4", times=1.5, peers=ASYNCHRONOUS),
        Goal("serve", "base, 32 clients, beam 4: p99", times=1.0, peers=ASYNCHRONOUS),
        *[Goal("serve", f"start: {kind}", figure=3.0) for kind in ("page", "first translation")],
    ],
    "training_cpu": [
        Goal("step", "tiny, 4,096 tokens", times=2.0),
        Goal("step", "small, 4,096 tokens", times=1.6),
        Goal("step", "base, 2,048 tokens", times=1.6),
    ],
    "decoding_cpu": decoding([
        ("base, batch 1, greedy", 2.5), ("base, batch 1, beam 4", 2.0),
        ("base, batch 32, greedy", 1.3), ("base, batch 32, beam 4", 1.3),
        ("small, batch 1, greedy", 1.5), ("small, batch 32, greedy", 1.5),
        ("tiny, batch 1, greedy", 1.0), ("tiny, batch 32, greedy", 1.0),
    ]),
    "encoders": [Goal("encoders", shape, times=1.3) for shape in ("BERT-base", "BERT-mini")],
    "generators": decoding(
        [(f"GPT-2 small, batch {batch}, greedy", 2.0) for batch in (1, 8)], "generators"
    ),
    "decoding_gpu": [
        Goal("decode", f"base, batch {batch}, {search}", "cuda", times=times)
        for batch, times in ((1, 20.0), (32, 15.0), (256, 10.0))
        for search in ("greedy", "beam 4")
    ],
}  # fmt: skip
