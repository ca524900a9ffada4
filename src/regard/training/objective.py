"""The interfaces that training needs; the tasks (regard/tasks) implement them.

The trainer needs an `Objective`: batches and their loss. A whole run needs a `Task`: it also reads
files, evaluates, and stores its vocabulary in the run folder. `TaskClass` creates one. Training
does not import the tasks; `regard.tasks.train` passes them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from regard.config.sections import Config
from regard.model.transformer import Transformer
from regard.text.corpus import CorpusReport
from regard.text.store import Store
from regard.text.tokenizer import Tokenizer
from regard.training.losses import Loss

Say = Callable[[str], None]  # prints a line


class Objective(Protocol):
    """Batches of examples, and their loss."""

    counted: ClassVar[int]  # index into `sizes`: the side that training.batch_tokens limits

    def sizes(self, store: Any) -> list[NDArray[Any]]:
        """For each stack, the number of tokens that it reads of every example."""
        ...

    def batch(
        self, store: Any, examples: NDArray[np.int64], device: torch.device, seed: int
    ) -> Any:
        """The packed batch of these examples, with `tokens`, the number that the sums of its loss
        are divided by. seed: for random choices; 0: no random choices."""
        ...

    @property
    def loss(self) -> Loss: ...


class Task(Objective, Protocol):
    """A task with its vocabulary; `regard.tasks.task.Task` documents each method."""

    better: ClassVar[str]  # the score that compares the weights of a run

    def read(self, files: Sequence[Path], config: Config) -> Iterable[Any]: ...
    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, CorpusReport]: ...
    def model_options(self) -> Mapping[str, Any]: ...
    def prepare(self, store: Store, config: Config) -> None: ...
    def started_from(self, folder: Path) -> None: ...
    def same_head(self, other: Any) -> bool: ...
    def from_loss(self, loss: float, store: Store) -> dict[str, Any] | None: ...
    def finish(self, model: Transformer, examples: Sequence[Any]) -> bool: ...
    def save(self, folder: Path) -> None: ...

    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Any:
        """Compute `scores` and `samples`. Frees the memory that decoding reserves for
        repeated calls (CUDA graphs), because training needs it."""
        ...


class TaskClass(Protocol):
    """Creates a task from training files (`learn`) or from a run folder (`load`)."""

    def check_files(self, files: Sequence[Path]) -> None: ...
    def load(
        self, folder: Path, config: Config, tokenizers: tuple[Tokenizer, Tokenizer] | None = None
    ) -> Task: ...

    def learn(
        self, config: Config, tokenizers: tuple[Tokenizer, Tokenizer] | None, say: Say, quiet: bool
    ) -> Task:
        """tokenizers: the vocabularies of source and target; None: learn them from the files."""
        ...
