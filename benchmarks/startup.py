"""The time from the command `regard train` to the first optimiser step.

Each run is a new process on the built-in corpus: its metrics file gets its first line right after
the first step, and then the process is ended. Cold: nothing is cached, so the vocabulary is
learned, the corpus tokenised and the C++ code compiled. Warm: the caches of the previous run. The
peer is the time to import PyTorch, measured in the same run. Options after `--` are passed to
`regard train`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import ratios
from benchmarks.ratios import RatioLog
from regard.tasks.builtin import write_corpus

CACHES = ("REGARD_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
LONGEST = 600.0  # time limit for the first step, in seconds
POLL = 0.005  # seconds between two checks


def first_step(command: list[str], run: Path, environment: dict[str, str]) -> float:
    """Start a training in the folder `run` and return the seconds until its first step."""
    metrics = run / "metrics.jsonl"
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--out", str(run)], env=environment)
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None or time.perf_counter() - start > LONGEST:
                raise SystemExit(f"{' '.join(command)} made no step within {LONGEST:.0f} s")
            time.sleep(POLL)
        return time.perf_counter() - start
    finally:
        process.kill()
        process.wait()


def importing() -> float:
    """Seconds that a new process needs to import PyTorch."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - start


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks startup", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["tiny", "base"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--repeats", type=int, default=3, help="warm runs")
    ratios.add_options(parser)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, passed_on = parser.parse_args(arguments[:end]), arguments[end + 1 :]
    log = RatioLog("startup", arguments, options, options.device)
    importing()  # fills the file cache
    peer = statistics.median(importing() for _ in range(options.repeats))
    print(f"importing torch takes {peer:.2f} s")
    for preset in options.presets:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            files = write_corpus(place / "data")
            command = [
                sys.executable, "-m", "regard", "train", "--task", "translate", "--quiet",
                "--train", *files["train"], "--preset", preset, "--device", options.device,
                *passed_on,
            ]  # fmt: skip
            caches = {name: str(place / name.lower()) for name in CACHES}
            times = [
                first_step(command, place / f"run{number}", os.environ | caches)
                for number in range(1 + options.repeats)
            ]
        for kind, seconds in (("cold", times[0]), ("warm", statistics.median(times[1:]))):
            print(f"  {preset}, caches {kind}: {seconds:.2f} s to the first step", flush=True)
            log.add(
                f"{preset}, caches {kind}", "its own", seconds, "s", "importing torch", peer,
                peer / seconds,
            )  # fmt: skip
    return log.close()
