"""`regard finish`: the final weights of an interrupted run, without further training."""

from __future__ import annotations

import argparse
import sys

from regard.cli.options import file_path, machine_options
from regard.console import as_json


def finish_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("folder", type=file_path, metavar="RUN", help="folder of an interrupted run")
    verb.add_argument(
        "--force", action="store_true",
        help="ignore damaged checkpoints instead of stopping; the final weights may differ",
    )  # fmt: skip
    machine_options(verb)


def finish(options: argparse.Namespace) -> int:
    """Choose and write the final weights of an interrupted run, without further training."""
    from regard.tasks.train import finish_run

    scores = finish_run(
        options.folder, force=options.force, device=options.device, quiet=options.quiet,
        command=sys.argv[1:],
    )  # fmt: skip
    if options.json:
        print(as_json({"folder": str(options.folder), **scores}))
    return 0
