"""The part of `Task` that creates a task: from training files, or from a model folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from regard.config.sections import Config
from regard.console import warn
from regard.errors import InputError
from regard.tasks.examples import ExampleReader, Say
from regard.tasks.lazy import runtime
from regard.text.reading import check_file
from regard.text.split import Overlap

if TYPE_CHECKING:
    from regard.tasks.runtime import Tokenizer

Tokenizers: TypeAlias = "tuple[Tokenizer, Tokenizer]"  # of source and target
T = TypeVar("T", bound="TaskCreation")


@dataclass(eq=False, repr=False)
class TaskCreation(ExampleReader):
    """Creates a task with its vocabulary.

    Attributes:
        tokenizer: the vocabulary; that of the target, if source and target have different ones.
        style: the style of the model.
        longest: tokens of the longest input, or of a window of a document.
    """

    tokenizer: Tokenizer
    style: str = "encoder"
    longest: int = 256

    @classmethod
    def make(cls: type[T], config: Config, tokenizers: Tokenizers) -> T:
        """Create the task of a configuration. A subclass may have further arguments: those that
        `learned` and `saved` return.

        Args:
            config: the configuration of a run.
            tokenizers: those of source and target.

        Returns:
            The task.
        """
        return cls(tokenizers[1], config.model.style, config.data.max_length)

    @classmethod
    def learn(
        cls: type[T], config: Config, tokenizers: Tokenizers | None, say: Say, quiet: bool
    ) -> T:
        """Create the task from its training files. Every line of every file is read, so that an
        error in the data is reported before anything is written.

        Args:
            config: the configuration of a run.
            tokenizers: existing vocabularies; None: learn them.
            say: called with messages about the data.
            quiet: no progress bar and no warning about validation data that is also training data.

        Returns:
            The task.

        Raises:
            InputError: a file cannot be used; the message names the file and the line.
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

        Args:
            say: called with lines of text.
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

        Args:
            files: the training files.
            config: the configuration of a run.
            existing: existing vocabularies; None: learn them.
            say: called with messages about the data.
            quiet: no progress bar.
            overlap: compares the examples with the validation data while they are read.

        Returns:
            The tokenizers of source and target.
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
        for _ in lines(None, say):  # every line is checked, although no vocabulary is learned
            pass
        return existing or (learn(None),) * 2

    @classmethod
    def learned(cls, files: Sequence[Path], config: Config) -> dict[str, Any]:
        """The values that the training files define beside the vocabularies.

        Args:
            files: the training files.
            config: the configuration of a run.

        Returns:
            Further arguments of `make` by name.
        """
        return {}

    @classmethod
    def load(cls: type[T], folder: Path, config: Config, tokenizers: Tokenizers | None = None) -> T:
        """Create the task of a model folder.

        Args:
            folder: the model folder.
            config: its configuration.
            tokenizers: those that the folder cannot contain, because they are Python objects
                (text/external.py).

        Returns:
            The task.

        Raises:
            InputError: a file is missing, damaged, or does not fit the configuration.
        """
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
        """Read the values that `save` wrote beside the vocabularies.

        Args:
            folder: the model folder.
            config: its configuration.

        Returns:
            Further arguments of `make` by name.
        """
        return {}

    def with_config(self: T, config: Config) -> T:
        """The same task, with its vocabularies, for another configuration.

        Args:
            config: the other configuration.

        Returns:
            A new task.
        """
        return self.make(config, (self.tokenizer, self.tokenizer))

    def save(self, folder: Path) -> None:
        """Write the vocabulary, and all other values that `load` needs, into a model folder.

        Args:
            folder: the model folder.
        """
        self.tokenizer.save(folder / "tokenizer.json")

    def started_from(self, folder: Path) -> None:
        """Copy the values that belong to the weights of the model to start from, in addition to the
        vocabularies.

        Args:
            folder: the folder of the model to start from.
        """

    def same_head(self, other: Any) -> bool:
        """Whether the heads of models of two tasks have the same meaning.

        Args:
            other: a task of the same class.

        Returns:
            True if the weights of the head can be used for both.
        """
        return True

    def model_options(self) -> dict[str, Any]:
        """Options of the section `model` that the training data define.

        Returns:
            Values by name.
        """
        size = self.tokenizer.size
        return {"vocabulary_size": size, "source_vocabulary_size": size}

    def check(self, example: Any) -> None:
        """Refuse an example that is well formed but cannot be used.

        Args:
            example: an example, as `read` returns it.

        Raises:
            InputError: the example cannot be used; the message names the file and the line.
        """
