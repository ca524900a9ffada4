"""Options of the command line: their types, and the groups that several commands share.

The types are passed to argparse as `type=`. An invalid value ends the program before any work, with
one line: `--samples must be at least 1, not 0`.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from regard.config.model import PRESETS, STYLES
from regard.config.sections import DTYPES, DecodingConfig, as_columns
from regard.config.settings import section_settings
from regard.errors import InputError
from regard.tasks.registry import find_task, task_names
from regard.tasks.task import Option
from regard.training.shipped import boxed, contents

Number = TypeVar("Number", int, float)

SHOWN_CHARACTERS = 40  # of a value in a message
MOST_SEED = 2**32 - 1  # other seeds are derived from it, which must fit into 64 bits
MOST_STEPS = 10**9
MOST_SECONDS = 10.0**6
MOST_LENGTH = 10**7  # tokens of a sequence; memory is checked later, with the other sizes
MOST_WIDTH = 10**6  # features, keys of a window or of a kernel
# Configuration options that have an option of their own in `regard train`, by section.
OWN_OPTIONS = {
    "data": ("train", "valid", "columns"),
    "model": ("style",),
    "training": ("steps", "epochs", "learning_rate", "batch_tokens", "seed", "dtype"),
    "decoding": tuple(field.name for field in fields(DecodingConfig)),
}


def bounded(
    kind: type[Number], least: Number, most: Number, why: str = "", above: bool = False
) -> Callable[[str], Number]:
    """Make an argparse type: a finite number from `least` to `most`.

    Args:
        kind: int or float.
        least: the lower bound.
        most: the upper bound.
        why: the reason for the bounds, for the error message.
        above: exclude `least` itself.

    Returns:
        A function that converts a string, or raises ArgumentTypeError.
    """

    def parse(text: str) -> Number:
        value = number(kind)(text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ArgumentTypeError(f"must be finite, not {value}")
        printed = f"{value:g}" if kind is float else shortened(str(value))
        reason = f": {why}" if why else ""
        if value < least or (above and value == least):
            bound = f"above {least:g}" if above else f"at least {least:,}"
            raise ArgumentTypeError(f"must be {bound}, not {printed}{reason}")
        if value > most:
            limit = f"{most:,}" if kind is int else f"{most:g}"
            raise ArgumentTypeError(f"must be at most {limit}, not {printed}{reason}")
        return value

    parse.__name__ = kind.__name__  # argparse uses it in its own messages
    return parse


def number(kind: type[Number]) -> Callable[[str], Number]:
    """An argparse type: any number, which the configuration checks later."""
    name = "an integer" if kind is int else "a number"

    def parse(text: str) -> Number:
        try:
            return kind(text)
        except ValueError:  # also: an integer with thousands of digits
            raise ArgumentTypeError(f"must be {name}, not {shortened(text)!r}") from None

    parse.__name__ = kind.__name__
    return parse


SEED = bounded(int, 0, MOST_SEED)
STEPS = bounded(int, 1, MOST_STEPS)
SECONDS = bounded(float, 0.0, MOST_SECONDS, above=True)


def file_name(text: str) -> str:
    """An argparse type: the name of a file or a folder, not empty."""
    if not text:
        raise ArgumentTypeError("must not be empty: it is the name of a file or a folder")
    if "\0" in text:
        raise ArgumentTypeError(f"must not contain a NUL character: {shortened(text)!r}")
    return text


def file_path(text: str) -> Path:
    """`file_name` as a Path."""
    return Path(file_name(text))


def valid_name(text: str) -> str:
    """An argparse type: the name of a file, or a percentage of the training data."""
    name = file_name(text)
    number = re.fullmatch(r"(\d*\.)?\d+", name)
    if number and not Path(name).exists() and 0 < (value := float(name)) < 100:
        share = 100 * value if value < 1 else value
        raise ArgumentTypeError(
            f"must be files or a percentage of the training data, not {shortened(name)!r}; did you "
            f"mean {share:g}%?"
        )
    return name


def columns(text: str) -> dict[str, str]:
    """An argparse type: `text=review,label=stars`."""
    names = [item.partition("=")[0].strip() for item in text.split(",")]
    if len(set(names)) < len(names):
        raise ArgumentTypeError(f"must name each field once, not {shortened(text)!r}")
    try:
        return dict(as_columns(text))
    except InputError:
        raise ArgumentTypeError(
            f"must be field=column,field=column, not {shortened(text)!r}"
        ) from None


def shortened(text: str) -> str:
    """The text, or its beginning if it is too long for a message."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def device_name(text: str) -> str:
    """An argparse type: the name of a device, which is checked again when it is used."""
    kind, colon, index = text.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (colon and not index.isdecimal()):
        gpu = "; did you mean cuda?" if kind.lower() in ("gpu", "nvidia", "cuda") else ""
        raise ArgumentTypeError(
            f"must be auto, cpu, cuda, cuda:INDEX or mps, not {shortened(text)!r}{gpu}"
        )
    return text


