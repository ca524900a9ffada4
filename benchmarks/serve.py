"""Services compared: requests per second and latency of regard and its peers under the same load.

Each program is an HTTP service in a process of its own; a load generator in another process sends
the same sentences to one of them at a time, over a number of connections, each of which waits for
its answer. The model copies its input (copying.py): every answer is compared with the text that was
sent, and a program with a different answer ends the benchmark. The peers are a plain Starlette
handler that calls CTranslate2 in int8 for each request; the same with asynchronous calls; a thread
that merges all waiting requests into one call; and `generate` of Hugging Face for each request.

The limit is that of `benchmarks decode` for as many sentences at once as there are clients.
`--start` measures the time from the command `regard serve` to the first page and translation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks import copying, ratios, servers
from benchmarks.compare import BUSY, available, ticks
from benchmarks.limits import Limit, decoding_limit, weights_of_a_step
from benchmarks.load import Answer, Load, NoAnswer, closed_loop, message, take_turns
from benchmarks.ratios import RatioLog
from benchmarks.serve_start import measure_start
from benchmarks.servers import THREADS, Program, Server, running

OURS = "regard int8"
ASYNCHRONOUS, MERGED = "CTranslate2 int8, asynchronous", "CTranslate2 int8, merged"
# The package, the function and the workers of each program.
PROGRAMS: dict[str, tuple[str, Program, tuple[int, ...]]] = {
    OURS: ("", servers.regard_service, ()),
    "CTranslate2 int8, per request": ("ctranslate2", servers.per_request, ()),
    ASYNCHRONOUS: ("ctranslate2", servers.asynchronous, (1,)),
    f"{ASYNCHRONOUS}, two workers": ("ctranslate2", servers.asynchronous, (2,)),
    MERGED: ("ctranslate2", servers.merged, (1,)),
    f"{MERGED}, two workers": ("ctranslate2", servers.merged, (2,)),
    "Hugging Face float32, per request": ("huggingface", servers.hugging_face, ()),
}
SENTENCES = 400
GOAL_CLIENTS, GOAL_RATIO, GOAL_OVERHEAD = 32, 1.5, 0.003  # seconds
LONGEST = 60.0  # seconds; a program whose answers would take longer is not measured
IDLE, IDLE_LOAD = 0.5, 0.1  # a service is idle if it uses less than 0.1 cores for 0.5 seconds
BOTTLENECK = 0.25  # fraction of a core that the load generator may use
OVERHEAD_TEXTS = 40
TICKS = os.sysconf("SC_CLK_TCK")  # `ticks` in a second


@dataclass
class Result:
    """The measurements of one program with one number of clients."""

    rates: list[float] = field(default_factory=list)  # requests per second, of each round
    seconds: list[float] = field(default_factory=list)  # of each request
    processor: float = 0.0  # processor seconds of the service for one request
    generator: float = 0.0  # fraction of a core that the load generator used
    others: float = 0.0  # fraction of all cores that other processes used

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def percentile(self, fraction: float) -> float:
        return percentile(self.seconds, fraction)

    @property
    def noisy(self) -> bool:
        return self.others > BUSY or self.generator > BOTTLENECK

    def add(self, load: Load, processor: float, others: float) -> None:
        self.processor = processor / len(load.answers)
        self.rates.append(load.rate)
        self.seconds += [answer.seconds for answer in load.measured]
        self.generator = max(self.generator, load.processor)
        self.others = max(self.others, others)


def percentile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def requests(texts: list[str]) -> list[bytes]:
    """The requests for texts."""
    bodies = [json.dumps({"q": text, "source": "en", "target": "de"}) for text in texts]
    return [message("/translate", body.encode()) for body in bodies]


def check(name: str, answers: list[Answer], texts: list[str]) -> None:
    """End the benchmark if an answer is not the text that was sent."""
    for answer in answers:
        if answer.status != 200 or json.loads(answer.body)["translatedText"] != texts[answer.index]:
            raise SystemExit(
                f"{name} returned a different answer: status {answer.status}, "
                f"{answer.body[:200]!r} for {texts[answer.index]!r}"
            )


def measure(
    generator: ProcessPoolExecutor, name: str, server: Server, texts: list[str], clients: int,
    options: argparse.Namespace, result: Result,
) -> None:  # fmt: skip
    """Measure one round of a program."""
    before, own = ticks(), server.processor_seconds()
    load = generator.submit(
        closed_loop, server.port, requests(texts), clients, options.seconds, options.warm_up
    ).result()
    check(name, load.answers, texts)
    processor = server.processor_seconds() - own
    worked, idle = (now - then for now, then in zip(ticks(), before, strict=True))
    elapsed = max(answer.received for answer in load.answers) - load.answers[0].sent
    others = worked / TICKS - processor - load.processor * elapsed
    result.add(load, processor, max(0.0, others) * TICKS / max(1, worked + idle))


def wait_until_idle(server: Server) -> None:
    """Wait until a service has finished the requests whose clients have disconnected, which some
    services process to the end: they must not slow down the next program."""
    ended = time.perf_counter() + 2 * LONGEST
    used = -math.inf
    while (now := server.processor_seconds()) > used + IDLE * IDLE_LOAD:
        if time.perf_counter() > ended:
            raise SystemExit("a service works although nobody waits for an answer")
        used = now
        time.sleep(IDLE)


def start(name: str, folder: Path, beam: int) -> AbstractContextManager[Server]:
    """Start the service of a program; `folder` has the model in both formats."""
    _, program, workers = PROGRAMS[name]
    model = str(folder / "model")
    if name == OURS:
        return running(program, model, "int8")
    return running(program, model, str(folder / "converted"), beam, *workers)


def compare(preset: str, beam: int, options: argparse.Namespace, log: RatioLog) -> None:
    """Measure all programs with one beam."""
    peers = available(options.peers, "cpu")
    names = [
        name for name, (peer, _, workers) in PROGRAMS.items()
        if (not peer or peer in peers) and max(workers, default=1) <= THREADS
    ]  # fmt: skip
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = copying.save(preset, options.vocabulary, beam, folder / "model")
        if "ctranslate2" in peers:
            copying.convert(model.transformer, folder / "converted")
        texts = copying.sentences(model.tokenizer, SENTENCES)
        tokens = sum(len(model.tokenizer.encode(text)) + 1 for text in texts) / len(texts)
        weights = weights_of_a_step(model.config.model)
        limits = {d: Limit.measure(weights, torch.device("cpu"), d) for d in ("int8", "float32")}
        search = "greedy" if beam == 1 else f"beam {beam}"
        print(
            f"{preset}, vocabulary {options.vocabulary:,}, {search}, {log.hardware}; sentences of "
            f"{tokens:.1f} tokens"
        )
        generator = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        del model
        started = {name: stack.enter_context(start(name, folder, beam)) for name in names}
        first: dict[str, float] = {}  # seconds of a request of one client
        for clients in options.clients:
            results = {
                name: Result() for name in names if clients * first.get(name, 0.0) <= LONGEST
            }
            for _ in range(options.repeats):
                for name, result in list(results.items()):
                    try:
                        measure(generator, name, started[name], texts, clients, options, result)
                    except NoAnswer as error:
                        print(f"  {name} with {clients} clients is skipped: {error}")
                        del results[name]
                        continue
                    finally:
                        wait_until_idle(started[name])
                    first.setdefault(name, result.percentile(0.5) / clients)
            steps = round(tokens)
            limit = {
                d: decoding_limit(each, clients, beam, steps) / tokens for d, each in limits.items()
            }
            show(f"{preset}, {clients} client{'s' * (clients > 1)}, {search}", results, limit, log)
            if clients == GOAL_CLIENTS:
                show_goals(results)
            if clients == 1:
                turns = generator.submit(
                    take_turns, started[OURS].port, texts[:OVERHEAD_TEXTS]
                ).result()
                show_overhead(f"{preset}, 1 client, {search}", turns, results[OURS].noisy, log)


def show(work: str, results: dict[str, Result], limits: dict[str, float], log: RatioLog) -> None:
    """Print the results for one number of clients, and log a row for each peer."""
    print(f" {work}")
    ours = results[OURS]
    for name, result in results.items():
        part = result.rate / limits["float32" if "float32" in name else "int8"]
        note = f"  {ours.rate / result.rate:.2f}x" if name != OURS else ""
        if result.noisy:
            note += (
                f"  NOISY: other processes used {result.others:.0%} of the cores, the load "
                f"generator {result.generator:.0%} of one"
            )
        p50, p99 = (1e3 * result.percentile(fraction) for fraction in (0.5, 0.99))
        print(
            f"  {name:44}{result.rate:7.1f} requests/s  p50 {p50:7.1f} ms  p99 {p99:7.1f} ms  "
            f"processor {1e3 * result.processor:6.1f} ms {part:6.1%} of the limit{note}",
            flush=True,
        )
        if name != OURS and not (result.noisy or ours.noisy):
            own = ours.rate / limits["int8"]
            log.add(work, "int8", ours.rate, "requests/s", name, result.rate, own)
            times = [1e3 * each.percentile(0.99) for each in (ours, result)]
            log.add(f"{work}: p99", "int8", times[0], "ms", name, times[1], None)


def show_goals(results: dict[str, Result]) -> None:
    """Compare with the goals at 32 clients."""
    ours = results[OURS]
    for kind, goal in ((ASYNCHRONOUS, GOAL_RATIO), (MERGED, None)):
        peers = {name: result for name, result in results.items() if name.startswith(kind)}
        if not peers:
            continue
        name, best = max(peers.items(), key=lambda item: item[1].rate)
        ratio, times = ours.rate / best.rate, [1e3 * r.percentile(0.99) for r in (ours, best)]
        verdicts = ["", ""]
        if goal is not None:
            verdicts = [
                f", goal {goal:g}x: {reached(ratio >= goal)}",
                f", goal no more: {reached(times[0] <= times[1])}",
            ]
        print(f"  throughput: {ratio:.2f}x {name}{verdicts[0]}")
        print(f"  p99: {times[0]:.0f} ms and {times[1]:.0f} ms{verdicts[1]}", flush=True)


def reached(met: bool) -> str:
    return "reached" if met else "NOT REACHED"


def show_overhead(work: str, turns: list[tuple[float, float]], noisy: bool, log: RatioLog) -> None:
    """Compare requests of one client with calls of the model in the process of the service.

    Args:
        turns: seconds of a request and of `Model.translate`, for each text.
    """
    total, bare = (statistics.median(times) for times in zip(*turns, strict=True))
    overhead = statistics.median(request - call for request, call in turns)
    print(
        f"  a request takes {1e3 * total:.1f} ms, Model.translate {1e3 * bare:.1f} ms: "
        f"{1e3 * overhead:.2f} ms more, goal at most {1e3 * GOAL_OVERHEAD:g} ms: "
        f"{reached(overhead <= GOAL_OVERHEAD)}", flush=True,
    )  # fmt: skip
    if not noisy:
        log.add(f"{work}: p50", "int8", 1e3 * total, "ms", "Model.translate", 1e3 * bare, None)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks serve", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["base"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 32, 128])
    parser.add_argument("--beams", nargs="+", type=int, default=[4, 1])
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="duration of each measurement in seconds"
    )
    parser.add_argument(
        "--warm-up", type=float, default=2.0, help="duration of the warm-up in seconds"
    )
    parser.add_argument("--repeats", type=int, default=2, help="rounds of measurements")
    peers = ("ctranslate2", "huggingface")
    parser.add_argument("--peers", nargs="*", default=list(peers), choices=peers)
    parser.add_argument("--start", action="store_true", help="measure the start of the service")
    ratios.add_options(parser)
    options = parser.parse_args(arguments)
    log = RatioLog("serve", arguments, options, "cpu")
    if options.start:
        measure_start(options.repeats, log)
        return log.close()
    for preset in options.presets:
        for beam in options.beams:
            compare(preset, beam, options, log)
    return log.close()
