"""`regard lab ...`: the measurements of the architecture, and their options. torch is imported only
when one is made."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from regard.model.config import PRESETS
from regard.settings import settings
from regard.verbs import machine_options


def styles_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--task", default="translate", help="translate | classify")
    for split, said in (
        ("train", "translate: SOURCE TARGET; none: the built-in corpus"),
        ("valid", "held-out data, for the learning curves"),
        ("test", "what quality is measured on (default: --valid)"),
    ):
        verb.add_argument(f"--{split}", nargs="+", metavar="FILE", help=said)
    verb.add_argument(
        "--preset", help=" | ".join(PRESETS) + " (tiny; for the built-in corpus of 2 + 2 layers)"
    )
    verb.add_argument("--steps", type=int, metavar="N", help="of training, for each style")
    verb.add_argument("--seed", nargs="+", type=int, default=[1], metavar="N", help="one or more")
    verb.add_argument("--out", type=Path, default=Path("regard-styles"), metavar="DIR")
    verb.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", dest="assignments",
        help="change one option; layers are the encoder-decoder's; repeatable",
    )  # fmt: skip
    machine_options(verb)


def styles(options: argparse.Namespace) -> int:
    """Train the three styles on one task; compare quality, parameters and time."""
    values = settings(options.assignments)
    if options.steps is not None:
        values["training"] = {"steps": options.steps, **values.get("training", {})}
    from regard.lab.styles import compare

    files = {split: getattr(options, split) for split in ("train", "valid", "test")}
    report = compare(
        options.out, options.task, files, options.preset, values, options.seed,
        options.device, options.quiet,
    )  # fmt: skip
    print(json.dumps(report.to_dict(), ensure_ascii=False)) if options.json else report.show()
    return 0


LABS = [
    ("styles", styles, styles_options),
]
