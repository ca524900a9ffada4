"""The work of the scheduler: jobs, and the decoding requests of one model (a lane)."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.decoding.continuous import READ_TOKENS, ContinuousBatch, RunningRequest, read_tokens
from regard.decoding.predictions import Prediction
from regard.decoding.search import DecodingPlan
from regard.model.transformer import Transformer
from regard.serve.errors import ServiceError

MOST_ROWS = 256  # hypotheses of the running batch of a model
TURNS = 32  # jobs that take turns to join; later ones wait
MOST_PLACES = 65_536  # tokens for which the caches of a model have memory
NICENESS = 5  # of the model's thread; 0 is the usual priority, 19 the lowest
TURN_SECONDS = 0.002  # for which results of a step occupy the event loop


@dataclass(eq=False)
class Job:
    """Work that one handler waits for."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    tokens: int  # that the job occupies in the queue
    cancelled: bool = False


@dataclass(eq=False)
class DecodingJob(Job):
    """The requests of one plan."""

    transformer: Transformer = field(kw_only=True)
    plan: DecodingPlan = field(kw_only=True)
    updates: asyncio.Queue[list[int] | None] | None = None  # of a stream: the settled tokens
    waiting: deque[int] = field(default_factory=deque)  # indices of requests that have not joined
    running: dict[int, RunningRequest] = field(default_factory=dict)
    predictions: dict[int, Prediction] = field(default_factory=dict)

    @property
    def described(self) -> bool:
        """Whether one more pass adds details to the predictions."""
        return bool(self.plan.details.alternatives or self.plan.details.attention)

    def places(self, i: int) -> int:
        """The number of tokens that the cache of a request has memory for."""
        request, options = self.plan.requests[i], self.plan.options
        most = request.max_tokens(self.transformer.config, options)
        return len(request.source) + options.width * most

    def queue_tokens(self, i: int) -> int:
        """The number of tokens that a request takes in the queue: input and largest output."""
        request, config = self.plan.requests[i], self.transformer.config
        return len(request.source) + request.max_tokens(config, self.plan.options)

    def predict(self, i: int, running: RunningRequest) -> int:
        """Store the prediction of a request, with its text; returns the number of its tokens."""
        details, options = self.plan.details, self.plan.options
        prediction = running.prediction(details.history, spares=options.n_best > 1)
        self.predictions[i] = self.plan.spell(i, prediction)
        return len(prediction.token_ids)

    def in_order(self) -> list[Prediction]:
        """The predictions of all requests."""
        return [self.predictions[i] for i in range(len(self.plan.requests))]


@dataclass(eq=False)
class ComputeJob(Job):
    """A function to call with items; jobs with the same key can share a call."""

    key: Hashable = field(kw_only=True)
    function: Callable[[list[Any]], Sequence[Any]] = field(kw_only=True)
    items: Sequence[Any] = field(kw_only=True)
    sizes: Sequence[int] = field(kw_only=True)  # tokens of each item
    results: list[Any] = field(default_factory=list)

    def next_items(self, count: int) -> Sequence[Any]:
        """The next items without a result."""
        start = len(self.results)
        return self.items[start : start + count]

    def fitting(self, tokens: int) -> int:
        """The number of next items that have at most this many tokens."""
        count = 0
        for size in self.sizes[len(self.results) :]:
            tokens -= size
            if tokens < 0:
                break
            count += 1
        return count


class ComputeQueue(deque[ComputeJob]):
    """The compute jobs that are not done."""

    def choose(self, tokens: int) -> list[tuple[ComputeJob, int]]:
        """The jobs of the next call, each with the number of its items in it: the first job and
        those with the same key, up to this many tokens and at least one item."""
        while self and self[0].cancelled:
            self.popleft()
        parts: list[tuple[ComputeJob, int]] = []
        for job in self:
            if job.key != self[0].key or job.cancelled:
                continue
            count = job.fitting(tokens)
            if not (count or parts):
                count = 1
            done = len(job.results)
            if count:
                parts.append((job, count))
                tokens -= sum(job.sizes[done : done + count])
            if done + count < len(job.items):
                break
        return parts


