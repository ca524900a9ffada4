"""Task: what a model is trained for, from its data files to its printed predictions.

A task is one file with one subclass of `Task`, and one line in registry.py. The class attributes
declare what the command line and the configuration need; the methods read examples, make batches,
predict and evaluate. `regard --help` reads the declarations of all tasks, so a task file uses
numpy, torch and the modules that need them through lazy.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from regard.config.model import STYLES
from regard.config.sections import Config, DataConfig, DecodingConfig
from regard.errors import InputError
from regard.tasks.command import CommandMethods
from regard.tasks.creation import TaskCreation
from regard.tasks.creation import Tokenizers as Tokenizers  # for the files of tasks
from regard.tasks.examples import Array as Array
from regard.tasks.lazy import np, runtime, torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.tasks.runtime import Comparison, DecodingPlan, Loss, Metric, Store, Transformer

Ids: TypeAlias = "NDArray[np.int64]"
Warn = Callable[[int, str], None]  # the index of an input and a message about it
T = TypeVar("T", bound="Task")


@dataclass(frozen=True)
class Option:
    """An option of a task's command, `--name`."""

    name: str
    help: str
    # bool: a flag (--no-NAME if the default is True); int: from `least` to `most`; Path or str
    kind: type = bool
    default: Any = None
    metavar: str = "N"
    least: int = 0
    most: int = 1_000_000
    argument: bool = True  # an argument of `Task.predict`; False: only of the command line


@dataclass(frozen=True)
class Context:
    """The values that a prediction depends on beside its input."""

    decoding: DecodingConfig  # options of the search, if the task decodes
    longest: int  # tokens of the longest input that the model reads in one piece
    warn: Warn  # called with the index of a longer input and a message

    def warn_long(self, i: int, consequence: str = "") -> None:
        """Warn that input i is too long to be read in one piece."""
        self.warn(i, too_long(self.longest, consequence))


@dataclass
class Evaluation:
    """The scores of a model on some examples, and the values that confidence intervals need."""

    scores: dict[str, Any]  # the first is the main score
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    count: int = 0
    samples: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)  # output texts, if the task has any
    references: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # further tables, such as a confusion
    pieces: dict[int, int] = field(default_factory=dict)  # example -> pieces, if it was split
    cut: int = 0  # number of texts of which only the beginning was read

    def __repr__(self) -> str:
        scores = ", ".join(
            f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.scores.items()
            if not isinstance(value, str)
        )
        return f"Evaluation({scores}, examples={self.count})"


