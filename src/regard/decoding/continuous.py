"""Continuous batching: requests join and leave a running batch between two decoding steps.

A `ContinuousBatch` decodes many requests of one model, each with its own options, and runs one step
of all of them at a time. The prediction for a request does not depend on the others in the batch:
it is bit-identical to the prediction for the request alone.

With the CPU engine one call of C++ runs a step of all requests, and the weights are read once for
all of them (engines/cpu.py). All sentences of a CUDA graph are at the same step, so requests
that join at the same time share a search (engines/graph_groups.py), and the searches take turns.
With the eager engine each request has a search of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.config.sections import DecodingConfig
from regard.decoding.engines import Engine, choose_engine, has_graphs
from regard.decoding.engines.cpu import CpuModel, CpuSearch, CpuStep, cpu_model, start_searches
from regard.decoding.engines.graph_groups import GraphGroup, GraphRow, start_groups
from regard.decoding.predictions import Prediction
from regard.decoding.requests import Job, Request
from regard.decoding.score import Scored, score
from regard.decoding.search import Search
from regard.model.overrides import is_overridden
from regard.model.transformer import Transformer

READ_TOKENS = 768  # tokens that are read between two steps, so that running requests wait little


class RunningRequest:
    """One request in a `ContinuousBatch`."""

    def __init__(self, search: Search, engine: Engine | None) -> None:
        self.search, self.width = search, search.options.width  # width: hypotheses
        search.engine = self.engine = engine  # None: the prefix is already a complete output

    def prediction(self, history: bool = False, spares: bool = False) -> Prediction:
        """The best prediction so far; see `Search.predictions`."""
        return self.search.predictions(history, spares)[0]

    def settled(self) -> list[int]:
        """The tokens of the output that cannot change any more."""
        return self.search.settled()


class ContinuousBatch:
    """The requests of one model that are being decoded. It is used by one thread. The model must
    not change while requests are running."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.running: dict[RunningRequest, None] = {}  # in the order in which they joined
        self.rows = 0  # hypotheses of all running requests
        self._compiled: CpuModel | None = None  # None: the CPU engine is not used
        self._cpu_step: CpuStep | None = None
        self._groups: dict[GraphGroup, dict[GraphRow, RunningRequest]] = {}
        self._alone: dict[RunningRequest, Iterator[None]] = {}  # requests of the eager engine
        self._changed = False  # whether requests have joined or left since the last step

    def add(self, requests: Sequence[tuple[Request, DecodingConfig]]) -> list[RunningRequest]:
        """Let requests join the batch, each with its options. One pass reads all their inputs now;
        see `read_tokens`.

        Raises:
            InputError: the model cannot decode one of the requests (`check_request`), and none of
                them has joined.
        """
        unscored = [Scored()]  # replaced below
        searches = [
            Search(self.model, [request], options, unscored) for request, options in requests
        ]
        prefixes = [search.prefixes[0] for search in searches]
        scored = score(self.model, [request for request, _ in requests], prefixes, alone=True)
        for search, prefix_score in zip(searches, scored, strict=True):
            search.scored = [prefix_score]
        jobs = [search.job() for search in searches]
        engines = iter(self._start([job for job in jobs if job is not None]))
        added = [
            RunningRequest(search, None if job is None else next(engines))
            for search, job in zip(searches, jobs, strict=True)
        ]
        for running in added:
            self.running[running] = None
            self.rows += running.width
            if isinstance(running.engine, GraphRow):
                self._groups.setdefault(running.engine.group, {})[running.engine] = running
            elif not isinstance(running.engine, CpuSearch):
                self._alone[running] = iter(running.engine or ())
        self._changed = True
        return added

    def _start(self, jobs: Sequence[Job]) -> Sequence[Engine]:
        """Start a search for each job."""
        if not self.running:
            self._compiled = None if is_overridden(self.model) else cpu_model(self.model)
            self._cpu_step = None if self._compiled is None else CpuStep(self._compiled)
        if self._compiled is not None:
            return start_searches(self.model, jobs, self._compiled)
        if is_overridden(self.model) or not all(has_graphs(self.model, job) for job in jobs):
            return [choose_engine(self.model, job) for job in jobs]
        return start_groups(self.model, jobs)

    def remove(self, running: RunningRequest) -> None:
        """Remove a request before it has finished."""
        del self.running[running]
        self.rows -= running.width
        self._alone.pop(running, None)
        if isinstance(running.engine, GraphRow):
            group = running.engine.group
            del self._groups[group][running.engine]
            if not self._groups[group]:
                del self._groups[group]
                group.close()
        self._changed = True

    def step(self) -> list[RunningRequest]:
        """Run one decoding step of all requests; returns those that have finished, which leave the
        batch."""
        finished = [running for running, steps in self._alone.items() if next(steps, self) is self]
        for group, rows in self._groups.items():
            finished += [rows[row] for row in group.step() if row in rows]
        if self._cpu_step is not None:
            finished += self._step_cpu(self._cpu_step)
        for running in finished:
            self.remove(running)
        return finished

    def _step_cpu(self, step: CpuStep) -> list[RunningRequest]:
        """Run one step of the requests of the CPU engine; returns those that have finished."""
        if self._changed:
            self._changed = False
            engines = [running.engine for running in self.running]
            step.set_searches([each.pointers for each in engines if isinstance(each, CpuSearch)])
        if not step.searches or step() == len(step.searches):
            return []
        return [
            running for running in self.running
            if isinstance(running.engine, CpuSearch) and not running.engine.pointers.unfinished
        ]  # fmt: skip


def read_tokens(model: Transformer, request: Request) -> int:
    """The number of tokens that are read when a request joins a batch. Callers of
    `ContinuousBatch.add` bound their sum by READ_TOKENS (or pass one request)."""
    known = len(request.known(model.encoder is not None))
    return known + (len(request.source) if model.encoder is not None else 0)
