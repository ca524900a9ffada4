"""The scheduler: requests that run together, alone, cancelled ones, and errors."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from regard.decoding.continuous import READ_TOKENS, ContinuousBatch, read_tokens
from regard.decoding.requests import Request
from regard.errors import InputError
from regard.serve import jobs
from regard.serve import scheduler as scheduling
from regard.serve.errors import Overloaded, ServiceError
from regard.serve.jobs import DecodingJob, Lane
from regard.serve.models import ServedModel
from regard.serve.scheduler import Scheduler
from regard.serve.settings import Limits
from serve.live import boxed

WORDS = [
    "the",
    "old",
    "house",
    "stands",
    "by",
    "a",
    "river",
    "and",
    "two",
    "dogs",
    "sleep",
    "in",
    "its",
    "garden",
    "all",
    "day",
]
OPTIONS = [
    {"beam": 1},
    {"beam": 4, "n_best": 2},
    {"beam": 2, "history": True},
    {"beam": 1, "temperature": 1.0, "seed": 3},
    {"beam": 1, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"beam": 2, "no_repeat": 2, "max_length": 9},
    {"beam": 1, "alternatives": 2, "max_length": 7},
    {"beam": 1, "prefix": "Das"},
]
NOT_GENERATE = ("prefix", "history", "alternatives")


@contextmanager
def started(queue_tokens=1_000_000):
    scheduler = Scheduler(queue_tokens)
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()


def text(choice, words=8):
    return " ".join(choice.choice(WORDS) for _ in range(choice.randint(1, words)))


def mixed_plans(count, seed):
    """Plans of two models, with one to four texts each."""
    choice = random.Random(seed)
    plans = []
    for _ in range(count):
        model = boxed(choice.choice(["translate", "generate"]))
        options = {"max_length": 12, **choice.choice(OPTIONS)}
        if model.task.name == "generate":
            options = {name: options[name] for name in options if name not in NOT_GENERATE}
        texts = [text(choice) for _ in range(choice.choice([1, 1, 1, 2, 4]))]
        plans.append((model, model.plan(texts, **options)))
    return plans


def values(predictions):
    return repr([
        [(p.text, p.token_ids, p.logprobs, p.score, p.stopped) for p in (each, *each.others)]
        + [each.history, each.alternatives]
        for each in predictions
    ])  # fmt: skip


async def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def long_plan(model=None, tokens=400, **options):
    """A plan that takes many steps."""
    model = model or boxed("generate")
    return model.plan(["Once"], beam=1, max_length=tokens, min_length=tokens, **options)


def test_concurrent_requests_are_bit_identical_to_requests_alone():
    plans = mixed_plans(160, seed=1)
    cancelled = set(range(3, 160, 11))
    expected = [values(plan.run(model.transformer)) for model, plan in plans]

    async def run(scheduler):
        async def request(i):
            await asyncio.sleep(random.Random(i).random())
            model, plan = plans[i]
            return await scheduler.decode(model.transformer, plan)

        tasks = [asyncio.ensure_future(request(i)) for i in range(len(plans))]
        most = 0
        for i in cancelled:
            await asyncio.sleep(0.01)
            tasks[i].cancel()
            most = max(most, scheduler.running)
        while most <= 3 and not all(task.done() for task in tasks):
            await asyncio.sleep(0.001)
            most = max(most, scheduler.running)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert (scheduler.running, scheduler.waiting, scheduler.outstanding) == (0, 0, 0)
        return results, most

    with started() as scheduler:
        results, most = asyncio.run(run(scheduler))
    assert most > 3
    for i, result in enumerate(results):
        if not isinstance(result, asyncio.CancelledError):
            assert values(result) == expected[i]
        else:
            assert i in cancelled


def test_results_without_a_search_are_bit_identical_in_any_call():
    choice = random.Random(3)
    texts = [text(choice, 20) for _ in range(60)]

    async def run(scheduler):
        models = {
            name: ServedModel(name, boxed(name), scheduler, Limits())
            for name in ("classify", "embed", "fill", "generate")
        }
        plan = long_plan(tokens=300)
        decoding = asyncio.ensure_future(models["generate"].scheduler.decode(
            boxed("generate").transformer, plan
        ))  # fmt: skip
        calls = [
            [models["classify"].classify([t]), models["embed"].embed([t]),
             models["fill"].fill([f"{t} <mask>."])]
            for t in texts
        ]  # fmt: skip
        results = await asyncio.gather(*(call for each in calls for call in each))
        decoding.cancel()
        return [result for [result] in results]

    with started() as scheduler:
        results = iter(asyncio.run(run(scheduler)))
    for each in texts:
        assert next(results) == boxed("classify").classify(each)
        assert (next(results) == boxed("embed").embed(each)).all()
        assert next(results) == boxed("fill").fill(f"{each} <mask>.")


def test_streams_end_with_the_prediction_of_a_request_alone():
    model = boxed("generate")
    modes = [
        {"beam": 1},
        {"beam": 4},
        {"beam": 1, "temperature": 1.0},
        {"beam": 1, "temperature": 1.0, "seed": 2},
    ]
    plans = [model.plan(["The old house"], max_length=20, **mode) for mode in modes]

    async def follow(scheduler, plan):
        return [update async for update in scheduler.stream(model.transformer, plan)]

    async def run(scheduler):
        return await asyncio.gather(*(follow(scheduler, plan) for plan in plans))

    with started() as scheduler:
        results = asyncio.run(run(scheduler))
    for plan, updates, mode in zip(plans, results, modes, strict=True):
        tokens, prediction = updates[-1]
        assert values([prediction]) == values(plan.run(model.transformer))
        assert [p for _, p in updates[:-1]] == [None] * (len(updates) - 1)
        lengths = [len(each) for each, _ in updates]
        assert lengths == sorted(set(lengths)) or lengths[-1] == lengths[-2]
        assert all(tokens[: len(each)] == each for each, _ in updates)
        assert len(updates) >= (len(tokens) - 1 if mode["beam"] == 1 else 1)


def test_cancelled_request_leaves_before_the_next_step():
    model = boxed("generate")

    async def run(scheduler):
        plan = long_plan(tokens=2_000)
        task = asyncio.ensure_future(scheduler.decode(model.transformer, plan))
        updates = scheduler.stream(model.transformer, plan)
        await anext(updates)
        await wait_until(lambda: scheduler.running == 2)
        await updates.aclose()
        await wait_until(lambda: scheduler.running == 1)
        task.cancel()
        await wait_until(lambda: scheduler.running == 0)
        steps = scheduler.steps
        await asyncio.sleep(0.05)
        assert scheduler.steps == steps < 1_000
        assert scheduler.outstanding == 0

    with started() as scheduler:
        asyncio.run(run(scheduler))


def test_request_that_the_model_refuses_fails_alone():
    model = boxed("translate")
    good = model.plan(["the old house"], beam=2)
    bad = replace(good, requests=[Request([5, 2]), Request([10**6, 2])])

    async def run(scheduler):
        plans = [good, bad, good]
        return await asyncio.gather(
            *(scheduler.decode(model.transformer, plan) for plan in plans), return_exceptions=True
        )

    with started() as scheduler:
        first, error, last = asyncio.run(run(scheduler))
    assert isinstance(error, InputError)
    assert values(first) == values(last) == values(good.run(model.transformer))


def test_error_while_joining_fails_only_its_request(monkeypatch):
    model = boxed("translate")
    plans = [model.plan([word], beam=1) for word in WORDS[:6]]
    wrong = plans[2].requests[0]
    add = ContinuousBatch.add

    def fail(batch, requests):
        if any(request is wrong for request, _ in requests):
            raise MemoryError("no memory")
        return add(batch, requests)

    monkeypatch.setattr(ContinuousBatch, "add", fail)

    async def run(scheduler):
        decode = scheduler.decode
        return await asyncio.gather(
            *(decode(model.transformer, plan) for plan in plans), return_exceptions=True
        )

    with started() as scheduler:
        results = asyncio.run(run(scheduler))
    assert isinstance(results.pop(2), MemoryError)
    plans.pop(2)
    assert [values(result) for result in results] == [
        values(plan.run(model.transformer)) for plan in plans
    ]


def test_error_in_a_step_fails_running_requests_and_no_later_ones(monkeypatch):
    model = boxed("generate")
    step = ContinuousBatch.step

    def fail(batch):
        if len(batch.running) == 2:
            raise RuntimeError("broken")
        return step(batch)

    monkeypatch.setattr(ContinuousBatch, "step", fail)

    async def run(scheduler):
        plan = long_plan(tokens=50)
        results = await asyncio.gather(
            scheduler.decode(model.transformer, plan), scheduler.decode(model.transformer, plan),
            return_exceptions=True,
        )  # fmt: skip
        assert [str(result) for result in results] == ["broken"] * 2
        assert scheduler.running == 0
        [prediction] = await scheduler.decode(model.transformer, plan)
        assert len(prediction.token_ids) == 50

    with started() as scheduler:
        asyncio.run(run(scheduler))


def test_large_job_does_not_delay_small_ones():
    model = boxed("translate")
    large = model.plan([" ".join(WORDS)] * 300, beam=4, min_length=20, max_length=20)
    small = model.plan(["a river"], beam=1, max_length=4)

    async def run(scheduler):
        first = asyncio.ensure_future(scheduler.decode(model.transformer, large))
        await wait_until(lambda: scheduler.running > 3)
        assert scheduler.waiting > 200
        await scheduler.decode(model.transformer, small)
        assert not first.done()
        first.cancel()
        await wait_until(lambda: not scheduler.running)

    with started() as scheduler:
        asyncio.run(run(scheduler))


def make_job(requests, loop, **options):
    plan = replace(boxed("translate").plan(["x"], **options), requests=requests)
    job = DecodingJob(loop, loop.create_future(), 1, transformer=boxed("translate").transformer,
                      plan=plan)  # fmt: skip
    job.waiting.extend(range(len(requests)))
    return job


def test_what_joins_between_two_steps_is_bounded(monkeypatch):
    loop = asyncio.new_event_loop()
    transformer = boxed("translate").transformer
    lane = Lane(transformer)
    requests = [Request([5] * 100) for _ in range(20)]
    both = [make_job(requests, loop, beam=4), make_job(requests, loop, beam=4)]
    lane.waiting.extend(both)
    chosen = lane.choose()
    read = sum(read_tokens(transformer, job.plan.requests[i]) for job, i in chosen)
    assert READ_TOKENS - 102 < read <= READ_TOKENS
    assert {job: [i for each, i in chosen if each is job] for job in both} == {
        both[0]: [0, 1, 2, 3], both[1]: [0, 1, 2],
    }  # fmt: skip
    monkeypatch.setattr(jobs, "MOST_ROWS", 8)
    assert [i for _, i in lane.choose()] == [3, 4]
    monkeypatch.setattr(jobs, "MOST_PLACES", 1)
    assert len(lane.choose()) == 1  # at least one request if none is running
    loop.close()


def test_compute_shares_calls_and_takes_turns():
    calls = []
    release = threading.Event()

    def double(items):
        release.wait(10)
        calls.append(len(items))
        return [2 * item for item in items]

    async def run(scheduler):
        first = asyncio.ensure_future(scheduler.compute("a", double, [0], [1]))
        await asyncio.sleep(0.05)  # the thread waits in its first call
        size = scheduling.COMPUTE_TOKENS // 4
        others = [
            asyncio.ensure_future(scheduler.compute(key, double, list(range(n)), [size] * n))
            for key, n in (("a", 6), ("b", 1), ("a", 2))
        ]
        await asyncio.sleep(0)
        release.set()
        results = await asyncio.gather(first, *others)
        assert results == [[2 * i for i in range(n)] for n in (1, 6, 1, 2)]
        assert await scheduler.compute("a", double, [], []) == []

    with started() as scheduler:
        asyncio.run(run(scheduler))
    assert calls == [1, 4, 1, 4]  # four items of the large job, "b", then two items of each


def test_error_of_a_function_fails_only_its_job():
    blocked = threading.Event()

    def invert(items):
        blocked.wait(10)
        return [1 / item for item in items]

    async def run(scheduler):
        tasks = [
            asyncio.ensure_future(scheduler.compute("a", invert, [n], [1])) for n in (1, 2, 0, 4)
        ]
        await asyncio.sleep(0.05)
        blocked.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with started() as scheduler:
        one, half, error, quarter = asyncio.run(run(scheduler))
    assert (one, half, quarter) == ([1], [0.5], [0.25])
    assert isinstance(error, ZeroDivisionError)


def test_full_queue_refuses_with_the_time_until_there_is_room(monkeypatch):
    model = boxed("generate")

    async def run(scheduler):
        first = asyncio.ensure_future(scheduler.decode(model.transformer, long_plan(tokens=900)))
        await wait_until(lambda: scheduler.running == 1)
        monkeypatch.setattr(scheduler, "speed", lambda: 50.0)
        with pytest.raises(Overloaded) as error:
            await scheduler.decode(model.transformer, long_plan(tokens=300))
        assert error.value.retry_after == pytest.approx((900 + 300 - 1_000) / 50, abs=1)
        assert scheduler.outstanding < 1_000
        first.cancel()
        await wait_until(lambda: not scheduler.running)
        # A request beyond the whole queue is accepted if nothing else is in it.
        task = asyncio.ensure_future(scheduler.decode(model.transformer, long_plan(tokens=1_500)))
        await wait_until(lambda: scheduler.running == 1)
        task.cancel()

    with started(queue_tokens=1_000) as scheduler:
        asyncio.run(run(scheduler))


def test_queue_is_bounded_by_the_time_that_it_takes_at_the_measured_speed(monkeypatch):
    model = boxed("translate")
    plan = model.plan([f"The cat sleeps {n}." for n in range(200)])

    async def run(scheduler):
        first = asyncio.ensure_future(scheduler.decode(model.transformer, plan))
        await wait_until(lambda: scheduler.running and scheduler.waiting)
        monkeypatch.setattr(scheduler, "speed", lambda: 100.0)
        scheduler.most_wait = 5.0
        # At the beginning of a busy period the speed of a full batch is not known yet.
        await scheduler.decode(model.transformer, model.plan(["Good morning!"]))
        scheduler._busy_since -= scheduling.SPEED_WINDOW
        with pytest.raises(Overloaded) as error:
            await scheduler.decode(model.transformer, plan)
        assert error.value.retry_after == 5
        assert len(await first) == 200
        assert scheduler.outstanding == 0

    with started(queue_tokens=10**6) as scheduler:
        asyncio.run(run(scheduler))


def test_only_the_oldest_requests_take_turns(monkeypatch):
    monkeypatch.setattr(jobs, "TURNS", 2)
    monkeypatch.setattr(jobs, "MOST_ROWS", 4)
    model = boxed("translate")
    order = []

    async def translate(scheduler, name, count):
        plan = model.plan([f"The cat sleeps {n}." for n in range(count)])
        await scheduler.decode(model.transformer, plan)
        order.append(name)

    async def run(scheduler):
        names = ("a", 12), ("b", 12), ("c", 1)
        await asyncio.gather(*(translate(scheduler, *each) for each in names))

    with started() as scheduler:
        asyncio.run(run(scheduler))
    assert order[0] == "a"  # if all took turns, "c" would be first


def test_speed_is_measured_in_tokens_of_the_queue():
    async def run(scheduler):
        assert scheduler.speed() == scheduling.FIRST_SPEED
        start = time.monotonic()
        for _ in range(4):
            await scheduler.compute("a", lambda items: time.sleep(0.1) or items, [1], [500])
        elapsed = time.monotonic() - start
        assert scheduler.speed() > 0.5 * 500 / elapsed

    with started() as scheduler:
        asyncio.run(run(scheduler))


def test_stop_fails_jobs_that_are_not_done():
    model = boxed("generate")

    async def run():
        scheduler = Scheduler(10**6)
        scheduler.start()
        plan = long_plan(tokens=2_000)
        decoding = asyncio.ensure_future(scheduler.decode(model.transformer, plan))
        await wait_until(lambda: scheduler.running == 1)
        await asyncio.to_thread(scheduler.stop)
        with pytest.raises(ServiceError, match="shutting down"):
            await decoding
        with pytest.raises(ServiceError, match="shutting down"):
            await scheduler.decode(model.transformer, plan)

    asyncio.run(run())


def test_closed_event_loop_does_not_stop_the_thread():
    model = boxed("generate")
    with started() as scheduler:
        loop = asyncio.new_event_loop()
        task = loop.create_task(scheduler.decode(model.transformer, long_plan(tokens=100)))
        loop.run_until_complete(asyncio.sleep(0.02))
        loop.close()
        plan = model.plan(["Once"], beam=1, max_length=5)
        [prediction] = asyncio.run(scheduler.decode(model.transformer, plan))
        assert prediction.token_ids
    task._log_destroy_pending = False


def test_plan_without_requests_needs_no_model():
    model = boxed("translate")
    plan = model.plan(["", "  "])

    async def run(scheduler):
        predictions = await scheduler.decode(model.transformer, plan)
        assert [prediction.stopped for prediction in predictions] == ["empty"] * 2

    asyncio.run(run(Scheduler(10)))  # its thread does not run
