"""What an export target can express: a table with the values of every field of `ModelConfig`.

    VALUES = {
        **TRAINING_ONLY,
        "d_model": ANY,
        "mixer": ("attention",),
        "window": (None,),
        "head_size": lambda config: (config.d_model // config.heads,),
    }
    check("onnx", VALUES, config)

A field without values is refused, so a new option of `ModelConfig` is never dropped silently. A
test of each target checks that its table is complete. A target with several architectures has a
table for each of them, and chooses the first one that expresses the model (`choose`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.model.overrides import find_override
from regard.model.transformer import Transformer

ANY = "any value"  # the target expresses every value
Values = str | tuple[Any, ...] | Callable[[ModelConfig], tuple[Any, ...]]  # those that it expresses
Differing = Mapping[str, tuple[Any, ...]]
A = TypeVar("A")
# These options affect training but not the trained model.
TRAINING_ONLY: Mapping[str, Values] = dict.fromkeys(
    ("dropout", "attention_dropout", "feed_forward_dropout"), ANY
)


def check_unchanged(model: Transformer) -> None:
    """Refuse a model with changed modules, for example with hooks, which an export would ignore.

    Raises:
        InputError: a module is changed; the message names it.
    """
    if (reason := find_override(model)) is not None:
        raise InputError(f"this model cannot be exported: {reason}")


def misfits(values: Mapping[str, Values], config: ModelConfig) -> dict[str, tuple[Any, ...]]:
    """The options whose values an architecture cannot express, with the values that fit.

    Args:
        values: what the architecture expresses, by the name of the field. A field that is missing
            is refused, whatever its value.
        config: the architecture of the model.
    """
    differing = {}
    for field in fields(ModelConfig):
        allowed = values.get(field.name, ())
        if isinstance(allowed, str):
            continue
        fits = allowed(config) if callable(allowed) else allowed
        if getattr(config, field.name) not in fits:
            differing[field.name] = fits
    return differing


def check(target: str, values: Mapping[str, Values], config: ModelConfig) -> None:
    """Refuse a model that a target with one architecture cannot express exactly.

    Args:
        target: the name of the target, for the message.
        values: what the target expresses.
        config: the architecture of the model.

    Raises:
        InputError: the target cannot express some options; the message names all of them, and the
            values that it can express.
    """
    if differing := misfits(values, config):
        raise refusal(target, differing, config, "it")


def choose(
    target: str, architectures: Mapping[str, tuple[A, Mapping[str, Values]]], config: ModelConfig
) -> A:
    """The first architecture of a target that expresses every option of a model.

    Args:
        target: the name of the target, for messages.
        architectures: by name, each with the values that it expresses.
        config: the architecture of the model.

    Returns:
        The architecture.

    Raises:
        InputError: there is none; the message names the options that prevent it, and their values
            in the architecture that differs least.
    """
    differing = {name: misfits(values, config) for name, (_, values) in architectures.items()}
    nearest = min(differing, key=lambda name: len(differing[name]))
    if not differing[nearest]:
        return architectures[nearest][0]
    raise refusal(target, differing[nearest], config, f"the nearest architecture, {nearest},")


def refusal(target: str, differing: Differing, config: ModelConfig, subject: str) -> InputError:
    """The error for the options of a model that a target cannot express."""
    own = ", ".join(f"model.{name}={_text(getattr(config, name))}" for name in differing)
    fitting = [
        f"model.{name}={' or '.join(map(_text, fits))}" for name, fits in differing.items() if fits
    ]
    if not fitting and "head_size" in differing:
        fitting = ["a model.d_model that is a multiple of model.heads"]
    hint = f": {subject} needs {', '.join(fitting)}" if fitting else ": choose a different target"
    return InputError(f"{target} cannot express {own}{hint}")


def _text(value: Any) -> str:
    """A value as in a configuration file."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
