"""Task: what a model is trained for, from its data files to its printed predictions.

A task is one file with one subclass of `Task`, and one line in registry.py. The class attributes
declare what the command line and the configuration need; the methods read examples, make batches,
predict and evaluate. `regard --help` reads the declarations of all tasks, so a task file uses
numpy, torch and the modules that need them through lazy.py.
"""

from __future__ import annotations

from abc import abstractmethod
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from regard.config.model import STYLES, ModelConfig
from regard.config.sections import Config, DataConfig, DecodingConfig
from regard.console import warn
from regard.errors import InputError
from regard.tasks.examples import ExampleReader, Say
from regard.tasks.lazy import np, runtime, torch
from regard.text.corpus import CorpusReport
from regard.text.pieces import in_chunks
from regard.text.reading import Position, check_file
from regard.text.split import Overlap

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.tasks.runtime import Chunk, Comparison, Loss, Metric, Store, Tokenizer, Transformer

Array: TypeAlias = "NDArray[Any]"
Ids: TypeAlias = "NDArray[np.int64]"
Tokenizers: TypeAlias = "tuple[Tokenizer, Tokenizer]"  # of source and target
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
    """What a prediction depends on beside its input."""

    decoding: DecodingConfig  # how to search, if the task decodes
    longest: int  # tokens of the longest input that the model reads in one piece
    warn: Warn  # called with the index of a longer input and a message

    def warn_long(self, i: int, consequence: str = "") -> None:
        """Warn that input i is too long to be read in one piece."""
        self.warn(i, too_long(self.longest, consequence))


