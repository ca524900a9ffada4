"""The command of a task: how it reads inputs and prints predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from regard.config.model import ModelConfig


class CommandMethods(ABC):
    """The part of `Task` that the command line uses."""

    @classmethod  # noqa: B027  a task may have no such options
    def check_options(cls, options: Namespace) -> None:
        """Refuse options of the command that cannot be combined, before a model is loaded.

        Args:
            options: the options of the command.

        Raises:
            InputError: two options cannot be combined.
        """

    def check_model(self, model: ModelConfig, options: Namespace) -> None:  # noqa: B027
        """Refuse options of the command that the model does not have, before any input is read.

        Args:
            model: the configuration of the model.
            options: the options of the command.

        Raises:
            InputError: the model does not have an option.
        """

    @classmethod
    def block_size(cls, options: Namespace) -> int | None:
        """The largest number of lines to predict at once.

        Args:
            options: the options of the command.

        Returns:
            The number; None: no limit.
        """
        return None

    def parse(self, text: str, options: Namespace, longest: int, where: str) -> Any:
        """Read the input in one line.

        Args:
            text: the line.
            options: the options of the command.
            longest: tokens of the longest input that the model reads in one piece.
            where: the name of the line, for messages.

        Returns:
            The input, as `Task.predict` takes it; None if the line is empty and has no prediction.

        Raises:
            InputError: the line is not valid; the message begins with `where`.
        """
        return text

    @abstractmethod
    def line(self, text: str, prediction: Any, options: Namespace) -> str:
        """Format a prediction as one line of text.

        Args:
            text: the line of input.
            prediction: the prediction; None for an empty line.
            options: the options of the command.

        Returns:
            The line to print.
        """

    @abstractmethod
    def to_json(self, text: str, prediction: Any, options: Namespace) -> dict[str, Any]:
        """Format a prediction as a JSON object.

        Args:
            text: the line of input.
            prediction: the prediction; None for an empty line.
            options: the options of the command.

        Returns:
            The object to print.
        """

    def output(
        self, model: ModelConfig, options: Namespace
    ) -> AbstractContextManager[Callable[[Any], None] | None]:
        """Choose where predictions go.

        Args:
            model: the configuration of the model.
            options: the options of the command.

        Returns:
            A context manager of a function that stores predictions, or of None if they are printed.
        """
        return nullcontext()
