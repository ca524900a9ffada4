"""`regard lab ...`: the measurements of the architecture, and their options. torch is imported only
when one is made."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

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
from regard.lab.ablate_rows import GROUPS
from regard.lab.kinds import KERNEL, KINDS, WINDOW

if TYPE_CHECKING:
    from regard.lab.school import School


WINDOWS, KERNELS = bounded(int, 1, 1_000_000), bounded(int, 1, 1000)


class Report(Protocol):
    """The result of a measurement."""

    def to_dict(self) -> dict[str, Any]: ...

    def show(self) -> None: ...


def tell(report: Report, options: argparse.Namespace) -> None:
    print(as_json(report.to_dict())) if options.json else report.show()


def training_options(verb: argparse.ArgumentParser, name: str, settable: str) -> None:
    """Options of measurements that train their own models."""
    for split, text in (
        ("train", "translate: SOURCE TARGET (default: the built-in corpus)"),
        ("valid", "held-out data, for the learning curves"),
        ("test", "data for measuring quality (default: --valid)"),
    ):
        verb.add_argument(f"--{split}", nargs="+", type=file_name, metavar="FILE", help=text)
    verb.add_argument(
        "--preset", help=" | ".join(PRESETS) + " (tiny; for the built-in corpus of 2 + 2 layers)"
    )
    verb.add_argument("--steps", type=STEPS, metavar="N", help="steps of each training run")
    verb.add_argument(
        "--seed", nargs="+", type=SEED, default=[1], metavar="N", help="random seeds (default: 1)"
    )
    verb.add_argument("--out", type=file_path, default=Path(f"regard-{name}"), metavar="DIR")
    verb.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", dest="assignments",
        help=f"change one option; {settable}; repeatable",
    )  # fmt: skip
    machine_options(verb)


def training_settings(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """--set, and --steps as one of them."""
    values = settings(options.assignments)
    if options.steps is not None:
        values["training"] = {"steps": options.steps, **values.get("training", {})}
    return values


def styles_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--task", default="translate", help="translate | classify")
    training_options(verb, "styles", "layers are the encoder-decoder's")


def styles(options: argparse.Namespace) -> int:
    """Train the three styles on one task; compare quality, parameters and time."""
    values = training_settings(options)
    from regard.lab.styles import compare

    files = {split: getattr(options, split) for split in ("train", "valid", "test")}
    report = compare(
        options.out, options.task, files, options.preset, values, options.seed,
        options.device, options.quiet,
    )  # fmt: skip
    tell(report, options)
    return 0


def ablate_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--task", default="translate", help="translate | classify | answer")
    verb.add_argument(
        "--rows", nargs="+", default=list(GROUPS), metavar="ROW",
        help="groups or single rows (A-heads-1); all: "
        + "; ".join(f"{group}: {said}" for group, said in GROUPS.items()),
    )  # fmt: skip
    verb.add_argument(
        "--jobs",
        type=bounded(int, 1, 1024),
        default=1,
        metavar="N",
        help="parallel training runs (default: 1)",
    )
    training_options(verb, "ablate", "of the base, and so of all rows")


def ablate(options: argparse.Namespace) -> int:
    """Train variations of a model on your data; table 3 of the paper, with significance."""
    values = training_settings(options)
    from regard.lab.ablate import ablate as measure

    files = {split: getattr(options, split) for split in ("train", "valid", "test")}
    report = measure(
        options.out, options.task, files, options.preset, values, options.rows, options.seed,
        options.jobs, options.device, options.quiet,
    )  # fmt: skip
    tell(report, options)
    return 1 if report.failed else 0


def positions_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--length", type=LENGTH, default=256, metavar="N", help="positions (default: 256)"
    )
    verb.add_argument("--d-model", type=D_MODEL, default=512, metavar="N", help="(default: 512)")
    verb.add_argument(
        "--base", nargs="+", type=BASE, default=[100.0, 10_000.0], metavar="X",
        help="bases of the sinusoids (default: 100 10000)",
    )  # fmt: skip
    verb.add_argument("--steps", type=STEPS, metavar="N", help="steps of each run (default: 800)")
    verb.add_argument(
        "--seconds", type=SECONDS, metavar="S", help="time limit of each run, instead of --steps"
    )
    verb.add_argument(
        "--seed",
        nargs="+",
        type=SEED,
        default=[1, 2, 3],
        metavar="N",
        help="seeds (default: 1 2 3)",
    )
    verb.add_argument("--out", type=file_path, default=Path("regard-positions"), metavar="DIR")
    machine_options(verb)


def positions(options: argparse.Namespace) -> int:
    """Sinusoids against theory; sinusoidal, learned, rotary and no positions at new lengths."""
    from regard.lab.positions import measure

    report = measure(
        options.out, options.length, options.d_model, options.base, options.steps,
        options.seconds, options.seed, options.device, options.quiet,
    )  # fmt: skip
    tell(report, options)
    return 0


def complexity_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--kinds", nargs="+", default=[], metavar="KIND", help="kinds of layers (default: all)"
    )
    verb.add_argument(
        "--lengths",
        nargs="+",
        type=bounded(int, 2, MOST_LENGTH),
        default=[],
        metavar="N",
        help="sequence lengths (default: 64 to 16384)",
    )
    verb.add_argument(
        "--widths",
        nargs="+",
        type=bounded(int, 2, MOST_WIDTH),
        default=[],
        metavar="D",
        help="model widths (default: 64 to 1024)",
    )
    verb.add_argument(
        "--window",
        type=WINDOWS,
        default=64,
        metavar="R",
        help="window of restricted attention (default: 64)",
    )
    verb.add_argument(
        "--kernel", type=KERNELS, default=3, metavar="K", help="kernel width (default: 3)"
    )
    verb.add_argument(
        "--limit", type=SECONDS, default=1.0, metavar="SECONDS",
        help="skip a pass that would take longer (default: 1)",
    )  # fmt: skip
    verb.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    verb.add_argument("--out", type=file_path, default=Path("regard-complexity"), metavar="DIR")
    machine_options(verb)


def complexity(options: argparse.Namespace) -> int:
    """Measure the paper's table 1: operations, sequential steps, path length, time, memory."""
    from regard.lab.complexity import complexity as measure
    from regard.lab.complexity_report import make_report

    found = measure(
        options.kinds, options.lengths, options.widths, options.window, options.kernel,
        options.limit, options.device, options.dtype, options.quiet, options.out,
    )  # fmt: skip
    report = make_report(found)
    report.write(options.out)
    tell(report, options)
    return 0


