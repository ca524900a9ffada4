"""Parts of a model or of its training that a user adds by name.

    regard.register_positions("alibi", Alibi)
    ModelConfig(positions="alibi", ...)

A registry maps names to factories. The built-in names have no factory here: the modules that use
them implement them. A saved model contains the name only, so the program that loads the model must
register the same part first. This module does not import torch, because the configuration uses it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from regard.errors import InputError, unknown

Factory = TypeVar("Factory", bound=Callable[..., Any])
NAME = re.compile(r"[A-Za-z][\w.@+-]{0,63}")


class Registry:
    """Names of one kind of part: the built-in ones and the registered ones.

    option: the option of the configuration that contains a name, for example "model.positions".
    function: the public function that registers a part, for error messages.
    arguments: the names of the arguments that a factory is called with.
    """

    def __init__(
        self, option: str, function: str, arguments: tuple[str, ...], built_in: tuple[str, ...] = ()
    ) -> None:
        self.option, self.function, self.built_in = option, function, built_in
        self.arguments = arguments
        self._factories: dict[str, Callable[..., Any]] = {}

    def register(self, name: str, factory: Factory) -> Factory:
        """Add a part, or replace a part that was registered under the same name."""
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InputError(
                f"{self.function}: the name must begin with a letter and contain only letters, "
                f"digits and . _ @ + -, not {name!r:.60}"
            )
        if name in self.built_in:
            raise InputError(
                f"{self.function}: {name!r} is a built-in name: choose a different one"
            )
        if not callable(factory):
            raise InputError(f"{self.function}: {factory!r:.60} cannot be called")
        try:
            inspect.signature(factory).bind(*self.arguments)
        except TypeError as error:
            raise InputError(
                f"{self.function}: {factory!r:.60} cannot be called with "
                f"({', '.join(self.arguments)}): {error}"
            ) from None
        except ValueError:  # a function of C without a signature
            pass
        self._factories[name] = factory
        return factory

    def names(self) -> tuple[str, ...]:
        """All names: the built-in ones, then the registered ones."""
        return (*self.built_in, *self._factories)

    def check(self, name: str) -> None:
        """Raise an InputError if the name is unknown."""
        if name not in self.names():
            message = str(unknown(self.option, name, self.names()))
            known = "" if "known: " in message else f"known: {', '.join(self.names())}; "
            raise InputError(f"{message} ({known}{self.function} adds others)")

    def is_custom(self, name: str) -> bool:
        """Whether a name is not built in."""
        return name not in self.built_in

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the registered factory or function of this name."""
        self.check(name)
        return self._factories[name](*arguments)


POSITIONS = Registry(
    "model.positions",
    "regard.register_positions",
    ("config",),
    ("sinusoidal", "learned", "rotary", "none"),
)
ATTENTION = Registry("model.attention", "regard.register_attention", ("config",), ("dot-product",))
MIXERS = Registry(
    "model.mixer", "regard.register_mixer", ("config", "layer"),
    ("attention", "lstm", "gru", "convolution", "dilated", "none"),
)  # fmt: skip
SCHEDULES = Registry(
    "training.schedule",
    "regard.register_schedule",
    ("step", "config"),
    ("inverse-sqrt", "cosine", "constant"),
)


def register_positions(name: str, factory: Factory) -> Factory:
    """Register a position encoding for `ModelConfig(positions=name)`.

    Args:
        name: a name that is not built in.
        factory: called with the `ModelConfig` for each stack; returns a `regard.Positions`.

    Returns:
        The factory.

    Raises:
        InputError: the name is built in or not valid, or the factory cannot be called.
    """
    return POSITIONS.register(name, factory)


def register_attention(name: str, factory: Factory) -> Factory:
    """Register an attention variant for `ModelConfig(attention=name)`.

    Args:
        name: a name that is not built in.
        factory: called with the `ModelConfig` for each self-attention and cross-attention; returns
            a `regard.MultiHeadAttention`, usually a subclass that overrides `weights`.

    Returns:
        The factory.

    Raises:
        InputError: the name is built in or not valid, or the factory cannot be called.
    """
    return ATTENTION.register(name, factory)


def register_mixer(name: str, factory: Factory) -> Factory:
    """Register a replacement of self-attention in the encoder for `ModelConfig(mixer=name)`.

    Args:
        name: a name that is not built in.
        factory: called with the `ModelConfig` and the number of the layer, counted from 0; returns
            a module that maps x[N, D] and a `RowPlan` to [N, D].

    Returns:
        The factory.

    Raises:
        InputError: the name is built in or not valid, or the factory cannot be called.
    """
    return MIXERS.register(name, factory)


def register_schedule(name: str, schedule: Factory) -> Factory:
    """Register a learning-rate schedule for `TrainingConfig(schedule=name)`.

    Args:
        name: a name that is not built in.
        schedule: called with the step (1, 2, ...) and the `TrainingConfig` after the linear
            warm-up, that is for step >= config.warmup; returns the learning rate of the step.

    Returns:
        The schedule.

    Raises:
        InputError: the name is built in or not valid, or the schedule cannot be called.
    """
    return SCHEDULES.register(name, schedule)
