"""The quality of a trained model at lower precision: the same test set in each precision.

python -m benchmarks precision -m RUN --data SOURCE TARGET

The peer of each precision is float32. Scores come from `regard evaluate`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import ratios
from benchmarks.compare import DTYPES
from benchmarks.ratios import RatioLog

METRICS = ("bleu", "chrf")


def scores(model: Path, data: list[str], dtype: str) -> dict[str, Any]:
    """The scores of `regard evaluate` in one precision."""
    command = [
        sys.executable, "-m", "regard", "evaluate", "-m", str(model), "--data", *data,
        "--dtype", dtype, "--device", "cpu", "--json", "--quiet",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with exit code {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks precision", description=__doc__)
    parser.add_argument("-m", "--model", required=True, type=Path)
    parser.add_argument("--data", required=True, nargs="+", metavar="FILE")
    ratios.add_options(parser)
    options = parser.parse_args(arguments)
    log = RatioLog("precision", arguments, options, "cpu")
    results = {dtype: scores(options.model, options.data, dtype) for dtype in DTYPES}
    for dtype, measured in results.items():
        print(
            f"{dtype:10} " + "  ".join(f"{name} {measured[name]:.2f}" for name in METRICS),
            flush=True,
        )
        if dtype != DTYPES[0]:
            for name in METRICS:
                full = results[DTYPES[0]][name]
                work = f"{options.model.name}, {measured['examples']:,} sentences, {name}"
                log.add(work, dtype, measured[name], name, DTYPES[0], full, None)
    return log.close()
