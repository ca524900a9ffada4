"""The thread that runs all models of a device, and the queue in front of it.

Requests join the running batch of their model between two decoding steps and leave it as soon as
they are done (decoding/continuous.py), so nothing waits for a batch to fill. Between two steps the
thread also runs what needs no search: classification, embeddings, and the details of predictions.
Handlers of the event loop wait with `await`; they never block it. A handler that is cancelled,
because its client disconnected or its time is over, frees its place before the next step.

Texts of different requests take turns to join, so a large request does not delay small ones. The
predictions do not depend on which requests run together.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from regard.decoding.continuous import ContinuousBatch, RunningRequest
from regard.decoding.predictions import Prediction
from regard.decoding.search import DecodingPlan, describe
from regard.model.transformer import Transformer
from regard.serve.errors import Overloaded

MOST_ROWS = 256  # hypotheses of the running batch of a model
COMPUTE_TOKENS = 4_096  # tokens of one call between two steps
FIRST_SPEED = 1_000.0  # tokens per second before anything was measured
SPEED_WINDOW = 10.0  # seconds over which the speed is averaged


@dataclass(eq=False)
class Job:
    """Work that one handler waits for."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    tokens: int  # that it takes in the queue
    cancelled: bool = False


@dataclass(eq=False)
class DecodingJob(Job):
    """The requests of one plan."""

    transformer: Transformer = field(kw_only=True)
    plan: DecodingPlan = field(kw_only=True)
    # Of a stream: the settled tokens so far, and None at the end.
    updates: asyncio.Queue[list[int] | None] | None = None
    waiting: deque[int] = field(default_factory=deque)  # indices of requests that have not joined
    running: dict[int, RunningRequest] = field(default_factory=dict)
    predictions: dict[int, Prediction] = field(default_factory=dict)


@dataclass(eq=False)
class ComputeJob(Job):
    """A function of some items; jobs with the same key can share a call."""

    key: Hashable = field(kw_only=True)
    function: Callable[[list[Any]], Sequence[Any]] = field(kw_only=True)
    items: Sequence[Any] = field(kw_only=True)
    sizes: Sequence[int] = field(kw_only=True)  # tokens of each item
    results: list[Any] = field(default_factory=list)


