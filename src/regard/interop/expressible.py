"""What an export target can express: a rule for every field of `ModelConfig`.

A target without a rule for some field refuses every model, so a new option of `ModelConfig` is
never dropped silently. A test of each target checks that no rule is missing (`missing`).

    RULES = {
        **TRAINING_ONLY,
        "d_model": any_value,
        "mixer": only("mixer", "attention"),
        "window": only("window", None, reason="its attention has no window"),
        "heads": lambda config: "more than 255 heads" if config.heads > 255 else None,
    }
    check("onnx", RULES, config)

A target with several architectures has a table of values for each of them (`Values`), and chooses
the first architecture that expresses the model (`choose`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.model.overrides import find_override
from regard.model.transformer import Transformer

# Returns None if the target can express the value of the field, and the reason if it cannot. The
# reason is empty if the name and the value of the option are explanation enough.
Rule = Callable[[ModelConfig], str | None]
Rules = Mapping[str, Rule]


def any_value(config: ModelConfig) -> str | None:
    """The rule for a field of which the target can express every value."""
    return None


def only(field: str, *values: Any, reason: str = "") -> Rule:
    """The rule for a field of which the target can express only these values.

    Args:
        field: the name of the field.
        *values: the values that the target can express.
        reason: why it cannot express the others; may be empty if this is obvious.

    Returns:
        The rule.
    """
    return lambda config: None if getattr(config, field) in values else reason


# These options affect training but not the trained model.
TRAINING_ONLY: Rules = dict.fromkeys(
    ("dropout", "attention_dropout", "feed_forward_dropout"), any_value
)


def missing(rules: Rules) -> list[str]:
    """The fields of `ModelConfig` that have no rule, and the rules that have no field."""
    names = {field.name for field in fields(ModelConfig)}
    return sorted(names ^ rules.keys())


def refusals(rules: Rules, config: ModelConfig) -> dict[str, str]:
    """The options of a model that a target cannot express.

    Args:
        rules: the rules of the target.
        config: the architecture of the model.

    Returns:
        The reason for each option, by its name and value, for example {"model.window=8": "..."}.
    """
    reasons = {}
    for field in fields(ModelConfig):
        rule = rules.get(field.name)
        reason = "the exporter does not know this option" if rule is None else rule(config)
        if reason is not None:
            reasons[f"model.{field.name}={_text(getattr(config, field.name))}"] = reason
    return reasons


def check(target: str, rules: Rules, config: ModelConfig) -> None:
    """Refuse a model that a target cannot express exactly.

    Args:
        target: the name of the target, as in `regard export --to`.
        rules: the rules of the target.
        config: the architecture of the model.

    Raises:
        InputError: the target cannot express some options; the message names all of them.
    """
    reasons = refusals(rules, config)
    if reasons:
        parts = [f"{option} ({why})" if why else option for option, why in reasons.items()]
        raise InputError(f"{target} cannot express {', '.join(parts)}: choose a different target")


def check_unchanged(model: Transformer) -> None:
    """Refuse a model with changed modules, for example with hooks, which an export would ignore.

    Raises:
        InputError: a module is changed; the message names it.
    """
    if (reason := find_override(model)) is not None:
        raise InputError(f"this model cannot be exported: {reason}")


# ---- targets with several architectures ---------------------------------------------------------

ANY = "any value"  # the architecture expresses every value
Values = str | tuple[Any, ...] | Callable[[ModelConfig], tuple[Any, ...]]  # those that it expresses
A = TypeVar("A")


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
    own = ", ".join(f"model.{name}={_text(getattr(config, name))}" for name in differing[nearest])
    fitting = [
        f"model.{name}={' or '.join(map(_text, fits))}"
        for name, fits in differing[nearest].items()
        if fits
    ]
    needed = ", ".join(fitting) or "a model.d_model that is a multiple of model.heads"
    raise InputError(
        f"{target} cannot express {own}: the nearest architecture, {nearest}, needs {needed}"
    )


def _text(value: Any) -> str:
    """A value as in a configuration file."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
