"""`regard view ...`: the options of each view. torch is imported only when a view is drawn."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from regard.cli.options import (
    MOST_LENGTH,
    MOST_WIDTH,
    architecture_options,
    bounded,
    file_path,
    model_to_use,
)
from regard.cli.predict import opened
from regard.config.model import STYLES
from regard.config.settings import section_settings
from regard.console import as_json, visible_line
from regard.errors import InputError
from regard.files import check_destination
from regard.training.shipped import folder_of, is_boxed

LENGTH = bounded(int, 2, MOST_LENGTH, "positions are compared")
D_MODEL = bounded(int, 2, MOST_WIDTH)
BASE = bounded(float, 1.0, 1e100, "wavelengths grow by this factor", above=True)
LAYER = bounded(int, 1, 1_000_000)  # the model sets the actual bound


def walk_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("text", metavar="TEXT", help="sentence of at most 300 characters")
    verb.add_argument(
        "--target", metavar="TEXT", help="target sentence of the decoder (default: TEXT)"
    )
    seeds, text = bounded(int, 0, 2**63 - 1), "random seed for the weights (default: 0)"
    verb.add_argument("--seed", type=seeds, default=0, metavar="N", help=text)
    architecture_options(verb)


def walk(options: argparse.Namespace) -> int:
    """Show what happens to a sentence, step by step, in a small model with random weights."""
    from regard.view.walk import walk_config, walk_steps, write_walk

    changes = section_settings(options.assignments, "model")
    config = walk_config(options.text, options.target, options.style or STYLES[0], changes)
    steps = walk_steps(options.text, options.target, config, options.seed)
    if options.json:
        for step in steps:
            print(as_json(vars(step)))
    else:
        write_walk(steps, config, options.seed)
    return 0


def print_files(paths: list[Path], options: argparse.Namespace) -> int:
    for path in paths:
        print(as_json({"file": str(path)}) if options.json else path)
    return 0


def curves_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "runs", nargs="+", type=file_path, metavar="RUN", help="folder of a training run"
    )
    verb.add_argument(
        "--out",
        type=file_path,
        metavar="FILE.png",
        help="file to write, as PNG and SVG (default: RUN/curves.png)",
    )


def curves(options: argparse.Namespace) -> int:
    """Draw the loss, score, learning rate and speed of training runs as PNG and SVG."""
    from regard.view.curves import draw_curves

    out = options.out or (Path("curves.png") if any(map(is_boxed, options.runs)) else None)
    return print_files(draw_curves([folder_of(run) for run in options.runs], out), options)


def positions_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "-m",
        "--model",
        type=file_path,
        metavar="MODEL",
        help="trained model (default: the sinusoids of the paper)",
    )
    verb.add_argument(
        "--length", type=LENGTH, metavar="N", help="number of positions (default: 256)"
    )
    verb.add_argument(
        "--d-model", type=D_MODEL, metavar="N", help="width of the encodings (default: 512)"
    )
    verb.add_argument(
        "--base", type=BASE, metavar="X", help="base of the wavelengths (default: 10000)"
    )
    verb.add_argument(
        "--out",
        type=file_path,
        metavar="FILE.png",
        help="file to write, as PNG and SVG (default: positions.png)",
    )


def positions(options: argparse.Namespace) -> int:
    """Draw the positional encodings and their dot products as PNG and SVG."""
    from regard.view.positions import draw_positions

    model = None if options.model is None else folder_of(options.model)
    sizes = options.length, options.d_model, options.base
    shipped = options.model is not None and is_boxed(options.model)
    out = options.out or (Path("positions.png") if shipped else None)
    return print_files(draw_positions(model, *sizes, out), options)


def attention_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "text", nargs="?", metavar="TEXT", help="input text (default: one line of standard input)"
    )
    verb.add_argument(
        "--target", metavar="TEXT", help="target text (default: the model's prediction)"
    )
    verb.add_argument(
        "--context", metavar="TEXT", help="context of the question (task answer only)"
    )
    verb.add_argument(
        "--stack", choices=("encoder", "decoder", "cross"),
        help="which attention (default: cross, or the only one that the model has)",
    )  # fmt: skip
    verb.add_argument(
        "--kind", choices=("grid", "head", "lines", "mean", "rollout"), default="grid",
        help="grid: all heads; head, lines: one head; mean: the mean of all heads; rollout: all "
        "layers combined (default: grid)",
    )  # fmt: skip
    verb.add_argument(
        "--layer", type=LAYER, metavar="N", help="number of the layer, from 1 (default: the last)"
    )
    verb.add_argument(
        "--head", type=LAYER, metavar="N", help="number of the head, from 1 (default: the first)"
    )
    verb.add_argument(
        "--out", type=file_path, metavar="FILE",
        help="file to write: .png or .svg (both are written) or .html (default: "
        "MODEL/attention.png, or attention.png for a model in the box)",
    )  # fmt: skip
    model_to_use(verb, "translate")


def attention(options: argparse.Namespace) -> int:
    """Draw the attention weights of a trained model as PNG and SVG, or as an HTML page."""
    from regard.predictor.attention import choose
    from regard.predictor.attention_figure import attention_figure
    from regard.predictor.attention_inputs import gather
    from regard.text.lines import read_blocks
    from regard.view.attention import as_dict, describe
    from regard.view.attention_page import write_page
    from regard.view.picture import picture_name, save_picture

    out = options.out or (Path() if is_boxed(options.model) else options.model) / "attention"
    out = out / "attention" if out.is_dir() else out
    page = out.suffix == ".html"
    if out.suffix not in ("", ".png", ".svg", ".html"):
        raise InputError(f"--out {out}: the name must end in .png, .svg or .html")
    check_destination(out) if page else picture_name(out)
    model = opened(options)
    shape = model.config.model
    view = choose(shape, options.kind, options.stack, options.layer, options.head)
    text = options.text
    if text is None:
        lines = [line for _, block, _ in read_blocks(sys.stdin.fileno(), "stdin") for line in block]
        if len(lines) != 1:
            raise InputError(
                f"standard input has {len(lines)} lines, but one text is needed: pass it as an "
                "argument"
            )
        text = lines[0]
    seen = gather(model, text, options.target, options.context)
    if page:
        paths = write_page(seen, view, out)
    else:
        paths = save_picture(lambda: attention_figure(seen, view), out)
    files = [str(path) for path in paths]
    if options.json:
        print(as_json(as_dict(seen, view, files)))
    else:
        print("\n".join([*map(visible_line, describe(seen, view)), *files]))
    return 0


VIEWS = [
    ("attention", attention, attention_options),
    ("walk", walk, walk_options),
    ("curves", curves, curves_options),
    ("positions", positions, positions_options),
]
