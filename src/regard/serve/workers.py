"""`regard serve --workers N`: several processes on one port, for a CPU.

Each worker is a complete service with its own queue, so `Limits` apply to each of them. Workers map
the same weights into memory (training/mapped.py), so that an additional worker needs little memory.
They share their metrics, and they count the requests of a client together.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from regard.console import warn
from regard.serve.gateway import Gateway
from regard.serve.metrics import Metrics
from regard.serve.processes import Worker, run_processes
from regard.serve.server import Service
from regard.serve.settings import ModelName, Settings
from regard.serve.shared import SharedNumbers, SharedRates

if TYPE_CHECKING:
    from regard.serve.app import Walk


@dataclass
class Shared:
    """What the workers share."""

    metrics: SharedNumbers  # a row for each worker, and one for the workers that have ended
    rates: SharedNumbers

    def retire(self, index: int) -> None:
        """Keep the counters of a worker that has ended."""
        Metrics.retire(self.metrics.row(index), self.metrics.row(self.metrics.rows - 1))


def run_workers(
    settings: Settings,
    names: Sequence[ModelName],
    device: str,
    dtype: str,
    sockets: list[socket.socket],
    walk: Walk | None = None,
) -> int:
    """Serve models with `settings.workers` processes until SIGTERM or SIGINT.

    Args:
        settings: the settings.
        names: the models.
        device, dtype: of the models; see `regard.load`.
        sockets: listening sockets, which are closed at the end.
        walk: computes the walk through a model for the page. Picklable.

    Returns:
        The exit code; see `run_processes`.
    """
    shared = Shared(SharedNumbers(settings.workers + 1, Metrics.SIZE), SharedRates.make_table())
    serve = partial(serve_models, settings, names, device, dtype, walk)
    return run_processes(
        settings.workers, sockets, serve, shared, drain=settings.drain, ended=shared.retire
    )


def serve_models(
    settings: Settings,
    names: Sequence[ModelName],
    device: str,
    dtype: str,
    walk: Walk | None,
    worker: Worker,
) -> int:
    """Serve models in a worker process. Returns its exit code."""
    shared: Shared = worker.shared
    rows = [shared.metrics.row(index) for index in range(shared.metrics.rows)]
    own = rows.pop(worker.index)
    rates = SharedRates(settings.requests_per_minute, shared.rates)
    gateway = Gateway(settings, Metrics(own, rows), rates=rates)

    def report(message: str) -> None:
        if worker.accept_early:  # this is the first worker
            warn(message)
        worker.report_ready()

    service = Service(settings, names, device, dtype, gateway, walk, report)
    service.run(worker.fair_sockets(), load_first=not worker.accept_early)
    return 0