def school_options(verb: argparse.ArgumentParser) -> None:
    """What `path` and `recall` have in common."""
    verb.add_argument(
        "--kinds", nargs="+", default=list(KINDS), metavar="KIND",
        help=" | ".join(KINDS) + " (default: all)",
    )  # fmt: skip
    verb.add_argument(
        "--layers", type=bounded(int, 1, 64), default=2, metavar="N", help="(default: 2)"
    )
    verb.add_argument(
        "--d-model", type=bounded(int, 1, MOST_WIDTH), default=64, metavar="N", help="(default: 64)"
    )
    verb.add_argument(
        "--window",
        type=WINDOWS,
        default=WINDOW,
        metavar="R",
        help=f"attention window (default: {WINDOW})",
    )
    verb.add_argument(
        "--kernel",
        type=KERNELS,
        default=KERNEL,
        metavar="K",
        help=f"kernel width (default: {KERNEL})",
    )
    verb.add_argument(
        "--seconds", type=SECONDS, metavar="S", help="training time per model (default: 8)"
    )
    verb.add_argument(
        "--steps", type=STEPS, metavar="N", help="training steps, instead of --seconds"
    )
    verb.add_argument(
        "--seed",
        nargs="+",
        type=SEED,
        default=[1, 2, 3],
        metavar="N",
        help="seeds (default: 1 2 3)",
    )


def chosen_school(options: argparse.Namespace) -> School:
    from regard.lab.school import School

    seconds = 8.0 if options.seconds is None and options.steps is None else options.seconds
    return School(
        options.kinds, options.layers, options.d_model, options.window, options.kernel, seconds,
        options.steps, options.seed, options.device,
    )  # fmt: skip


def path_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--length",
        type=bounded(int, 3, MOST_LENGTH),
        default=256,
        metavar="N",
        help="sequence length (default: 256)",
    )
    school_options(verb)
    verb.add_argument("--out", type=file_path, default=Path("regard-path"), metavar="DIR")
    machine_options(verb)


def path(options: argparse.Namespace) -> int:
    """Gradient from the last output to the input t steps back, before and after training."""
    from regard.lab.path import measure_path

    report = measure_path(options.out, options.length, chosen_school(options), options.quiet)
    tell(report, options)
    return 0


def recall_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--distances", nargs="+", type=bounded(int, 1, MOST_LENGTH), metavar="N",
        default=[2**i for i in range(10)], help="steps back (default: 1 2 4 ... 512)",
    )  # fmt: skip
    school_options(verb)
    verb.add_argument("--out", type=file_path, default=Path("regard-recall"), metavar="DIR")
    machine_options(verb)


def recall(options: argparse.Namespace) -> int:
    """Accuracy at recalling a token n steps back, for equal training time."""
    from regard.lab.recall import measure_recall

    report = measure_recall(options.out, options.distances, chosen_school(options), options.quiet)
    tell(report, options)
    return 0


LABS = [
    ("complexity", complexity, complexity_options),
    ("styles", styles, styles_options),
    ("ablate", ablate, ablate_options),
    ("positions", positions, positions_options),
    ("path", path, path_options),
    ("recall", recall, recall_options),
]
