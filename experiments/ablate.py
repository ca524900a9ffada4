"""Reproduce the paper's Table 3 on Multi30k and write docs/results/ablate.json.

A row that fails is part of the result.
"""

from __future__ import annotations

import json
from datetime import date

from benchmarks.machine import commit
from experiments.catalogue import CAPTIONS, RUNS
from experiments.results import add_data, command_line, experiment_parser, run_regard, save_result

# 28 rows with two seeds, on the development set as in the paper. One set of final weights is
# enough (average, keep), and four validations show when a row reaches its quality.
COMMAND = [
    "lab", "ablate", "--train", *CAPTIONS["train"], "--valid", *CAPTIONS["val"], "--preset",
    "tiny", "--seed", "1", "2", "--steps", "1000", "--jobs", "8", "--device", "cuda",
    *(word for option in ("validate_every=250", "checkpoint_every=500", "average=1", "keep=1")
      for word in ("--set", f"training.{option}")),
    "--out", f"{RUNS}/ablate",
]  # fmt: skip


def main(arguments: list[str]) -> None:
    parser = experiment_parser("ablate", __doc__)
    add_data(parser)
    options = parser.parse_args(arguments)
    result = json.loads(run_regard([*COMMAND, "--json"], options, may_fail=True))
    del result["files"]
    machine = options.where or result.pop("machine")
    save_result({**result, "name": "ablate", "date": str(date.today()), "commit": commit(),
                 "train": command_line(COMMAND), "machine": machine, "evaluate": {}},
                options)  # fmt: skip
