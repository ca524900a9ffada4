"""The thread that runs all models of a device, and the queue in front of it.

Requests join the running batch of their model between two decoding steps and leave it as soon as
they are done (decoding/continuous.py), so nothing waits for a batch to fill. Between two steps the
thread also runs what needs no search: classification, embeddings, and the details of predictions.
Handlers of the event loop wait with `await`; they never block it. A handler that is cancelled,
because its client disconnected or its time limit is exceeded, frees its place before the next step.

Texts of the oldest requests take turns to join, so a large request does not delay small ones. What
joins between two steps is bounded (READ_TOKENS), so long inputs do not delay running requests. The
predictions do not depend on which requests run together.

The thread and the event loop each change only their own state. They exchange jobs through
`_inbox` and `_cancelled`, and the thread sends results by calls in the event loop: one call for all
results of a step.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

import torch

from regard.decoding.continuous import READ_TOKENS, RunningRequest
from regard.decoding.predictions import Prediction
from regard.decoding.search import DecodingPlan, check_request, describe
from regard.model.transformer import Transformer
from regard.serve.errors import Overloaded
from regard.serve.jobs import (
    ComputeJob,
    ComputeQueue,
    DecodingJob,
    Job,
    Lane,
    lower_priority,
    reject,
    resolve,
    run_all,
    stopping_error,
)

COMPUTE_TOKENS = 4_096  # tokens of one call of a function; READ_TOKENS while requests are decoded
BEAM_UPDATES = 8  # steps between two updates of a stream with several hypotheses
FIRST_SPEED = 1_000.0  # tokens per second before anything was measured
SPEED_WINDOW = 10.0  # seconds over which the speed is averaged


class Scheduler:
    """Runs models in one thread. Create it, then `start` it; all other methods are called in the
    event loop.

    Args:
        queue_tokens: the largest number of tokens of all jobs that are accepted and not done.
        most_wait: seconds that the queue may take at the measured speed; a job that would wait
            longer is refused even if there is room for its tokens.
        alone: whether each call of a function gets a single item. On a GPU, rounding makes the
            result for an item depend on the others in the call.
    """

    def __init__(self, queue_tokens: int, most_wait: float = math.inf, alone: bool = False) -> None:
        self.queue_tokens, self.most_wait, self.alone = queue_tokens, most_wait, alone
        self._work = threading.Condition()  # protects the next three attributes
        self._inbox: deque[Job] = deque()
        self._cancelled: deque[Job] = deque()
        self.stopping = False  # whether jobs are refused: after `stop`, or if the thread failed
        # Changed by the event loop only.
        self.outstanding = 0  # tokens of jobs that are not done
        self.decoded_tokens = 0  # tokens of finished outputs
        self._jobs: set[Job] = set()  # not done
        self._finished: deque[tuple[float, int]] = deque()  # time and tokens of finished work
        self._busy_since = 0.0
        self._last_speed = FIRST_SPEED
        # Changed by the thread only.
        self.steps = 0  # decoding steps so far
        self._lanes: dict[Transformer, Lane] = {}
        self._computing = ComputeQueue()
        self._results: dict[asyncio.AbstractEventLoop, list[Callable[[], object]]] = {}
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    # ---- in the event loop --------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the current step; jobs that are not done fail."""
        with self._work:
            self.stopping = True
            self._work.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def running(self) -> int:
        """The number of requests in running batches."""
        return sum(len(lane.owners) for lane in list(self._lanes.values()))

    @property
    def rows(self) -> int:
        """The number of hypotheses in running batches."""
        return sum(lane.batch.rows for lane in list(self._lanes.values()))

    @property
    def waiting(self) -> int:
        """The number of requests that have not joined a batch."""
        jobs = list(self._jobs)
        return sum(len(job.waiting) if isinstance(job, DecodingJob) else 1 for job in jobs)

    def speed(self) -> float:
        """Tokens of the queue that were finished per second, averaged over the last seconds with
        work."""
        now = time.monotonic()
        while self._finished and self._finished[0][0] < now - SPEED_WINDOW:
            self._finished.popleft()
        if self._finished:
            elapsed = min(SPEED_WINDOW, max(0.1, now - self._busy_since))
            total = sum(tokens for _, tokens in self._finished)
            self._last_speed = max(1.0, total / elapsed)
        return self._last_speed

    async def decode(self, transformer: Transformer, plan: DecodingPlan) -> list[Prediction]:
        """Decode the requests of a plan, and return its predictions, one for each input.

        Raises:
            Overloaded: the queue is full.
            ServiceError: the service is stopping.
            InputError: the model cannot decode a request, or it computed NaN (DamagedModel).
        """
        if not plan.requests:
            return plan.finish([])
        job = self._decoding_job(transformer, plan)
        self._submit(job)
        try:
            await job.future
        finally:
            self._release(job)
        return plan.finish(job.in_order())

    async def stream(
        self, transformer: Transformer, plan: DecodingPlan
    ) -> AsyncGenerator[tuple[list[int], Prediction | None], None]:
        """Decode the only request of a plan. Yields the output tokens that cannot change any more,
        each time with more of them, and last all tokens and the finished prediction. Closing the
        iterator cancels the request. Raises as `decode`."""
        if not plan.requests:
            [prediction] = plan.finish([])
            yield prediction.token_ids, prediction
            return
        job = self._decoding_job(transformer, plan)
        updates = job.updates = asyncio.Queue()
        job.future.add_done_callback(lambda _: updates.put_nowait(None))
        self._submit(job)
        try:
            known = 0
            while (tokens := await updates.get()) is not None:
                if len(tokens) > known:
                    known = len(tokens)
                    yield tokens, None
            await job.future
        finally:
            self._release(job)
        [prediction] = plan.finish(job.in_order())
        yield prediction.token_ids, prediction

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
            ServiceError: the service is stopping.
        """
        if not items:
            return []
        loop = asyncio.get_running_loop()
        job = ComputeJob(
            loop, loop.create_future(), sum(sizes),
            key=key, function=function, items=items, sizes=sizes,
        )  # fmt: skip
        self._submit(job)
        try:
            await job.future
        finally:
            self._release(job)
        return job.results

    def _decoding_job(self, transformer: Transformer, plan: DecodingPlan) -> DecodingJob:
        for request in plan.requests:
            check_request(transformer, request)
        loop = asyncio.get_running_loop()
        job = DecodingJob(loop, loop.create_future(), 0, transformer=transformer, plan=plan)
        job.waiting.extend(range(len(plan.requests)))
        job.tokens = sum(map(job.queue_tokens, job.waiting))
        return job

    def check_room(self, tokens: int) -> None:
        """Check that the queue has room for a job of at least this many tokens. Handlers call this
        before they process a text, so that rejecting a request is cheap.

        Raises:
            Overloaded: the queue is full.
        """
        most: float = self.queue_tokens
        if time.monotonic() - self._busy_since > SPEED_WINDOW / 2 and self.waiting:
            most = min(most, self.most_wait * self.speed())
        excess = self.outstanding + tokens - most
        if self._jobs and excess > 0:
            raise Overloaded(min(excess / self.speed(), self.most_wait))

    def _submit(self, job: Job) -> None:
        """Put a job into the queue."""
        self.check_room(job.tokens)
        with self._work:
            if self.stopping:
                raise stopping_error()
            self._inbox.append(job)
            self._work.notify()
        if not self._jobs:
            self._busy_since = time.monotonic()
        self._jobs.add(job)
        self.outstanding += job.tokens

    def _release(self, job: Job) -> None:
        """Count a job that is done, or cancel what is left of one that failed or is not needed."""
        self._jobs.discard(job)
        future = job.future
        if future.done() and not future.cancelled() and future.exception() is None:
            self._count(job, job.tokens)
            return
        self.outstanding -= job.tokens
        with self._work:
            job.cancelled = True
            self._cancelled.append(job)
            self._work.notify()

    def _count(self, job: Job, tokens: int) -> None:
        """Count finished work of a job, which leaves the queue."""
        job.tokens -= tokens
        self.outstanding -= tokens
        self._finished.append((time.monotonic(), tokens))

    def _finish(self, job: DecodingJob, i: int, running: RunningRequest) -> None:
        """Store the prediction of a finished request. This runs in the event loop, so that the
        thread can continue with the next step."""
        try:
            self.decoded_tokens += job.predict(i, running)
            if job in self._jobs:
                self._count(job, job.queue_tokens(i))
        except Exception as error:  # noqa: BLE001 - its handler gets the error
            reject(job, error)
        if len(job.predictions) == len(job.plan.requests):
            resolve(job)

    # ---- in the thread ------------------------------------------------------------------

    @torch.no_grad()
    def _run(self) -> None:
        lower_priority()
        try:
            while self._receive():
                self._compute()
                for lane in list(self._lanes.values()):
                    if lane.busy:
                        self._decode(lane)
                self._send_results()
        finally:
            with self._work:
                self.stopping = True
            decoding = (
                job for lane in self._lanes.values() for job in [*lane.waiting, *lane.reset()]
            )
            for job in [*self._inbox, *self._computing, *decoding]:
                self._send(job, reject, job, stopping_error())
            self._send_results()

    def _receive(self) -> bool:
        """Wait for work; add new jobs, drop cancelled ones. Returns False if the service stops."""
        with self._work:
            busy = bool(self._computing) or any(lane.busy for lane in self._lanes.values())
            while not (busy or self.stopping or self._inbox or self._cancelled):
                self._work.wait()
            if self.stopping:
                return False
            arrived, cancelled = list(self._inbox), list(self._cancelled)
            self._inbox.clear()
            self._cancelled.clear()
        for job in arrived:
            if isinstance(job, DecodingJob):
                self._lane(job.transformer).waiting.append(job)
            elif isinstance(job, ComputeJob):
                self._computing.append(job)
        for job in cancelled:
            if isinstance(job, DecodingJob):
                self._lane(job.transformer).drop(job)
        return True

    def _lane(self, transformer: Transformer) -> Lane:
        if transformer not in self._lanes:
            self._lanes[transformer] = Lane(transformer)
        return self._lanes[transformer]

    def _decode(self, lane: Lane) -> None:
        """Run one decoding step of a model."""
        self._join(lane)
        if not lane.owners:
            return
        try:
            finished = lane.batch.step()
        except Exception as error:  # noqa: BLE001 - every handler that waits must get the error
            for job in lane.reset():
                self._send(job, reject, job, error)
            return
        self.steps += 1
        lane.steps += 1
        for running in finished:
            job, i = lane.leave(running)
            if job.described:
                self._describe(job, i, running)
            else:
                self._send(job, self._finish, job, i, running)
        for place, (running, job) in enumerate(lane.streams.items(), lane.steps):
            if job.updates is not None and (running.width == 1 or place % BEAM_UPDATES == 0):
                self._send(job, job.updates.put_nowait, running.settled())

    def _join(self, lane: Lane) -> None:
        """Let requests join the batch. If they cannot join together, each one joins alone, so that
        only the one that is refused fails."""
        chosen = lane.choose()
        if not chosen:
            return
        try:
            lane.join(chosen)
        except Exception:  # noqa: BLE001
            for each in chosen:
                try:
                    lane.join([each])
                except Exception as error:  # noqa: BLE001 - its handler gets the error
                    lane.drop(each[0])
                    self._send(each[0], reject, each[0], error)

    def _describe(self, job: DecodingJob, i: int, running: RunningRequest) -> None:
        """Add details to the predictions of a job when all of them are decoded."""
        try:
            job.predict(i, running)
            if len(job.predictions) < len(job.plan.requests):
                return
            describe(job.transformer, job.plan.requests, job.in_order(), job.plan.details)
        except Exception as error:  # noqa: BLE001 - its handler gets the error
            self._send(job, reject, job, error)
            return
        self._send(job, resolve, job)

    def _compute(self) -> None:
        """Run one call of a function, for the first job and those with the same key."""
        decoding = any(lane.owners for lane in self._lanes.values())
        tokens = 0 if self.alone else READ_TOKENS if decoding else COMPUTE_TOKENS
        parts = self._computing.choose(tokens)
        if not parts:
            return
        items = [item for job, count in parts for item in job.next_items(count)]
        try:
            results = list(parts[0][0].function(items))
        except Exception as error:  # noqa: BLE001 - the handler gets the error
            if len(parts) > 1:  # only the jobs that fail alone get the error
                for job, _ in parts:
                    job.key = job
            else:
                [(job, _)] = parts
                self._computing.remove(job)
                self._send(job, reject, job, error)
            return
        for job, count in parts:
            job.results += results[:count]
            del results[:count]
            self._computing.remove(job)
            if len(job.results) == len(job.items):
                self._send(job, resolve, job)
            else:  # other jobs take their turn
                self._computing.append(job)

    def _send(self, job: Job, function: Callable[..., object], *arguments: object) -> None:
        """Call a function in the event loop of a job at the end of this step."""
        self._results.setdefault(job.loop, []).append(lambda: function(*arguments))

    def _send_results(self) -> None:
        for loop, calls in self._results.items():
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(run_all, loop, deque(calls))
        self._results = {}