class Lane:
    """The decoding requests of one model: those that wait, and those that run. Only the thread of
    the scheduler uses it."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer
        self.waiting: deque[DecodingJob] = deque()  # jobs with requests that have not joined
        self.batch = ContinuousBatch(transformer)
        self.owners: dict[RunningRequest, tuple[DecodingJob, int]] = {}
        self.streams: dict[RunningRequest, DecodingJob] = {}
        self.places = 0  # of all running requests
        self.steps = 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.owners)

    def choose(self) -> list[tuple[DecodingJob, int]]:
        """The requests that join before the next step: one of each of the oldest jobs in turn, as
        many as the limits allow, and at least one if no request is running."""
        chosen: list[tuple[DecodingJob, int]] = []
        rows, places, read = self.batch.rows, self.places, 0
        while self.waiting:
            job = self.waiting[0]
            if job.waiting:
                i = job.waiting[0]
                rows += job.plan.options.width
                places += job.places(i)
                read += read_tokens(self.transformer, job.plan.requests[i])
                full = rows > MOST_ROWS or places > MOST_PLACES
                if (full and (chosen or self.owners)) or (read > READ_TOKENS and chosen):
                    break
                chosen.append((job, job.waiting.popleft()))
            self.waiting.popleft()
            if job.waiting:
                self.waiting.insert(TURNS - 1, job)
        return chosen

    def join(self, chosen: Sequence[tuple[DecodingJob, int]]) -> None:
        """Let requests join the batch."""
        added = self.batch.add([(job.plan.requests[i], job.plan.options) for job, i in chosen])
        for running, (job, i) in zip(added, chosen, strict=True):
            job.running[i] = running
            self.owners[running] = job, i
            self.places += job.places(i)
            if job.updates is not None:
                self.streams[running] = job

    def leave(self, running: RunningRequest) -> tuple[DecodingJob, int]:
        """Forget a request that is no longer in the batch; returns its job and its index."""
        job, i = self.owners.pop(running)
        self.streams.pop(running, None)
        del job.running[i]
        self.places -= job.places(i)
        return job, i

    def reset(self) -> list[DecodingJob]:
        """Forget all running requests and their jobs, for example because a step failed; returns
        the jobs."""
        jobs = list(dict.fromkeys(job for job, _ in self.owners.values()))
        for job in jobs:
            job.waiting.clear()
            job.running.clear()
        self.batch, self.places = ContinuousBatch(self.transformer), 0
        self.owners.clear()
        self.streams.clear()
        return jobs

    def drop(self, job: DecodingJob) -> None:
        """Remove the requests of a job."""
        job.waiting.clear()
        for running in list(job.running.values()):
            self.batch.remove(running)
            self.leave(running)


def lower_priority() -> None:
    """Lower the priority of this thread and of the OpenMP threads that it starts, so that the event
    loop gets a core at once when it has work."""
    if sys.platform == "linux":  # where the priority belongs to a thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def run_all(loop: asyncio.AbstractEventLoop, calls: deque[Callable[[], object]]) -> None:
    """Call functions in an event loop. It does other work in between, because the predictions of
    many requests that finish in one step take long."""
    end = time.monotonic() + TURN_SECONDS
    while calls:
        calls.popleft()()
        if calls and time.monotonic() > end:
            loop.call_soon(run_all, loop, calls)
            return


def stopping_error() -> ServiceError:
    """The error for jobs that the service cannot finish because it is shutting down."""
    return ServiceError(
        503, "the service is shutting down: try again later", code="stopping", retry_after=1
    )


def resolve(job: Job) -> None:
    """Set the result of a job's future, unless it was cancelled."""
    if not job.future.done():
        job.future.set_result(None)


def reject(job: Job, error: Exception) -> None:
    """Set the exception of a job's future, unless it was cancelled."""
    if not job.future.done():
        job.future.set_exception(error)