@dataclass(eq=False, repr=False)
class Task(TaskCreation, CommandMethods):
    """A task with its vocabulary: base class of all tasks.

    A task is created with `learn` or `load`, and has the attributes tokenizer, style and longest.
    """

    # ---- declaration --------------------------------------------------------------------

    name: ClassVar[str]  # of the task, of its command and of its model in the box
    help: ClassVar[str]  # one sentence: what its command does
    doing: ClassVar[str]  # label of the progress bar: "translating"
    input_name: ClassVar[str] = "TEXT"  # an input of the command in --help
    files: ClassVar[str]  # format of the training files in --help
    better: ClassVar[str]  # the score that selects the best weights in validation
    counted: ClassVar[int] = -1  # the side whose tokens training.batch_tokens counts
    styles: ClassVar[tuple[str, ...]] = STYLES
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # by section, if not the usual ones
    config_options: ClassVar[tuple[str, ...]] = ()  # options that not all tasks have: "data.mask"
    two_vocabularies: ClassVar[bool] = False  # whether data.shared_vocabulary=false is possible
    options: ClassVar[tuple[Option, ...]] = ()  # of its command
    decodes: ClassVar[bool] = False  # whether its command has the options of decoding
    continues: ClassVar[bool] = False  # whether its output continues the input
    has_metrics: ClassVar[bool] = False  # whether `evaluate` uses regard.register_metric

    def __repr__(self) -> str:
        return f"{type(self).__name__}(style={self.style!r}, {self.tokenizer.size:,} tokens)"

    # ---- input --------------------------------------------------------------------------

    @property
    def added(self) -> int:
        """The number of special tokens that the model reads around a text."""
        return self.tokenizer.frame_size(self.style)

    def text_room(self, longest: int | None = None) -> int:
        """The largest number of tokens that a text can have in an input.

        Args:
            longest: the largest number of input tokens, with special tokens; default: the task's.

        Returns:
            The number of tokens without special tokens.

        Raises:
            InputError: there is no room for a text.
        """
        longest = self.longest if longest is None else longest
        if (room := longest - self.added) < 1:
            raise InputError(
                f"an input of {longest} tokens has no room for text and the {self.added} special "
                "tokens of the model: increase data.max_length"
            )
        return room

    # ---- configuration ------------------------------------------------------------------

    @classmethod
    def model_defaults(cls, style: str, data: DataConfig) -> dict[str, Any]:
        """Defaults of the section `model` that depend on the style and on the data.

        Args:
            style: the style of the model.
            data: the section `data`.

        Returns:
            Values by name.
        """
        return {}

    @classmethod
    def longest_target(cls, config: Config) -> int:
        """Positions that a row may need beyond the data.max_length tokens of its input.

        Args:
            config: the configuration of a run.

        Returns:
            The number of positions.
        """
        return config.decoding.max_length if config.model.has_decoder else 0

    @classmethod
    def check_config(cls, config: Config) -> None:
        """Refuse options that this task cannot combine.

        Args:
            config: the configuration of a run.

        Raises:
            InputError: two options cannot be combined.
        """

    # ---- training -----------------------------------------------------------------------

    @abstractmethod
    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Any:
        """Pack examples into one batch.

        Args:
            store: the token ids of all examples.
            examples: the indices of the examples of this batch.
            device: where the batch is needed.
            seed: the random seed for random choices; 0: no random choices.

        Returns:
            The batch, as `loss` takes it, with `tokens`, the number that the sums of its loss are
            divided by.
        """

    @property
    def loss(self) -> Loss:
        """The loss of a batch (training/losses.py)."""
        return runtime.losses.token_loss

    def prepare(self, store: Store, config: Config) -> None:
        """Read statistics of the training data before the first step.

        Args:
            store: the token ids of all examples.
            config: the configuration of the run.
        """

    def finish(self, model: Transformer, examples: Sequence[Any]) -> bool:
        """Fit parameters of the task to held-out examples after training.

        Args:
            model: the trained model.
            examples: held-out examples.

        Returns:
            Whether a parameter changed, so that the task must be saved again.
        """
        return False

    def from_loss(self, loss: float, store: Store) -> dict[str, Any] | None:
        """The scores of a validation, if they follow from its loss.

        Args:
            loss: the mean loss of the validation data.
            store: the token ids of the validation data.

        Returns:
            Scores by name; None: call `evaluate`.
        """
        return None

    # ---- evaluation ---------------------------------------------------------------------

    @abstractmethod
    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Evaluation:
        """Compute the metrics of the task.

        Args:
            model: the model.
            examples: the examples, as `read` returns them.
            config: the configuration; its section `decoding` has the options of the search.

        Returns:
            The scores, and the values that confidence intervals need.
        """

    @staticmethod
    def split_note(count: int) -> str:
        """Describe how a long input is processed, for a warning.

        Args:
            count: the number of pieces in which it is read.

        Returns:
            The end of the warning.
        """
        raise NotImplementedError

    def check_comparable(self, other: Any) -> None:
        """Refuse a model of the same task whose scores cannot be compared.

        Args:
            other: the task of the other model.

        Raises:
            InputError: the scores of the two models cannot be compared.
        """

    def confidence(
        self, ours: Evaluation, theirs: Evaluation | None, samples: int, config: Config
    ) -> tuple[dict[str, tuple[float, float]], dict[str, Comparison]]:
        """Compute the 95% intervals of the scores, and compare two models.

        Args:
            ours: the evaluation of the model.
            theirs: the evaluation of the other model on the same examples, if there is one.
            samples: the number of bootstrap samples.
            config: the configuration of the model.

        Returns:
            (low, high) by score, and the comparison by score.
        """
        compared = {}
        if theirs is not None:
            compared = runtime.paired(ours.metrics, theirs.metrics, ours.count, samples)
        return runtime.intervals(ours.metrics, ours.count, samples), compared

    # ---- prediction ---------------------------------------------------------------------

    @classmethod
    def of(cls: type[T], task: Task, config: Config) -> T:
        """This task for a model that was trained for another task.

        Args:
            task: the task that the model was trained for.
            config: the configuration of the model.

        Returns:
            The task, with the vocabulary of the model.

        Raises:
            InputError: the model cannot be used for this task.
        """
        if not isinstance(task, cls):
            raise InputError(f"this model was trained to {task.name}: it cannot {cls.name}")
        return task

    @abstractmethod
    def predict(self, model: Transformer, inputs: Sequence[Any], context: Context) -> list[Any]:
        """Predict. Further keyword arguments are the options that the task declares.

        Args:
            model: the model.
            inputs: the inputs, as `parse` returns them.
            context: the options of decoding, and the limits of the model.

        Returns:
            One prediction for each input, in order.
        """

    def plan(self, inputs: Sequence[Any], context: Context) -> DecodingPlan:
        """Plan the decoding of predictions, for a caller that decodes several plans together.
        Further keyword arguments are those of `predict`.

        Args:
            inputs: the inputs, as `parse` returns them.
            context: the options of decoding, and the limits of the model.

        Returns:
            The plan; the result of `DecodingPlan.run` is that of `predict`.

        Raises:
            InputError: the task does not write text.
        """
        raise InputError(f"this model was trained to {self.name}: it writes no text")

    def stream_text(self, model: Transformer, text: str, context: Context) -> Iterator[str]:
        """Predict for one text, part by part.

        Args:
            model: the model.
            text: the input.
            context: the options of decoding, and the limits of the model.

        Returns:
            An iterator over the parts of the output.

        Raises:
            InputError: the task does not write text.
        """
        raise InputError(f"this model was trained to {self.name}: it cannot stream")


# ---- helpers for tasks ------------------------------------------------------------------


def cut_note(cut: int, longest: int, noun: str) -> str:
    """The warning about texts of which only the beginning is read."""
    number = f"1 {noun} is" if cut == 1 else f"{cut:,} {noun}s are"
    return f"{number} {too_long(longest, 'only the beginning is read')}"


def too_long(longest: int, consequence: str = "") -> str:
    """The warning about an input that is longer than the model can read at once."""
    warning = f"longer than the {longest} tokens that the model was trained on"
    return f"{warning}: {consequence}" if consequence else warning
