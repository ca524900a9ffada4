"""The scheduler when predictions fail, many finish at once, or no time bounds its queue."""

from __future__ import annotations

import asyncio
import time
from collections import deque

import pytest

from regard.serve.jobs import DecodingJob, run_all
from regard.serve.scheduler import SPEED_WINDOW, Scheduler
from serve.live import boxed

SENTENCES = ["A dog.", "The old house stands by a river and two dogs sleep in its garden all day."]


def test_job_with_a_failed_prediction_leaves_the_batch(monkeypatch):
    predict = DecodingJob.predict

    def fail_first(job, i, running):
        if i == 0:
            raise RuntimeError("no prediction")
        return predict(job, i, running)

    monkeypatch.setattr(DecodingJob, "predict", fail_first)
    model = boxed("translate")
    plan = model.plan([SENTENCES[0], SENTENCES[1] * 3], split=False, beam=1)

    async def run(scheduler):
        with pytest.raises(RuntimeError, match="no prediction"):
            await scheduler.decode(model.transformer, plan)
        steps = scheduler.steps
        await scheduler.compute("after", list, [1], [1])  # the thread has removed the rest by then
        return scheduler.steps - steps

    scheduler = Scheduler(1_000_000)
    scheduler.start()
    try:
        assert asyncio.run(run(scheduler)) <= 2
        assert (scheduler.outstanding, scheduler.running, scheduler.waiting) == (0, 0, 0)
    finally:
        scheduler.stop()


def test_other_work_runs_between_many_results():
    order = []

    async def run():
        loop = asyncio.get_running_loop()
        calls = deque(lambda i=i: (order.append(i), time.sleep(0.003)) for i in range(4))
        loop.call_soon(run_all, loop, calls)
        loop.call_soon(order.append, "other")
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert order == [0, "other", 1, 2, 3]


def test_queue_without_a_bound_of_time_accepts_while_it_is_busy():
    async def run(scheduler):
        waiting = [asyncio.ensure_future(scheduler.compute("a", list, [1], [1])) for _ in range(2)]
        await asyncio.sleep(0)
        scheduler._busy_since -= SPEED_WINDOW
        waiting.append(asyncio.ensure_future(scheduler.compute("a", list, [1], [1])))
        await asyncio.sleep(0)
        scheduler.start()
        return await asyncio.gather(*waiting)

    scheduler = Scheduler(1_000)
    try:
        assert asyncio.run(run(scheduler)) == [[1]] * 3
    finally:
        scheduler.stop()
