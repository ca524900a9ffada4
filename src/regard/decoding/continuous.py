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
from regard.decoding.engines import Engine, choose_engines
from regard.decoding.engines.cpu import CpuModel, CpuSearch, CpuStep
from regard.decoding.predictions import Prediction
from regard.decoding.requests import Request
from regard.decoding.score import score_prefixes
from regard.decoding.search import Search
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
    """The requests of one model that are being decoded. It is used by one thread."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.running: dict[RunningRequest, None] = {}  # in the order in which they joined
        self.rows = 0  # hypotheses of all running requests
        self._cpu_steps: dict[CpuModel, CpuStep] = {}  # usually one; another if weights change
        self._others: list[RunningRequest] = []  # those that no CpuStep runs
        self._changed = False  # whether requests have joined or left since the last step

    def add(self, requests: Sequence[tuple[Request, DecodingConfig]]) -> list[RunningRequest]:
        """Let requests join the batch, each with its options. One pass reads all their inputs now;
        see `read_tokens`.

        Raises:
            InputError: the model cannot decode one of the requests (`check_request`), and none of
                them has joined.
        """
        searches = [
            Search(self.model, [request], options, [[]]) for request, options in requests
        ]
        alone = [search.requests[0] for search in searches]
        prefixes = [search.prefixes[0] for search in searches]
        for search, logprobs in zip(
            searches, score_prefixes(self.model, alone, prefixes), strict=True
        ):
            search.prefix_logprobs = [logprobs]
        jobs = [search.job() for search in searches]
        engines = iter(choose_engines(self.model, [job for job in jobs if job is not None]))
        added = [
            RunningRequest(search, None if job is None else next(engines))
            for search, job in zip(searches, jobs, strict=True)
        ]
        self.running.update(dict.fromkeys(added))
        self.rows += sum(running.width for running in added)
        self._changed = True
        return added

    def remove(self, running: RunningRequest) -> None:
        """Drop a request that has not finished."""
        del self.running[running]
        self.rows -= running.width
        self._changed = True

    def step(self) -> list[RunningRequest]:
        """Run one decoding step of all requests; returns those that have finished, which leave the
        batch."""
        if self._changed:
            self._arrange()
        finished = [running for running in self._others if next(running.steps, self) is self]
        for cpu_step in self._cpu_steps.values():
            if cpu_step() < len(cpu_step.searches):
                finished += [
                    running for running in self.running
                    if isinstance(running.engine, CpuSearch)
                    and running.engine.compiled is cpu_step.model
                    and not running.engine.pointers.unfinished
                ]  # fmt: skip
        for running in finished:
            self.remove(running)
        return finished

    def _arrange(self) -> None:
        """Give the searches of the CPU engine to one CpuStep."""
        self._changed = False
        self._others = []
        groups: dict[CpuModel, list[CpuSearch]] = {}
        for running in self.running:
            if isinstance(running.engine, CpuSearch):
                groups.setdefault(running.engine.compiled, []).append(running.engine)
            else:
                self._others.append(running)
        self._cpu_steps = {
            model: self._cpu_steps.get(model) or CpuStep(model) for model in groups
        }
        for model, searches in groups.items():
            self._cpu_steps[model].set_searches([search.pointers for search in searches])


def read_tokens(model: Transformer, request: Request) -> int:
    """The number of tokens that are read when a request joins a batch. Callers of
    `ContinuousBatch.add` bound their sum by READ_TOKENS (or pass one request)."""
    known = len(request.known(model.encoder is not None))
    return known + (len(request.source) if model.encoder is not None else 0)