@dataclass
class Evaluation:
    """The scores of a model on some examples, and what their confidence intervals need."""

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
class Task(ExampleReader):
    """A task with its vocabulary."""

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

    tokenizer: Tokenizer
    style: str = "encoder"
    longest: int = 256  # tokens of the longest input, or of a window of a document

    def __repr__(self) -> str:
        return f"{type(self).__name__}(style={self.style!r}, {self.tokenizer.size:,} tokens)"

    # ---- configuration ------------------------------------------------------------------

    @classmethod
    def model_defaults(cls, style: str, data: DataConfig) -> dict[str, Any]:
        """Defaults of the section `model` that depend on the style and on the data."""
        return {}

    @classmethod
    def longest_target(cls, config: Config) -> int:
        """Positions that a row may need beyond the data.max_length tokens of its input."""
        return config.decoding.max_length if config.model.has_decoder else 0

    @classmethod
    def check_config(cls, config: Config) -> None:
        """Refuse options that this task cannot combine."""

    # ---- creation -----------------------------------------------------------------------

    @classmethod
    def make(cls: type[T], config: Config, tokenizers: Tokenizers) -> T:
        """The task of a configuration. Further arguments are what `learned` or `saved` returns."""
        return cls(tokenizers[1], config.model.style, config.data.max_length)

    @classmethod
    def learn(
        cls: type[T], config: Config, tokenizers: Tokenizers | None, say: Say, quiet: bool
    ) -> T:
        """The task with what it learns from its training files. Every line of every file is read,
        so that an error in the data is reported before anything is written.

        tokenizers: existing vocabularies; None: learn them
        say: called with messages about the data
        quiet: no progress bar and no warning about validation data that is also training data
        """
        data = config.data
        train, valid = (list(map(Path, names)) for names in (data.train, data.valid))
        cls.check_files(train)
        if valid and not data.valid_share:
            cls.check_files(valid)
        if data.valid_share and cls.read.__func__ is not ExampleReader.read.__func__:  # type: ignore[attr-defined]
            raise InputError(f"data.valid={data.valid[0]} is not possible with the task {cls.name}")
        for path in train if data.valid_share else (*train, *valid):
            check_file(path)  # they are read several times
        if next(iter(cls.read(train, config)), None) is None:
            names, are = " ".join(data.train), "is" if len(train) == 1 else "are"
            if next(iter(cls.read_all(train, config)), None) is not None:
                raise InputError(f"{names}: too few examples to hold out {data.valid[0]} of them")
            raise InputError(f"{names} {are} empty: there is nothing to learn from")
        overlap = None if data.valid_share or not valid else Overlap()
        if overlap is not None:
            for example in cls.read(valid, config):
                overlap.add_validation(cls.input_text(example))
        tokenizers = cls.vocabularies(train, config, tokenizers, say, quiet, overlap)
        task = cls.make(config, tokenizers, **cls.learned(train, config))
        for example in cls.read(valid, config) if valid else ():
            task.check(example)
        if overlap is not None and not quiet and (message := overlap.message()):
            warn(message)
        task.describe_data(say)
        return task

    def describe_data(self, say: Say) -> None:
        """Describe the training data, and warn of probable mistakes, after it was checked.

        say: called with lines of text
        """

    @classmethod
    def vocabularies(
        cls,
        files: Sequence[Path],
        config: Config,
        existing: Tokenizers | None,
        say: Say,
        quiet: bool,
        overlap: Overlap | None = None,
    ) -> Tokenizers:
        """The existing or new vocabularies, after every line of the files has been read.

        overlap: compares the examples with the validation data while they are read
        """
        data = config.data

        def lines(side: int | None, say: Say | None) -> Iterator[str]:
            for example in cls.read(files, config, say):
                texts = list(cls.texts(example))
                if overlap is not None and not side:
                    overlap.add_training(cls.input_text(example))
                yield from texts if side is None else [texts[side]]

        def learn(side: int | None) -> Tokenizer:
            texts = lines(side, None if side else say)
            return runtime.Tokenizer.learn(texts, data.vocabulary, data.vocabulary_size, quiet)

        if existing is None and data.vocabulary != "byte":
            return (learn(None),) * 2 if data.shared_vocabulary else (learn(0), learn(1))
        for _ in lines(None, say):  # nothing is learned from them, but they are checked
            pass
        return existing or (learn(None),) * 2

    @classmethod
    def learned(cls, files: Sequence[Path], config: Config) -> dict[str, Any]:
        """What the training files define beside the vocabularies: arguments of `make`."""
        return {}

    @classmethod
    def load(cls: type[T], folder: Path, config: Config, tokenizers: Tokenizers | None = None) -> T:
        """The task of a model folder. tokenizers: those that the folder cannot contain, because
        they are Python objects (text/external.py)."""
        tokenizers = runtime.load_tokenizers(folder, config.model, tokenizers)
        task = cls.make(config, tokenizers, **cls.saved(folder, config))
        if config.model.classes != task.model_options().get("classes"):
            raise InputError(
                f"{folder / 'config.yaml'}: model.classes={config.model.classes} does not fit "
                f"the task {cls.name}"
            )
        return task

    @classmethod
    def saved(cls, folder: Path, config: Config) -> dict[str, Any]:
        """What `save` wrote beside the vocabularies: arguments of `make`."""
        return {}

    def with_config(self: T, config: Config) -> T:
        """The same task, with its vocabularies, for another configuration."""
        return self.make(config, (self.tokenizer, self.tokenizer))

    def save(self, folder: Path) -> None:
        """Write the vocabulary, and what else `load` needs, into a model folder."""
        self.tokenizer.save(folder / "tokenizer.json")

    def same_head(self, other: Task) -> bool:
        """Whether the head of a model of `other` has the meaning of the head of this task."""
        return True

    # ---- data ---------------------------------------------------------------------------

    def check(self, example: Any) -> None:
        """Refuse an example that is well formed but cannot be used."""

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, CorpusReport]:
        """The files as token ids, built now or found in `folder`."""

        def encode(report: CorpusReport, position: Position) -> Iterator[Chunk]:
            examples = self.read(files, config)
            for chunk in in_chunks(examples, lambda example: sum(map(len, self.texts(example)))):
                yield self.encode(chunk, config, report)

        identity = [*self.identity(config), *self.reading_identity(files, config)]
        types, paths = self.types(files, config), self.data_files(files, config)
        return runtime.build(paths, identity, types, encode, folder, quiet)

    def encode(self, examples: list[Any], config: Config, report: CorpusReport) -> Chunk:
        """The token ids of examples: for each side of the store a list of sequences."""
        raise NotImplementedError

    def identity(self, config: Config) -> list[object]:
        """Everything that the result of `encode` depends on beside the files."""
        raise NotImplementedError

    def types(self, files: Sequence[Path], config: Config) -> list[str]:
        """The number type of each side of the store."""
        raise NotImplementedError

    def sizes(self, store: Store) -> list[Array]:
        """For each stack the tokens that it reads of each example."""
        return [*store.lengths]

    # ---- training -----------------------------------------------------------------------

    @abstractmethod
    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Any:
        """The examples of one row, packed. seed: for random choices; 0: none are made."""

    @property
    def loss(self) -> Loss:
        """The loss of a batch (training/losses.py)."""
        return runtime.losses.token_loss

    def model_options(self) -> dict[str, Any]:
        """Options of the section `model` that only the data define."""
        size = self.tokenizer.size
        return {"vocabulary_size": size, "source_vocabulary_size": size}

    def prepare(self, store: Store, config: Config) -> None:
        """Read statistics of the training data before the first step."""

    def finish(self, model: Transformer, examples: Sequence[Any]) -> bool:
        """Fit parameters of the task to held-out examples after training; whether it did."""
        return False

    def from_loss(self, loss: float, store: Store) -> dict[str, Any] | None:
        """The scores of a validation if they follow from its loss; None: evaluate."""
        return None

    # ---- evaluation ---------------------------------------------------------------------

    @abstractmethod
    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Evaluation:
        """The metrics of the task on examples; config.decoding: how to search."""

    @staticmethod
    def split_note(count: int) -> str:
        """What happens to an input that is read in `count` pieces."""
        raise NotImplementedError

    def check_comparable(self, other: Any) -> None:
        """Refuse a model of the same task whose scores cannot be compared with this one's."""

    def confidence(
        self, ours: Evaluation, theirs: Evaluation | None, samples: int, config: Config
    ) -> tuple[dict[str, tuple[float, float]], dict[str, Comparison]]:
        """The 95% intervals of the scores, and the comparison with another model."""
        compared = {}
        if theirs is not None:
            compared = runtime.paired(ours.metrics, theirs.metrics, ours.count, samples)
        return runtime.intervals(ours.metrics, ours.count, samples), compared

    # ---- prediction ---------------------------------------------------------------------

    @classmethod
    def of(cls: type[T], task: Task, config: Config) -> T:
        """This task for a model that was trained for `task`, if the model can do it."""
        if not isinstance(task, cls):
            raise InputError(f"this model was trained to {task.name}: it cannot {cls.name}")
        return task

    @abstractmethod
    def predict(self, model: Transformer, inputs: Sequence[Any], context: Context) -> list[Any]:
        """One prediction for each input, as `parse` returns them. Further keyword arguments are the
        options that the task declares."""

    def stream_text(self, model: Transformer, text: str, context: Context) -> Iterator[str]:
        """The prediction for one text, part by part."""
        raise InputError(f"this model was trained to {self.name}: it cannot stream")

    # ---- command line -------------------------------------------------------------------

    @classmethod
    def check_options(cls, options: Namespace) -> None:
        """Refuse options of the command that cannot be combined, before a model is loaded."""

    def check_model(self, model: ModelConfig, options: Namespace) -> None:
        """Refuse options of the command that the model does not have, before anything is read."""

    @classmethod
    def block_size(cls, options: Namespace) -> int | None:
        """The largest number of lines to predict at once; None: no limit."""
        return None

    def parse(self, text: str, options: Namespace, longest: int, where: str) -> Any:
        """The input in one line, or None if the line is empty and has no prediction.

        Raises:
            InputError: the line is not valid; the message begins with `where`.
        """
        return text

    @abstractmethod
    def line(self, text: str, prediction: Any, options: Namespace) -> str:
        """A prediction as it is printed; `prediction` is None for an empty line."""

    @abstractmethod
    def to_json(self, text: str, prediction: Any, options: Namespace) -> dict[str, Any]:
        """A prediction as a JSON object; `prediction` is None for an empty line."""

    def output(
        self, model: ModelConfig, options: Namespace
    ) -> AbstractContextManager[Callable[[Any], None] | None]:
        """A function that stores predictions, if the options replace printing by it."""
        return nullcontext()


# ---- helpers for tasks ------------------------------------------------------------------


def cut_note(cut: int, longest: int, noun: str) -> str:
    """The warning about texts of which only the beginning is read."""
    number = f"1 {noun} is" if cut == 1 else f"{cut:,} {noun}s are"
    return f"{number} {too_long(longest, 'only the beginning is read')}"


def too_long(longest: int, consequence: str = "") -> str:
    """The warning about an input that is longer than the model can read at once."""
    warning = f"longer than the {longest} tokens that the model was trained on"
    return f"{warning}: {consequence}" if consequence else warning
