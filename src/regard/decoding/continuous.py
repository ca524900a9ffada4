"""Continuous batching: requests join and leave a running batch between two decoding steps.

A `ContinuousBatch` decodes many requests of one model, each with its own options, and runs one step
of all of them at a time. The prediction for a request does not depend on the others in the batch:
it is bit-identical to the prediction for the request alone.

With the CPU engine one call of C++ runs a step of all requests, and the weights are read once for
all of them (engines/cpu.py). With the other engines each request has a search of its own, and the
searches take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.config.sections import DecodingConfig
from regard.decoding.engines import Engine, choose_engine
from regard.decoding.engines.cpu import CpuModel, CpuSearch, CpuStep, cpu_model, start_searches
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
        self.steps: Iterator[None] = iter(()) if engine is None else iter(engine)

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
        self._compiled: CpuModel | None = None  # None: each request has its own search
        self._step: CpuStep | None = None
        self._alone: list[RunningRequest] = []  # those that `_step` does not run
        self._changed = False  # whether requests have joined or left since the last step

    def add(self, requests: Sequence[tuple[Request, DecodingConfig]]) -> list[RunningRequest]:
        """Let requests join the batch, each with its options. One pass reads all their inputs now;
        see `read_tokens`.

        Raises:
            InputError: the model cannot decode one of the requests (`check_request`), and none of
                them has joined.
        """
        nothing = [Scored()]
        searches = [Search(self.model, [each], options, nothing) for each, options in requests]
        prefixes = [search.prefixes[0] for search in searches]
        scored = score(self.model, [request for request, _ in requests], prefixes, alone=True)
        for search, its_score in zip(searches, scored, strict=True):
            search.scored = [its_score]
        jobs = [search.job() for search in searches]
        engines = iter(self._start([job for job in jobs if job is not None]))
        added = [
            RunningRequest(search, None if job is None else next(engines))
            for search, job in zip(searches, jobs, strict=True)
        ]
        self.running.update(dict.fromkeys(added))
        self.rows += sum(running.width for running in added)
        self._changed = True
        return added

    def _start(self, jobs: Sequence[Job]) -> Sequence[Engine]:
        """Start a search for each job."""
        if not self.running:
            self._compiled = None if is_overridden(self.model) else cpu_model(self.model)
            self._step = None if self._compiled is None else CpuStep(self._compiled)
        if self._compiled is None:
            return [choose_engine(self.model, job) for job in jobs]
        return start_searches(self.model, jobs, self._compiled)

    def remove(self, running: RunningRequest) -> None:
        """Drop a request that has not finished."""
        del self.running[running]
        self.rows -= running.width
        self._changed = True

    def step(self) -> list[RunningRequest]:
        """Run one decoding step of all requests; returns those that have finished, which leave the
        batch."""
        if self._changed:
            self._changed = False
            engines = [running.engine for running in self.running]
            searches = [engine.pointers for engine in engines if isinstance(engine, CpuSearch)]
            if self._step is not None:
                self._step.set_searches(searches)
            self._alone = [r for r in self.running if not isinstance(r.engine, CpuSearch)]
        finished = [running for running in self._alone if next(running.steps, self) is self]
        step = self._step
        if step is not None and step.searches and step() < len(step.searches):
            finished += [
                running for running in self.running
                if isinstance(running.engine, CpuSearch) and not running.engine.pointers.unfinished
            ]  # fmt: skip
        for running in finished:
            self.remove(running)
        return finished


def read_tokens(model: Transformer, request: Request) -> int:
    """The number of tokens that are read when a request joins a batch. Callers of
    `ContinuousBatch.add` bound their sum by READ_TOKENS (or pass one request)."""
    known = len(request.known(model.encoder is not None))
    return known + (len(request.source) if model.encoder is not None else 0)