class Scheduler:
    """Runs models in one thread. Create it, then `start` it; all other methods are called in the
    event loop."""

    def __init__(self, queue_tokens: int) -> None:
        self.queue_tokens = queue_tokens
        self.outstanding = 0  # tokens of jobs that are not done; changed in the event loop only
        self.steps = 0  # decoding steps so far
        self.decoded_tokens = 0  # tokens of finished outputs
        self._work = threading.Condition()
        self._inbox: deque[Job] = deque()
        self._decoding: dict[Transformer, deque[DecodingJob]] = {}
        self._batches: dict[Transformer, ContinuousBatch] = {}
        self._computing: deque[ComputeJob] = deque()
        self._owners: dict[RunningRequest, tuple[DecodingJob, int]] = {}
        self._stopping = False
        self._finished: deque[tuple[float, int]] = deque()  # time and tokens of finished jobs
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    # ---- in the event loop --------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the current step; jobs that are not done never finish."""
        with self._work:
            self._stopping = True
            self._work.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def running(self) -> int:
        """The number of requests in running batches."""
        return sum(len(batch.running) for batch in list(self._batches.values()))

    @property
    def rows(self) -> int:
        """The number of hypotheses in running batches."""
        return sum(batch.rows for batch in list(self._batches.values()))

    @property
    def waiting(self) -> int:
        """The number of requests that have not joined a batch."""
        jobs = [job for queue in list(self._decoding.values()) for job in list(queue)]
        return len(self._inbox) + len(self._computing) + sum(len(job.waiting) for job in jobs)

    def speed(self) -> float:
        """Tokens of the queue that were finished per second, averaged over the last seconds."""
        now = time.monotonic()
        while self._finished and self._finished[0][0] < now - SPEED_WINDOW:
            self._finished.popleft()
        if not self._finished:
            return FIRST_SPEED
        elapsed = max(0.1, now - self._finished[0][0])
        return max(1.0, sum(tokens for _, tokens in self._finished) / elapsed)

    async def decode(self, transformer: Transformer, plan: DecodingPlan) -> list[Prediction]:
        """Decode the requests of a plan, and return its predictions, one for each input.

        Raises:
            Overloaded: the queue is full.
            InputError: the model computed NaN.
        """
        job = self._decoding_job(transformer, plan)
        await self._wait(job)
        predictions = [job.predictions[i] for i in range(len(plan.requests))]
        return plan.finish(plan.spell(predictions))

    async def stream(
        self, transformer: Transformer, plan: DecodingPlan
    ) -> AsyncGenerator[tuple[list[int], Prediction | None], None]:
        """Decode the only request of a plan. Yields the output tokens that cannot change any more,
        each time with more of them, and last all tokens and the finished prediction. Closing the
        iterator cancels the request."""
        job = self._decoding_job(transformer, plan)
        updates = job.updates = asyncio.Queue()
        waiter = asyncio.ensure_future(self._wait(job))
        waiter.add_done_callback(lambda _: updates.put_nowait(None))
        try:
            known = 0
            while (tokens := await updates.get()) is not None:
                if len(tokens) > known:
                    known = len(tokens)
                    yield tokens, None
            await waiter
            prediction = plan.finish(plan.spell([job.predictions[0]]))[0]
            yield prediction.token_ids, prediction
        finally:
            if not waiter.done():
                waiter.cancel()

    async def compute(
        self,
        key: Hashable,
        function: Callable[[list[Any]], Sequence[Any]],
        items: Sequence[Any],
        sizes: Sequence[int],
    ) -> list[Any]:
        """Call a function of a list in the thread, between two decoding steps.

        Args:
            key: jobs with the same key share calls of the function.
            function: returns one result for each item, which does not depend on the others.
            items: the items.
            sizes: the number of tokens of each item; a call gets items of about COMPUTE_TOKENS.

        Returns:
            The results.

        Raises:
            Overloaded: the queue is full.
        """
        if not items:
            return []
        loop = asyncio.get_running_loop()
        job = ComputeJob(
            loop, loop.create_future(), sum(sizes),
            key=key, function=function, items=items, sizes=sizes,
        )  # fmt: skip
        await self._wait(job)
        return job.results

    def _decoding_job(self, transformer: Transformer, plan: DecodingPlan) -> DecodingJob:
        loop = asyncio.get_running_loop()
        config = transformer.config
        tokens = sum(
            len(request.source) + request.max_tokens(config, plan.options)
            for request in plan.requests
        )
        job = DecodingJob(loop, loop.create_future(), tokens, transformer=transformer, plan=plan)
        job.waiting.extend(range(len(plan.requests)))
        return job

    async def _wait(self, job: Job) -> None:
        """Put a job into the queue and wait until it is done."""
        if self.outstanding and self.outstanding + job.tokens > self.queue_tokens:
            raise Overloaded(self.outstanding / self.speed())
        self.outstanding += job.tokens
        with self._work:
            self._inbox.append(job)
            self._work.notify()
        try:
            await job.future
            self._finished.append((time.monotonic(), job.tokens))
        finally:
            job.cancelled = True  # does nothing if the job is done
            self.outstanding -= job.tokens

    # ---- in the thread ------------------------------------------------------------------

    @torch.no_grad()
    def _run(self) -> None:
        while True:
            with self._work:
                while not self._stopping and not self._inbox and not self._busy():
                    self._work.wait()
                if self._stopping:
                    return
                arrived = [self._inbox.popleft() for _ in range(len(self._inbox))]
            for job in arrived:
                if isinstance(job, DecodingJob):
                    self._decoding.setdefault(job.transformer, deque()).append(job)
                elif isinstance(job, ComputeJob):
                    self._computing.append(job)
            self._compute()
            for transformer in list(self._decoding):
                self._decode(transformer)

    def _busy(self) -> bool:
        return bool(self._computing or self._owners or any(self._decoding.values()))

    def _decode(self, transformer: Transformer) -> None:
        """Run one decoding step of a model."""
        batch = self._batches.get(transformer)
        if batch is None:
            batch = self._batches[transformer] = ContinuousBatch(transformer)
        for running, (job, _) in list(self._owners.items()):
            if job.cancelled and job.transformer is transformer:
                batch.remove(running)
                del self._owners[running]
        try:
            self._join(batch, self._decoding[transformer])
            if not batch.running:
                return
            finished = batch.step()
        except Exception as error:  # noqa: BLE001 - every waiting handler must get the error
            self._fail(transformer, error)
            return
        self.steps += 1
        for running in finished:
            job, i = self._owners.pop(running)
            job.predictions[i] = running.prediction(
                job.plan.details.history, spares=job.plan.options.n_best > 1
            )
            del job.running[i]
            self.decoded_tokens += len(job.predictions[i].token_ids)
            self._complete(job)
        for running, (job, _) in self._owners.items():
            if job.updates is not None and job.transformer is transformer:
                self._call(job, job.updates.put_nowait, running.settled())

    def _join(self, batch: ContinuousBatch, queue: deque[DecodingJob]) -> None:
        """Let waiting requests join the batch, one of each job in turn."""
        chosen: list[tuple[DecodingJob, int]] = []
        rows = batch.rows
        while queue and rows < MOST_ROWS:
            job = queue.popleft()
            if job.cancelled:
                continue
            if job.waiting:
                chosen.append((job, job.waiting.popleft()))
                rows += job.plan.options.width
            if job.waiting:
                queue.append(job)
            elif not job.plan.requests:
                self._complete(job)
        if not chosen:
            return
        added = batch.add([(job.plan.requests[i], job.plan.options) for job, i in chosen])
        for running, (job, i) in zip(added, chosen, strict=True):
            job.running[i] = running
            self._owners[running] = job, i

    def _complete(self, job: DecodingJob) -> None:
        """Add details to the predictions of a job when all of them are decoded."""
        if job.waiting or job.running:
            return
        predictions = [job.predictions[i] for i in range(len(job.plan.requests))]
        try:
            describe(job.transformer, job.plan.requests, predictions, job.plan.details)
        except Exception as error:  # noqa: BLE001
            self._call(job, reject, job.future, error)
            return
        self._call(job, resolve, job.future)

    def _compute(self) -> None:
        """Run one call of a function, for the first job and those with the same key."""
        while self._computing and self._computing[0].cancelled:
            self._computing.popleft()
        if not self._computing:
            return
        key, parts, tokens = self._computing[0].key, [], 0
        for job in self._computing:
            if job.key != key or job.cancelled:
                continue
            start = end = len(job.results)
            while end < len(job.items) and (not tokens or tokens + job.sizes[end] < COMPUTE_TOKENS):
                tokens += job.sizes[end]
                end += 1
            parts.append((job, start, end))
            if end < len(job.items):
                break
        try:
            items = [item for job, start, end in parts for item in job.items[start:end]]
            results = iter(parts[0][0].function(items))
        except Exception as error:  # noqa: BLE001
            for job, _, _ in parts:
                self._computing.remove(job)
                self._call(job, reject, job.future, error)
            return
        for job, start, end in parts:
            job.results += [next(results) for _ in range(start, end)]
            if end == len(job.items):
                self._computing.remove(job)
                self._call(job, resolve, job.future)

    def _fail(self, transformer: Transformer, error: Exception) -> None:
        """Reject all jobs of a model, and continue with an empty batch."""
        jobs = {job: None for job, _ in self._owners.values() if job.transformer is transformer}
        jobs |= dict.fromkeys(self._decoding.pop(transformer, ()))
        self._batches.pop(transformer, None)
        self._owners = {
            running: owner for running, owner in self._owners.items() if owner[0] not in jobs
        }
        for job in jobs:
            self._call(job, reject, job.future, error)

    @staticmethod
    def _call(job: Job, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the event loop of a job, if it still runs."""
        if not job.loop.is_closed():
            job.loop.call_soon_threadsafe(function, *arguments)


def resolve(future: asyncio.Future[Any]) -> None:
    """Set the result of a future, unless it was cancelled."""
    if not future.done():
        future.set_result(None)


def reject(future: asyncio.Future[Any], error: Exception) -> None:
    """Set the exception of a future, unless it was cancelled."""
    if not future.done():
        future.set_exception(error)
