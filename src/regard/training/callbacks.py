"""Functions of the user that training calls: at its start, after steps and validations, at its end.

Callbacks are for Python only (`regard.train(callbacks=...)`). They receive copies of numbers and
cannot change a step, so a run with callbacks computes the same weights as one without them.

A callback is an object with any of the methods `on_start(run: RunInfo)`, `on_step(step: StepInfo)`,
`on_validation(result: ValidationInfo)` and `on_end(result: EndInfo)`. If `on_step` or
`on_validation` returns True, training ends early: the final weights are chosen as at the end of any
run. An exception in a callback ends training as well; it is raised again after the state of the run
has been saved. With several processes, only the first one calls callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.config.sections import Config
from regard.errors import InputError
from regard.model.transformer import Transformer

METHODS = ("on_start", "on_step", "on_validation", "on_end")


@dataclass(frozen=True)
class RunInfo:
    """A run that starts, for `on_start`."""

    folder: Path  # the run folder
    config: Config  # the complete configuration
    model: Transformer  # the model that is trained; do not change it
    step: int  # steps that are complete: 0, or more if the run was resumed
    steps: int  # the last step


@dataclass(frozen=True)
class StepInfo:
    """The metrics of one step, for `on_step`.

    On a GPU the metrics of a step are read while the next step runs, so that the GPU never waits:
    `on_step` is called one step late there.
    """

    step: int  # 1, 2, ...
    steps: int  # the last step
    loss: float  # mean negative log-likelihood of a token (or example), without label smoothing
    learning_rate: float
    gradient_norm: float  # of the mean gradient, before clipping
    tokens: int  # tokens of the step
    tokens_per_second: float  # mean of the last steps
    skipped: bool  # the loss or the gradient was NaN or infinity, and the weights did not change


@dataclass(frozen=True)
class ValidationInfo:
    """The result of a validation, for `on_validation`."""

    step: int
    loss: float
    score: float  # the number that selects the best weights; higher is better
    best: bool  # whether this is the best score so far
    scores: Mapping[str, Any] = field(default_factory=dict)  # all metrics by name, with the loss
    samples: tuple[str, ...] = ()  # a few predictions as text


@dataclass(frozen=True)
class EndInfo:
    """The end of a run, for `on_end`."""

    folder: Path  # the model folder
    step: int  # the last step
    scores: Mapping[str, Any]  # final scores by name; empty without validation data


class CallbackFailed(Exception):
    """A callback raised an exception, `error`; the state of the run is saved."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Callbacks:
    """The callbacks of a run.

    Args:
        objects: objects with the methods that the module docstring names.
        on_step: a function that is called like the method of this name.
        on_validation: a function that is called like the method of this name.

    Raises:
        InputError: an object has none of the methods, or one of them cannot be called.
    """

    def __init__(
        self,
        objects: Iterable[Any] = (),
        on_step: Callable[[StepInfo], Any] | None = None,
        on_validation: Callable[[ValidationInfo], Any] | None = None,
    ) -> None:
        self.functions: dict[str, list[Callable[[Any], Any]]] = {name: [] for name in METHODS}
        self.stop = False  # whether a callback returned True
        self.error: Exception | None = None  # that a callback raised
        if not isinstance(objects, Iterable) or isinstance(objects, str | type):
            raise InputError(
                f"callbacks must be a list of callbacks, for example [callback], "
                f"not {objects!r:.60}; pass a function as on_step or on_validation"
            )
        for callback in objects:
            methods = {name: getattr(callback, name, None) for name in METHODS}
            if isinstance(callback, type) or not any(map(callable, methods.values())):
                raise InputError(
                    f"a callback is an object with a method {', '.join(METHODS[:-1])} or "
                    f"{METHODS[-1]}, not {callback!r:.60}; pass a function as on_step or "
                    "on_validation"
                )
            for name, method in methods.items():
                self._add(name, method)
        self._add("on_step", on_step)
        self._add("on_validation", on_validation)

    def _add(self, name: str, function: Any) -> None:
        if function is not None:
            if not callable(function):
                raise InputError(f"{name} must be a function, not {function!r:.60}")
            self.functions[name].append(function)

    def __bool__(self) -> bool:
        return any(self.functions.values())

    @property
    def ending(self) -> bool:
        """Whether training must end: a callback returned True or raised an exception."""
        return self.stop or self.error is not None

    def call(self, name: str, make: Callable[[], Any]) -> None:
        """Call the methods of this name with the value of `make`, which is computed only if there
        are any. After an exception, no callback is called again."""
        functions = self.functions[name]
        if not functions or self.error is not None:
            return
        info = make()
        for function in functions:
            try:
                self.stop |= function(info) is True
            except Exception as error:  # noqa: BLE001  raised again by `raise_error`
                self.error = error
                return

    def raise_error(self) -> None:
        """Raise `CallbackFailed` if a callback raised an exception."""
        if self.error is not None:
            raise CallbackFailed(self.error) from self.error
