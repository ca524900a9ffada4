"""Compare the three model styles on the built-in corpus and write docs/results/styles.json."""

from __future__ import annotations

import json
from datetime import date

from experiments.catalogue import RUNS
from experiments.results import command_line, experiment_parser, run_regard, save_result

COMMAND = ["lab", "styles", "--out", f"{RUNS}/styles"]


def main(arguments: list[str]) -> None:
    options = experiment_parser("styles", __doc__).parse_args(arguments)
    result = json.loads(run_regard([*COMMAND, "--json", "--quiet"], options))
    del result["files"]
    for style in result["styles"].values():
        del style["runs"]
    save_result({"name": "styles", "date": str(date.today()), "train": command_line(COMMAND),
                 "machine": options.where, "evaluate": {}, **result}, options)  # fmt: skip
