"""`regard view ...`: the pictures and tables to look at, and their options. torch is imported only
when one is made."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from regard.model.config import STYLES
from regard.settings import section_settings
from regard.verbs import architecture_options


def walk_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("text", metavar="TEXT", help="the sentence to follow, at most 24 characters")
    verb.add_argument("--target", help="what the decoder writes (default: TEXT)")
    verb.add_argument("--seed", type=int, default=0, help="of the random weights")
    architecture_options(verb)


def walk(options: argparse.Namespace) -> int:
    """What happens to a sentence, step by step, in a real (small, seeded) model."""
    from regard.view.walk import walk_config, walk_steps, write_walk

    changes = section_settings(options.assignments, "model")
    config = walk_config(options.text, options.target, options.style or STYLES[0], changes)
    steps = walk_steps(options.text, options.target, config, options.seed)
    if options.json:
        for step in steps:
            print(json.dumps(step.to_dict(), ensure_ascii=False))
    else:
        write_walk(steps, config, options.seed)
    return 0


def curves_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    verb.add_argument("--out", type=Path, metavar="FILE.png", help="(default: RUN/curves.png)")


def curves(options: argparse.Namespace) -> int:
    """Draw loss, score, learning rate and speed of runs as PNG and SVG."""
    from regard.view.curves import draw_curves

    for path in draw_curves(options.runs, options.out):
        print(json.dumps({"file": str(path)}) if options.json else path)
    return 0


def positions_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-m", "--model", type=Path, metavar="MODEL", help="none: by the formula")
    verb.add_argument("--length", type=int, metavar="N", help="positions (256)")
    verb.add_argument("--d-model", type=int, metavar="N", help="of the formula (512)")
    verb.add_argument("--base", type=float, metavar="X", help="of the formula (10000)")
    verb.add_argument("--out", type=Path, metavar="FILE.png", help="(default: positions.png)")


def positions(options: argparse.Namespace) -> int:
    """Draw the positional encodings and their dot products as PNG and SVG."""
    from regard.view.positions import draw_positions

    drawn = draw_positions(
        options.model, options.length, options.d_model, options.base, options.out
    )
    for path in drawn:
        print(json.dumps({"file": str(path)}) if options.json else path)
    return 0


VIEWS = [
    ("walk", walk, walk_options),
    ("curves", curves, curves_options),
    ("positions", positions, positions_options),
]
