"""Counters of a service, written in the Prometheus text format.

All numbers are in one flat sequence, which can be in shared memory: with several processes, each
writes its own numbers and any of them can write the sums.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.serve.models import ModelPool

    Numbers = list[float] | memoryview[float]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATUSES = (
    200, 204, 304, 400, 401, 403, 404, 405, 408, 413, 415, 429, 456, 499, 500, 503,
    0,  # any other status
)  # fmt: skip
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
MOST_ENDPOINTS = 64
RATE_SECONDS = 10.0  # over which the decoded tokens per second are averaged
# Name, type and description of the numbers of the process, after those of the endpoints.
GAUGES = (
    ("regard_num_requests_running", "gauge", "Requests in running batches."),
    ("regard_num_requests_waiting", "gauge", "Requests in the queue."),
    ("regard_num_streams", "gauge", "Responses that are being streamed."),
    ("regard_num_connections", "gauge", "Open connections."),
    ("regard_queue_tokens", "gauge", "Tokens that are accepted and not yet decoded."),
    ("regard_batch_rows", "gauge", "Hypotheses in running batches."),
    ("regard_decoding_steps_total", "counter", "Decoding steps."),
    ("regard_decoded_tokens_total", "counter", "Tokens of finished outputs."),
    ("regard_tokens_per_second", "gauge", "Decoded tokens per second, over ten seconds."),
    ("regard_deepl_characters_total", "counter", "Characters that /v2/translate translated."),
    ("regard_workers", "gauge", "Processes whose models are loaded."),
    ("process_resident_memory_bytes", "gauge", "Memory of the processes."),
)
COUNTS = MOST_ENDPOINTS * len(STATUSES)
TIMES = MOST_ENDPOINTS * (len(BUCKETS) + 2)  # buckets, requests above them, and seconds
PLACES = {name: COUNTS + TIMES + i for i, (name, _, _) in enumerate(GAUGES)}


class Metrics:
    """The numbers of one process.

    Args:
        values: SIZE numbers, zero at first; shared memory if there are several processes.
        others: the numbers of the other processes.
    """

    SIZE = COUNTS + TIMES + len(GAUGES)

    def __init__(
        self,
        values: Numbers | None = None,
        others: Sequence[Sequence[float]] = (),
    ) -> None:
        self.values = [0.0] * self.SIZE if values is None else values
        self.others = others
        self.endpoints = [("", "other")]  # interface and path
        self._decoded: deque[tuple[float, float]] = deque()

    def count(self, endpoint: int, status: int, seconds: float) -> None:
        """Count a response of the endpoint with this index in `endpoints`."""
        column = STATUSES.index(status if status in STATUSES else 0)
        self.values[endpoint * len(STATUSES) + column] += 1
        place = COUNTS + endpoint * (len(BUCKETS) + 2)
        self.values[place + bisect_left(BUCKETS, seconds)] += 1
        self.values[place + len(BUCKETS) + 1] += seconds

    @staticmethod
    def retire(values: Numbers, ended: Numbers) -> None:
        """Add the counters of a process that has ended to `ended`, and set all its values to
        zero."""
        gauges = {PLACES[name] for name, kind, _ in GAUGES if kind == "gauge"}
        for i, value in enumerate(values):
            if i not in gauges:
                ended[i] += value
            values[i] = 0.0

    def update(self, pool: ModelPool | None, streams: int, connections: int) -> None:
        """Store the current state of the process."""
        gauges: dict[str, float] = {
            "regard_num_streams": streams,
            "regard_num_connections": connections,
            "process_resident_memory_bytes": resident_bytes(),
        }
        if pool is not None:
            scheduler = pool.scheduler
            gauges |= {
                "regard_num_requests_running": scheduler.running,
                "regard_num_requests_waiting": scheduler.waiting,
                "regard_queue_tokens": scheduler.outstanding,
                "regard_batch_rows": scheduler.rows,
                "regard_decoding_steps_total": scheduler.steps,
                "regard_decoded_tokens_total": scheduler.decoded_tokens,
                "regard_tokens_per_second": self._rate(scheduler.decoded_tokens),
                "regard_workers": pool.ready,
            }
        for name, value in gauges.items():
            self.values[PLACES[name]] = value

    def add(self, name: str, number: float) -> None:
        """Add to a counter of GAUGES."""
        self.values[PLACES[name]] += number

    def total(self, name: str) -> float:
        """A number of GAUGES, summed over all processes."""
        return sum(values[PLACES[name]] for values in (self.values, *self.others))

    def _rate(self, decoded: int) -> float:
        now = time.monotonic()
        self._decoded.append((now, decoded))
        while self._decoded[0][0] < now - RATE_SECONDS:
            self._decoded.popleft()
        then, earlier = self._decoded[0]
        return (decoded - earlier) / (now - then) if now > then else 0.0

    def render(self, ready: bool, models: Mapping[str, str]) -> str:
        """The metrics of all processes in the text format.

        Args:
            ready: whether the models are loaded.
            models: the tasks of the loaded models by name.
        """
        values = [sum(column) for column in zip(self.values, *self.others, strict=True)]
        lines: list[str] = []
        lines += header("regard_requests_total", "counter", "Responses.")
        for i, (labels, _) in enumerate(self._labels()):
            row = values[i * len(STATUSES) : (i + 1) * len(STATUSES)]
            for status, number in zip(STATUSES, row, strict=True):
                if number:
                    name = str(status) if status else "other"
                    lines.append(sample("regard_requests_total", labels | {"status": name}, number))
        name = "regard_request_duration_seconds"
        lines += header(name, "histogram", "Time from the request to the end of the response.")
        for labels, place in self._labels():
            *counts, seconds = values[place : place + len(BUCKETS) + 2]
            if not sum(counts):
                continue
            total = 0.0
            for bound, number in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                total += number
                lines.append(sample(f"{name}_bucket", labels | {"le": bound}, total))
            lines.append(sample(f"{name}_sum", labels, seconds))
            lines.append(sample(f"{name}_count", labels, total))
        for (name, kind, text), number in zip(GAUGES, values[COUNTS + TIMES :], strict=True):
            lines += [*header(name, kind, text), sample(name, {}, number)]
        lines += header("regard_ready", "gauge", "1 if all models are loaded.")
        lines.append(sample("regard_ready", {}, float(ready)))
        lines += header("regard_model_loaded", "gauge", "1 for each loaded model.")
        for model, task in models.items():
            lines.append(sample("regard_model_loaded", {"model": model, "task": task}, 1.0))
        return "\n".join(lines) + "\n"

    def _labels(self) -> Iterator[tuple[dict[str, str], int]]:
        """The labels of each endpoint, and the place of its times."""
        for i, (interface, path) in enumerate(self.endpoints):
            place = COUNTS + i * (len(BUCKETS) + 2)
            yield {"interface": interface, "endpoint": path}, place


def header(name: str, kind: str, text: str) -> list[str]:
    """The description of a metric."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """One line of the text format."""
    pairs = ",".join(f'{label}="{escape(text)}"' for label, text in labels.items())
    number = str(int(value)) if value == int(value) else repr(value)
    return f"{name}{{{pairs}}} {number}" if pairs else f"{name} {number}"


def escape(text: str) -> str:
    """The value of a label, as the text format writes it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resident_bytes() -> int:
    """The resident memory of this process; 0 where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