# ---- groups of options ------------------------------------------------------------------


def machine_options(verb: ArgumentParser) -> None:
    verb.add_argument(
        "--device", default="auto", type=device_name, metavar="DEVICE",
        help="auto, cpu, cuda, cuda:INDEX or mps (default: auto, a GPU if available)",
    )  # fmt: skip
    verb.add_argument("--quiet", action="store_true", help="show no progress on standard error")


def columns_option(verb: ArgumentParser) -> None:
    verb.add_argument(
        "--columns", type=columns, metavar="FIELD=COLUMN,...",
        help="names of table columns, e.g. text=review,label=stars (default: detected by name)",
    )  # fmt: skip


def model_to_use(verb: ArgumentParser, task: str) -> None:
    """Add the options for a trained model; the default is the model in the box for the task."""
    exists = task in contents()
    default = f"default: {boxed(task)}" if exists else "required: the box has none for this task"
    verb.add_argument(
        "-m", "--model", type=file_path, default=Path(boxed(task)) if exists else None,
        metavar="MODEL", help=f"folder of a trained model, or a model in the box ({default})",
    )  # fmt: skip
    verb.add_argument(
        "--dtype", default="auto", choices=DTYPES,
        help="data type of the weights (default: auto, bfloat16 on CUDA, otherwise float32)",
    )  # fmt: skip
    machine_options(verb)


def preset_option(verb: ArgumentParser, default: str = "base") -> None:
    names = ", ".join(PRESETS)
    verb.add_argument("--preset", help=f"model size: {names} (default: {default})")


def architecture_options(verb: ArgumentParser, style: str = STYLES[0]) -> None:
    """Add --style, with its default for the help text, and --set."""
    verb.add_argument("--style", help=f"architecture: {', '.join(STYLES)} (default: {style})")
    verb.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", dest="assignments",
        help="set one configuration option, e.g. model.norm_first=true; may be repeated",
    )  # fmt: skip


def text_options(verb: ArgumentParser, task: str, metavar: str = "TEXT") -> None:
    text = "one or more inputs (default: the lines of standard input)"
    verb.add_argument("texts", nargs="*", metavar=metavar, help=text)
    model_to_use(verb, task)


