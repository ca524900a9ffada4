"""The time from the command to the output: every verb with its shipped model.

Each run is a new process with one text; the time ends when the process has printed its output and
ended. Cold: the cache is empty, so no C++ code has been built (the build for the next call is
awaited before the next run). Warm: the cache of the previous run. The peer is the time to import
PyTorch, measured in the same run. `--drop` also empties the file cache of the system before each
cold run, as on a machine that has just been started; this needs root.
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
from benchmarks.startup import importing
from regard.training.shipped import contents

WORDS = {
    "translate": ["How much does this bicycle cost?"],
    "generate": ["ROMEO:"],
    "classify": ["A wonderful, moving film."],
    "fill": ["This is one of the <mask> movies I have ever seen."],
    "embed": ["A man rides a bicycle."],
}
DOCUMENTS = ["A man is playing a guitar.", "The stock market fell today.", "A cat is sleeping."]
NATIVE = ("attention", "inference")  # the libraries that every verb loads
LONGEST = 300.0  # time limit of the compiler, in seconds


def wall_time(words: list[str], environment: dict[str, str]) -> float:
    """Run a command of regard and return the seconds until it has ended."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "regard", *words], env=environment, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - start


def wait_for_native(cache: Path) -> None:
    """Wait until the background build of the C++ code has ended."""
    end = time.perf_counter() + LONGEST
    while not all(list(cache.rglob(f"{name}-*.so")) for name in NATIVE):
        if time.perf_counter() > end:
            raise SystemExit(f"no C++ code was built in {cache}")
        time.sleep(0.1)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks latency", description=__doc__)
    parser.add_argument(
        "--repeats", type=int, default=3, help="number of cold runs and of warm runs"
    )
    parser.add_argument("--drop", action="store_true", help="also empty the file cache")
    ratios.add_options(parser)
    options = parser.parse_args(arguments)
    log = RatioLog("latency", arguments, options, "cpu")
    importing()  # fills the file cache
    peer = statistics.median(importing() for _ in range(options.repeats))
    print(f"importing torch takes {peer:.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        documents = Path(folder) / "documents.txt"
        documents.write_text("\n".join(DOCUMENTS) + "\n", encoding="utf-8")
        commands = [[task, *WORDS[task]] for task in contents()]
        if "embed" in contents():
            commands.append(["search", "A kitten is asleep.", "--documents", str(documents)])
        for words in commands:
            times: dict[str, list[float]] = {"cold": [], "warm": []}
            for number in range(options.repeats):
                cache = Path(folder) / f"{words[0]}{number}"
                environment = os.environ | {"REGARD_CACHE": str(cache)}
                if options.drop:
                    subprocess.run(["sync"], check=True)
                    Path("/proc/sys/vm/drop_caches").write_text("3\n")
                times["cold"].append(wall_time(words, environment))
                wait_for_native(cache)
                times["warm"].append(wall_time(words, environment))
            for kind, seconds in times.items():
                median = statistics.median(seconds)
                print(
                    f"  regard {words[0]}, cache {kind}: {median:.2f} s "
                    f"({min(seconds):.2f} to {max(seconds):.2f})", flush=True,
                )  # fmt: skip
                log.add(
                    f"{words[0]}, cache {kind}", "its own", median, "s", "importing torch", peer,
                    peer / median,
                )  # fmt: skip
    return log.close()
