"""Continuous batching: requests join and leave a running batch between two decoding steps.

A `ContinuousBatch` decodes many requests of one model, each with its own options, and runs one step
of all of them at a time. The prediction for a request does not depend on the others in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.config.sections import DecodingConfig
from regard.decoding.predictions import Prediction
from regard.decoding.requests import Request
from regard.decoding.search import Search
from regard.model.transformer import Transformer


class RunningRequest:
    """One request in a `ContinuousBatch`."""

    def __init__(self, model: Transformer, request: Request, options: DecodingConfig) -> None:
        self.search = Search(model, [request], options)
        self.steps: Iterator[None] = iter(self.search)
        self.width = options.width  # hypotheses

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
        self.running: list[RunningRequest] = []

    @property
    def rows(self) -> int:
        """The number of hypotheses of all running requests."""
        return sum(running.width for running in self.running)

    def add(self, requests: Sequence[tuple[Request, DecodingConfig]]) -> list[RunningRequest]:
        """Let requests join the batch, each with its options; their inputs are read now."""
        added = [RunningRequest(self.model, *each) for each in requests]
        self.running += added
        return added

    def remove(self, running: RunningRequest) -> None:
        """Drop a request that has not finished."""
        self.running.remove(running)

    def step(self) -> list[RunningRequest]:
        """Run one decoding step of all requests; returns those that have finished, which leave the
        batch."""
        finished = [running for running in self.running if next(running.steps, self) is self]
        self.running = [running for running in self.running if running not in finished]
        return finished