def decoding_options(verb: ArgumentParser, task: str = "", one_output: bool = False) -> None:
    """Add an option for each key of the section `decoding`.

    Args:
        verb: the command.
        task: the task whose defaults the help text shows, if there is only one.
        one_output: whether the command cannot show several outputs (--n-best).
    """
    group = verb.add_argument_group(
        "decoding",
        "The section `decoding` of the model's config.yaml overrides the defaults of the decoding "
        "options.",
    )
    defaults = DecodingConfig()
    if task:
        defaults = replace(defaults, **find_task(task).defaults.get("decoding", {}))
    for name, kind, text in (
        ("beam", int, "number of hypotheses in beam search; 1 is greedy search"),
        ("n-best", int, "number of outputs per input, best first, separated by tabs"),
        ("length-penalty", float, "length penalty; higher values favour longer outputs"),
        ("length-offset", float,
         "added to the length in the length penalty; 0: divide scores by a power of the length"),
        ("max-length", int,
         "maximum number of output tokens; translate, answer: beyond the source length"),
        ("min-length", int, "minimum number of output tokens; the maximum has precedence"),
        ("no-repeat", int, "do not repeat any sequence of N tokens in an output; 0: no limit"),
        ("temperature", float, "sampling temperature; 0: search instead of sampling"),
        ("top-k", int, "sample from the N most probable tokens; 0: from all tokens"),
        ("top-p", float,
         "sample from the most probable tokens with this total probability; 1: from all"),
        ("seed", int, "random seed for sampling"),
    ):  # fmt: skip
        if name == "n-best" and one_output:
            continue
        default = getattr(defaults, name.replace("-", "_"))
        group.add_argument(
            f"--{name}", type=number(kind), metavar="N" if kind is int else "X",
            help=f"{text} (default: {default:g})",
        )  # fmt: skip
    group.add_argument(
        "--set", action="append", default=[], metavar="decoding.key=value", dest="assignments",
        help="set one option of decoding, e.g. decoding.beam=8; may be repeated",
    )  # fmt: skip


def chosen_decoding(options: Namespace) -> dict[str, Any]:
    """The options of decoding that the user chose."""
    options_set = {f.name: getattr(options, f.name, None) for f in fields(DecodingConfig)}
    options_set = {key: value for key, value in options_set.items() if value is not None}
    changes = section_settings(options.assignments, "decoding")
    check_assignments({"decoding": options_set}, {"decoding": changes})
    return changes | options_set


def option_of(section: str, key: str) -> str:
    """How the command line spells a configuration option: `--steps` or `--set training.warmup`."""
    own = key in OWN_OPTIONS.get(section, ())
    return f"--{key.replace('_', '-')}" if own else f"--set {section}.{key}"


def check_assignments(
    options: dict[str, dict[str, Any]], assigned: dict[str, dict[str, Any]]
) -> None:
    """Refuse `--set` for a configuration option that also has another value.

    Args:
        options: the configuration options that have an option of their own, by section.
        assigned: the values of --set, by section.

    Raises:
        InputError: two values contradict each other.
    """
    for section, values in assigned.items():
        for key, value in values.items():
            for name, other in options.get(section, {}).items():
                lengths = {name, key} == {"steps", "epochs"}
                if (name == key and value != other) or lengths:
                    raise InputError(
                        f"{option_of(section, name)} {shown(other)} and --set "
                        f"{section}.{key}={shown(value)} cannot be combined: set one of them"
                    )


def shown(value: Any) -> str:
    """A value as on the command line, for a message."""
    if isinstance(value, dict):
        return ",".join(f"{key}={name}" for key, name in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def add_option(verb: ArgumentParser, option: Option) -> None:
    """Add an option that a task declares."""
    flag = f"--{option.name}"
    if option.kind is bool and option.default:
        name = f"--no-{option.name}"
        verb.add_argument(name, dest=option.name, action="store_false", help=option.help)
        return
    if option.kind is bool:
        verb.add_argument(flag, action="store_true", help=option.help)
        return
    kind: Callable[[str], Any] = file_path if option.kind is Path else str
    if option.kind is int:
        kind = bounded(int, option.least, option.most)
    verb.add_argument(
        flag, type=kind, default=option.default, metavar=option.metavar, help=option.help
    )


def file_formats() -> str:
    """The formats of the data files: "generate, fill: text; ...; or a table"."""
    tasks: dict[str, list[str]] = {}
    for name in task_names():
        tasks.setdefault(find_task(name).files, []).append(name)
    every = "; ".join(f"{', '.join(names)}: {files}" for files, names in tasks.items())
    return f"{every}; or tables (.csv, .tsv, .jsonl, .json, .parquet)"
