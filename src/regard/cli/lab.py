"""`regard lab ...`: the measurements of the architecture, and their options. torch is imported only
when a measurement runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.options import (
    MOST_LENGTH,
    MOST_WIDTH,
    SECONDS,
    SEED,
    STEPS,
    bounded,
    file_name,
    file_path,
    machine_options,
)
from regard.cli.view import BASE, D_MODEL, LENGTH
from regard.config.model import PRESETS
from regard.config.settings import settings
from regard.console import as_json
from regard.lab.ablate.variants import GROUPS
from regard.lab.common.layer_kinds import KERNEL, LAYER_KINDS, WINDOW

if TYPE_CHECKING:
    from regard.lab.common.recall_training import RecallTraining
    from regard.lab.common.report import LabReport
    from regard.lab.common.training import TrainingOptions


def finish(report: LabReport, options: argparse.Namespace) -> int:
    """Write the report, and print it."""
    report.write(options.out)
    print(as_json(report.to_dict())) if options.json else report.show()
    return 0


def number(
    verb: argparse.ArgumentParser, name: str, kind: Any, default: float, text: str, **more: Any
) -> None:
    """Add an option that is a number, with its default in the help text."""
    help = f"{text} (default: {default:g})"
    verb.add_argument(name, type=kind, default=default, help=help, **{"metavar": "N", **more})


def common_options(
    verb: argparse.ArgumentParser, command: str, seeds: str = "", steps: str = "", seconds: str = ""
) -> None:
    """Add the options that most measurements have.

    Args:
        verb: the parser of the measurement.
        command: its name, for the default of --out.
        seeds: the default seeds; empty: no option --seed.
        steps: the help text of --steps; empty: no such option.
        seconds: the help text of --seconds; empty: no such option.
    """
    if steps:
        verb.add_argument("--steps", type=STEPS, metavar="N", help=steps)
    if seconds:
        verb.add_argument("--seconds", type=SECONDS, metavar="S", help=seconds)
    if seeds:
        text = f"random seeds (default: {seeds})"
        default = [int(seed) for seed in seeds.split()]
        verb.add_argument("--seed", nargs="+", type=SEED, default=default, metavar="N", help=text)
    out = f"regard-{command}"
    text = f"folder to write the report to (default: {out})"
    verb.add_argument("--out", type=file_path, default=Path(out), metavar="DIR", help=text)
    machine_options(verb)


def layer_options(
    verb: argparse.ArgumentParser, kinds: list[str], text: str, window: int, kernel: int
) -> None:
    text = f"{text} (default: all)"
    verb.add_argument("--kinds", nargs="+", default=kinds, metavar="KIND", help=text)
    windows, kernels = bounded(int, 1, 1_000_000), bounded(int, 1, 1000)
    number(verb, "--window", windows, window, "window of restricted attention", metavar="R")
    number(verb, "--kernel", kernels, kernel, "kernel width of convolutions", metavar="K")


def training_options(verb: argparse.ArgumentParser, command: str, settable: str) -> None:
    for split, text in (
        ("train", "training data; for translate: SOURCE TARGET (default: the built-in corpus)"),
        ("valid", "validation data for the learning curves; required with --train"),
        ("test", "test data for the scores (default: --valid)"),
    ):
        verb.add_argument(f"--{split}", nargs="+", type=file_name, metavar="FILE", help=text)
    default = "(default: tiny; for the built-in corpus 2 + 2 layers)"
    verb.add_argument("--preset", help=f"model size: {', '.join(PRESETS)} {default}")
    verb.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", dest="assignments",
        help=f"set one option {settable}; may be repeated",
    )  # fmt: skip
    steps = "training steps of each run (default: 2000; 600 for the built-in corpus)"
    common_options(verb, command, "1", steps)


def chosen_training(options: argparse.Namespace) -> TrainingOptions:
    values: dict[str, dict[str, Any]] = settings(options.assignments)
    if options.steps is not None:
        values["training"] = {"steps": options.steps, **values.get("training", {})}
    from regard.lab.common.training import TrainingOptions

    files = {split: getattr(options, split) for split in ("train", "valid", "test")}
    return TrainingOptions(
        options.out, options.task, files, options.preset, values, options.seed, options.device,
        options.quiet,
    )  # fmt: skip


def styles_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--task", default="translate", help="translate or classify (default: translate)"
    )
    training_options(verb, "styles", "(model.layers counts those of the encoder-decoder)")


def styles(options: argparse.Namespace) -> int:
    """Compare the three architecture styles on one task: quality, parameters and time."""
    chosen = chosen_training(options)
    from regard.lab.styles.measure import measure_styles

    return finish(measure_styles(chosen), options)


def ablate_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--task", default="translate", help="translate, classify or answer (default: translate)"
    )
    groups = "; ".join(f"{group}: {text}" for group, text in GROUPS.items())
    verb.add_argument(
        "--rows", nargs="+", default=list(GROUPS), metavar="ROW",
        help=f"groups of variants, or single ones such as A-heads-1 (default: all). {groups}",
    )  # fmt: skip
    number(verb, "--jobs", bounded(int, 1, 1024), 1, "number of training runs in parallel")
    training_options(verb, "ablate", "of the base model and of all variants")


def ablate(options: argparse.Namespace) -> int:
    """Train variants of a model and compare them, as in table 3 of the paper."""
    chosen = chosen_training(options)
    from regard.lab.ablate.measure import measure_ablation

    report = measure_ablation(chosen, options.rows, options.jobs)
    finish(report, options)
    return 1 if report.failed else 0


# ---- path and recall: small models of each kind of layer ----------------------------------------


def recall_training_options(verb: argparse.ArgumentParser, command: str) -> None:
    kinds = f"kinds of layers: {', '.join(LAYER_KINDS)}"
    layer_options(verb, list(LAYER_KINDS), kinds, WINDOW, KERNEL)
    number(verb, "--layers", bounded(int, 1, 64), 2, "number of layers of each model")
    number(verb, "--d-model", bounded(int, 1, MOST_WIDTH), 64, "width of each model")
    steps = "training steps of each model, instead of --seconds"
    seconds = "training time of each model in seconds (default: 8)"
    common_options(verb, command, "1 2 3", steps, seconds)


def chosen_recall_training(options: argparse.Namespace) -> RecallTraining:
    from regard.lab.common.recall_training import RecallTraining

    seconds = 8.0 if options.seconds is None and options.steps is None else options.seconds
    return RecallTraining(
        options.kinds, options.layers, options.d_model, options.window, options.kernel, seconds,
        options.steps, options.seed, options.device,
    )  # fmt: skip


def path_options(verb: argparse.ArgumentParser) -> None:
    number(verb, "--length", bounded(int, 3, MOST_LENGTH), 256, "sequence length")
    recall_training_options(verb, "path")


def path(options: argparse.Namespace) -> int:
    """Measure the gradient from the last output to the input t steps back."""
    from regard.lab.path.measure import measure_path

    training = chosen_recall_training(options)
    return finish(measure_path(options.out, options.length, training, options.quiet), options)


def recall_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--distances", nargs="+", type=bounded(int, 1, MOST_LENGTH), metavar="N",
        default=[2**i for i in range(10)],
        help="distances to recall from, in tokens (default: 1 2 4 ... 512)",
    )  # fmt: skip
    recall_training_options(verb, "recall")


def recall(options: argparse.Namespace) -> int:
    """Measure the accuracy of recalling a token n steps back, for equal training time."""
    from regard.lab.recall.measure import measure_recall

    training = chosen_recall_training(options)
    return finish(measure_recall(options.out, options.distances, training, options.quiet), options)


# ---- positions and complexity -------------------------------------------------------------------


def positions_options(verb: argparse.ArgumentParser) -> None:
    number(verb, "--length", LENGTH, 256, "number of positions")
    number(verb, "--d-model", D_MODEL, 512, "width of the sinusoids")
    verb.add_argument(
        "--base", nargs="+", type=BASE, default=[100.0, 10_000.0], metavar="X",
        help="bases of the sinusoids (default: 100 10000)",
    )  # fmt: skip
    steps = "training steps of each run (default: 800)"
    seconds = "training time of each run in seconds, instead of --steps"
    common_options(verb, "positions", "1 2 3", steps, seconds)


def positions(options: argparse.Namespace) -> int:
    """Compare positional encodings with theory, and on sequences longer than in training."""
    from regard.lab.positions.measure import PositionsOptions, measure_positions

    chosen = PositionsOptions(
        options.out, options.length, options.d_model, options.base, options.steps,
        options.seconds, options.seed, options.device, options.quiet,
    )  # fmt: skip
    return finish(measure_positions(chosen), options)


def complexity_options(verb: argparse.ArgumentParser) -> None:
    layer_options(verb, [], "kinds of layers", 64, 3)
    for name, most, letter, text in (
        ("--lengths", MOST_LENGTH, "N", "sequence lengths (default: 64 to 16384)"),
        ("--widths", MOST_WIDTH, "D", "model widths (default: 64 to 1024)"),
    ):
        kind = bounded(int, 2, most)
        verb.add_argument(name, nargs="+", type=kind, default=[], metavar=letter, help=text)
    number(verb, "--limit", SECONDS, 1.0, "skip a pass that takes longer", metavar="SECONDS")
    verb.add_argument(
        "--dtype", default="auto", choices=("auto", "float32", "bfloat16"),
        help="data type of matrix products (default: auto, bfloat16 where it is faster)",
    )  # fmt: skip
    common_options(verb, "complexity")


def complexity(options: argparse.Namespace) -> int:
    """Measure table 1 of the paper: operations, sequential steps, path length, time, memory."""
    from regard.lab.complexity.measure import measure_complexity
    from regard.lab.complexity.report import make_report

    measured = measure_complexity(
        options.kinds, options.lengths, options.widths, options.window, options.kernel,
        options.limit, options.device, options.dtype, options.quiet, options.out,
    )  # fmt: skip
    return finish(make_report(measured), options)


LABS = [
    ("complexity", complexity, complexity_options),
    ("styles", styles, styles_options),
    ("ablate", ablate, ablate_options),
    ("positions", positions, positions_options),
    ("path", path, path_options),
    ("recall", recall, recall_options),
]
