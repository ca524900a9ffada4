"""The time from the command `regard serve` to the first page and to the first translation."""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time

from benchmarks.ratios import RatioLog
from benchmarks.startup import importing

GOAL = 3.0  # seconds
LONGEST = 60.0  # seconds until the benchmark ends without a result
TEXT = {"q": "How much does this bicycle cost?", "source": "en", "target": "de"}


def start_once() -> tuple[float, float]:
    """Start the service with the models in the box; returns the seconds until its page is complete
    and until the first translation."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "regard", "serve", "--port", "0", "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            port = next(
                int(line.rpartition(":")[2]) for line in process.stderr if "listening at" in line
            )
            page = wait_for_answer(port, "GET", "/", "", start)
            return page, wait_for_answer(port, "POST", "/translate", json.dumps(TEXT), start)
        finally:
            process.terminate()
            process.wait()


def wait_for_answer(port: int, method: str, path: str, body: str, start: float) -> float:
    """Repeat a request until it succeeds; returns the seconds since `start`."""
    while (elapsed := time.perf_counter() - start) < LONGEST:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.status == 200 and content:
            return time.perf_counter() - start
        if response.status == 404:
            raise SystemExit(f"regard serve has no {path}")
        time.sleep(0.02)
    raise SystemExit(f"{path} had no answer after {elapsed:.0f} s")


def measure_start(repeats: int, log: RatioLog) -> None:
    """Print the medians next to the goal, and log them."""
    importing()  # fills the file cache
    peer = statistics.median(importing() for _ in range(repeats))
    print(f"importing torch takes {peer:.2f} s")
    start_once()  # builds the native code, if necessary
    times = [start_once() for _ in range(repeats)]
    for kind, seconds in zip(("page", "first translation"), zip(*times, strict=True), strict=True):
        median = statistics.median(seconds)
        verdict = "reached" if median <= GOAL else "NOT REACHED"
        print(
            f"  {kind}: {median:.2f} s after the command ({min(seconds):.2f} to "
            f"{max(seconds):.2f}), goal {GOAL:g} s: {verdict}", flush=True,
        )  # fmt: skip
        log.add(f"start: {kind}", "its own", median, "s", "importing torch", peer, peer / median)
