"""From the command to the answer: every verb with the model in the box, as a newcomer starts it.

Each run is a process of its own that is given one text; the seconds are those until it has printed
its answer and ended. Cold: the cache is empty, so that nothing native was built yet (what is built
for the next time is waited for before the next run). Warm: the cache is that of the run before. No
command that uses PyTorch can be faster than importing it, which is measured in the same run.
`--drop` empties the system's own cache of files before each cold run, which only root can: that is
a machine that has just been switched on.
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
NATIVE = ("attention", "inference")  # the libraries that every verb asks for
LONGEST = 300.0  # seconds that a compiler may take


def answered(words: list[str], environment: dict[str, str]) -> float:
    """Seconds until the command has ended."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "regard", *words], env=environment, check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - start


def wait_for_native(cache: Path) -> None:
    """Until what a hurried process asked for is built."""
    end = time.perf_counter() + LONGEST
    while not all(list(cache.rglob(f"{name}-*.so")) for name in NATIVE):
        if time.perf_counter() > end:
            raise SystemExit(f"nothing native was built in {cache}")
        time.sleep(0.1)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks answers", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="cold runs, and as many warm ones")
    parser.add_argument("--drop", action="store_true", help="read the files from the disk, too")
    ratios.add_options(parser)
    options = parser.parse_args(arguments)
    log = RatioLog("answers", arguments, options, "cpu")
    importing()  # from the disk, once
    least = statistics.median(importing() for _ in range(options.repeats))
    print(f"importing torch takes {least:.2f} s")
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
                times["cold"].append(answered(words, environment))
                wait_for_native(cache)
                times["warm"].append(answered(words, environment))
            for kind, seconds in times.items():
                middle = statistics.median(seconds)
                print(
                    f"  regard {words[0]}, cache {kind}: {middle:.2f} s "
                    f"({min(seconds):.2f} to {max(seconds):.2f})", flush=True,
                )  # fmt: skip
                log.add(
                    f"{words[0]}, cache {kind}", "its own", middle, "s", "importing torch", least,
                    least / middle,
                )  # fmt: skip
    return log.close()
