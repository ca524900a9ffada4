"""A service at four times its capacity: what it answers, what it refuses, and how.

The service has the shipped translation model. First each text is translated alone; then the
capacity is measured with clients that wait for their answers; then requests arrive at four times
that rate, whether or not the earlier ones have been answered. Every accepted request must get the
same answer as alone, every other one a refusal in the documented format, and the memory must not
grow; otherwise the exit code is 1. /health is measured at the same time, ten times a second.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.load import Answer, Load, closed_loop, in_order, open_loop, watch_health
from benchmarks.serve import percentile, reached, requests
from benchmarks.servers import Server, regard_service, running
from regard import load as load_model
from regard.predictor.model import Model
from regard.serve.settings import Limits
from regard.text.sentences import split_sentences

MODEL = "box:translate"
TEXTS, MOST_SENTENCES = 150, 8  # different requests, and sentences of one request
CLIENTS, CAPACITY_SECONDS = 32, 10.0  # of the measurement of the capacity
GOAL_HEALTH = 0.05  # seconds
GROWTH = 1.05  # factor by which the memory may grow after the first fifth of the time
SLACK = 1.5  # p99 of accepted requests, compared with the time for a full queue
SAMPLING = 0.2  # seconds between two measurements of the memory


def make_texts(data: Path) -> list[str]:
    """Paragraphs of one to eight sentences of the test set of Multi30k."""
    file = data / "multi30k" / "test_2016_flickr.en.xz"
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        sentences = lines.read().splitlines()
    rng = random.Random(0)
    return [" ".join(rng.sample(sentences, rng.randint(1, MOST_SENTENCES))) for _ in range(TEXTS)]


def queue_size(model: Model, text: str) -> int:
    """The tokens of the queue that a request takes: inputs, and outputs of the largest length."""
    lengths = [
        len(model.source_tokenizer.encode(sentence)) + 1
        for sentence in split_sentences(text).sentences
    ]
    return sum(2 * length + model.config.decoding.max_length for length in lengths)


@dataclass
class Outcome:
    """The answers of the overload, by kind."""

    accepted: list[Answer]
    refused: list[Answer]
    wrong: list[str]  # a description of each wrong answer

    @classmethod
    def of(cls, load: Load, expected: list[str]) -> Outcome:
        outcome = cls([], [], [])
        for answer in load.answers:
            if answer.status == 200:
                if json.loads(answer.body)["translatedText"] == expected[answer.index]:
                    outcome.accepted.append(answer)
                else:
                    outcome.wrong.append("a translation that differs from that of the text alone")
            elif problem := wrong_refusal(answer):
                outcome.wrong.append(problem)
            else:
                outcome.refused.append(answer)
        return outcome


def wrong_refusal(answer: Answer) -> str | None:
    """What is wrong with a refusal; None: nothing."""
    if answer.status == 0:
        return "a connection that was closed without an answer"
    if answer.status not in (429, 503):
        return f"status {answer.status}"
    wait = answer.headers.get("retry-after", "")
    if not wait.isdigit() or int(wait) < 1:
        return f"status {answer.status} with Retry-After {wait!r}"
    if int(wait) > Limits.seconds:
        return f"Retry-After is above {Limits.seconds:g} s, the limit of a request"
    try:
        error = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status} without an error in JSON"
    if "stopped after" in str(error):
        return "an accepted request that was stopped"
    return None


def overload(server: Server, options: argparse.Namespace) -> bool:
    """Measure everything and print it; returns whether all goals that are not times are reached."""
    texts = make_texts(options.data)
    contents = requests(texts)
    model = load_model(MODEL, "cpu")
    sizes = [queue_size(model, text) for text in texts]
    del model
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as generator:
        alone = generator.submit(in_order, server.port, contents).result()
        expected = [json.loads(answer.body)["translatedText"] for answer in alone]
        capacity = generator.submit(
            closed_loop, server.port, contents, CLIENTS, CAPACITY_SECONDS, 2.0
        ).result()
        check_capacity(capacity, expected)
        rate = capacity.rate
        speed = rate * sum(sizes) / len(sizes)
        print(
            f"capacity with {CLIENTS} clients: {rate:.1f} requests/s, {speed:,.0f} tokens of the "
            "queue/s", flush=True,
        )  # fmt: skip
        memory = [server.memory()]
        future = generator.submit(
            open_loop, server.port, contents, options.times * rate, options.seconds,
            options.connections,
        )  # fmt: skip
        watching = generator.submit(watch_health, server.port, options.seconds)
        while not future.done():
            time.sleep(SAMPLING)
            memory.append(server.memory())
        load, health = future.result(), watching.result()
    outcome = Outcome.of(load, expected)
    good = show_answers(load, outcome, sizes, speed)
    show_health(health)
    return show_memory(memory) and good


def check_capacity(load: Load, expected: list[str]) -> None:
    outcome = Outcome.of(load, expected)
    if outcome.wrong or outcome.refused:
        raise SystemExit(f"the service fails below its capacity: {Counter(outcome.wrong)}")


def show_answers(load: Load, outcome: Outcome, sizes: list[int], capacity: float) -> bool:
    """Print what became of the requests; returns whether all answers are right.

    Args:
        sizes: the tokens of the queue that each text takes.
        capacity: tokens of the queue per second, below the capacity of the service.
    """
    seconds = load.ended - load.began
    last = max(answer.received for answer in load.answers)
    # Short texts are accepted more often than long ones, so rates are compared in tokens.
    speed = sum(sizes[answer.index] for answer in outcome.accepted) / (last - load.began)
    print(
        f"{len(load.answers) / seconds:.1f} requests/s for {seconds:.0f} s: "
        f"{len(outcome.accepted):,} accepted ({speed:,.0f} tokens of the queue/s, "
        f"{speed / capacity:.0%} of the capacity), {len(outcome.refused):,} refused, "
        f"{len(outcome.wrong)} wrong: {reached(not outcome.wrong)}"
    )
    for problem, count in Counter(outcome.wrong).most_common():
        print(f"  {count:,} times: {problem}")
    if load.unsent:
        print(f"  {load.unsent:,} requests were not sent: no free connection")
    print(f"  the load generator used {load.processor:.0%} of a core")
    if outcome.refused:
        waits = [int(answer.headers["retry-after"]) for answer in outcome.refused]
        times = [answer.seconds for answer in outcome.refused]
        print(
            f"  refusals: p50 {1e3 * percentile(times, 0.5):.1f} ms, p99 "
            f"{1e3 * percentile(times, 0.99):.1f} ms; Retry-After {min(waits)} to {max(waits)} s"
        )
    if outcome.accepted:
        times = [answer.seconds for answer in outcome.accepted]
        bound = SLACK * Limits.queue_tokens / speed
        late = percentile(times, 0.99)
        print(
            f"  accepted: p50 {percentile(times, 0.5):.2f} s, p99 {late:.2f} s, longest "
            f"{max(times):.2f} s; a full queue takes {bound / SLACK:.2f} s, goal at most "
            f"{bound:.2f} s: {reached(late <= bound)}"
        )
    return bool(outcome.accepted) and bool(outcome.refused) and not outcome.wrong


def show_health(health: list[Answer]) -> None:
    """Print the time of /health."""
    times = [answer.seconds for answer in health]
    bad = sum(answer.status != 200 for answer in health)
    print(
        f"/health: {len(times):,} times, p50 {1e3 * percentile(times, 0.5):.1f} ms, p99 "
        f"{1e3 * percentile(times, 0.99):.1f} ms, longest {1e3 * max(times):.1f} ms, {bad} failed; "
        f"goal {1e3 * GOAL_HEALTH:g} ms: {reached(not bad and max(times) <= GOAL_HEALTH)}"
    )


def show_memory(memory: list[int]) -> bool:
    """Print the memory; returns whether it is flat."""
    early = max(memory[: math.ceil(len(memory) / 5)])
    flat = memory[-1] <= GROWTH * early
    start, most, end = (each / 2**20 for each in (memory[0], max(memory), memory[-1]))
    print(
        f"memory: {start:.0f} MiB before, {early / 2**20:.0f} MiB in the first fifth, at most "
        f"{most:.0f} MiB, {end:.0f} MiB at the end: {reached(flat)}"
    )
    return flat


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument(
        "--times", type=float, default=4.0, help="load as a multiple of the capacity"
    )
    parser.add_argument(
        "--connections", type=int, default=900, help="most connections of the load generator"
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("REGARD_DATA"),
        help="data folder (default: $REGARD_DATA)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("the folder with multi30k is unknown: use --data or set REGARD_DATA")
    with running(regard_service, MODEL, "auto") as server:
        return 0 if overload(server, options) else 1
