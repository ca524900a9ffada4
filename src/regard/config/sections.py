"""The four sections of a configuration: model, data, training, decoding.

Options have the same names on the command line (`--set training.steps=2000`), in YAML and in
Python, and all values are checked before any work starts. The `config.yaml` of a run contains every
option with its value, including defaults; `regard train --config` accepts that file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from regard.config.checks import (
    DERIVED,
    FRACTION,
    Range,
    changed_fields,
    check_keys,
    check_types,
    choice,
)
from regard.config.model import ModelConfig
from regard.config.registry import SCHEDULES
from regard.config.settings import SECTIONS, current_names, read_yaml
from regard.errors import InputError

DTYPES = ("auto", "float32", "bfloat16", "int8")  # of a model for inference
MOST_HYPOTHESES, MOST_LABELS = 1_000, 10_000
MOST_WRITTEN = 1_000_000  # hypotheses times tokens of one sentence; Model.decoding bounds the bytes
SEED, WEIGHT = Range(0, 2**63 - 1), Range(0, 1_000_000)
COUNT, EVERY = Range(1, 1_000_000_000), Range(1, 10**12)
RANGES = {
    "data": {
        "vocabulary_size": Range(1, 1_000_000), "max_length": Range(1, 1_000_000),
        "max_ratio": Range(1, 1_000_000_000), "bpe_dropout": FRACTION,
        "share": Range(0, 1, above=True), "mask": Range(0, 1, above=True, below=True),
    },
    "training": {
        "steps": COUNT, "epochs": WEIGHT, "batch_tokens": COUNT, "accumulate": COUNT,
        "weight_decay": WEIGHT,
        "beta1": FRACTION, "beta2": FRACTION, "learning_rate": Range(0, 1e40, above=True),
        "warmup": COUNT, "label_smoothing": FRACTION, "r_drop": WEIGHT,
        "similarity_scale": Range(0, 1_000_000, above=True), "clip": Range(0, 1e40),
        "validate_every": EVERY, "checkpoint_every": EVERY, "keep": COUNT, "average": COUNT,
        "patience": Range(0, 1_000_000_000), "seed": SEED,
    },
    "decoding": {
        "beam": Range(1, MOST_HYPOTHESES), "n_best": Range(1, MOST_HYPOTHESES),
        "length_penalty": Range(0, 10), "length_offset": Range(0, 1_000),
        "max_length": Range(1, 100_000),
        "min_length": Range(0, 100_000), "no_repeat": Range(0, 100_000),
        "temperature": Range(0, 1_000), "top_k": Range(0, 1_000_000_000),
        "top_p": Range(0, 1, above=True), "seed": SEED,
    },
}  # fmt: skip
Section = TypeVar("Section")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The data: files, vocabulary and limits."""

    train: list[str] = field(default_factory=list)  # --train: files; translate: source, target
    valid: list[str] = field(default_factory=list)  # --valid: held-out files, or "5%" of train
    columns: dict[str, str] = field(default_factory=dict)  # field: column, if it has another name
    vocabulary: str = "bpe"  # what a token is: byte-level bpe, one character, one byte
    vocabulary_size: int = 8_000  # requested size; a small corpus may give fewer tokens
    shared_vocabulary: bool = True  # translate: one for source and target, or one each
    max_length: int = 256  # tokens per example; longer ones are skipped or cut
    max_ratio: float = 4.0  # largest ratio of the two lengths; other pairs are skipped
    bpe_dropout: float = 0.0  # probability of skipping a merge, drawn each time a text is read
    share: float = 1.0  # fraction of the training examples to use, chosen at random
    documents: str = "blank-line"  # what ends a document: a blank line, or the end of its file
    dialogue: bool = False  # generate: each line of a document is one turn of a dialogue
    duplicates: str = "keep"  # duplicate rows: keep (with a message), drop, refuse
    labels: list[str] = field(default_factory=list)  # classify: classes; []: the labels in train
    bleu: str = "13a"  # sacreBLEU's tokenizer; zh for Chinese, char for others
    mask: float = 0.15  # fill: fraction of the tokens to predict
    whole_words: bool = False  # fill: all tokens of a word are masked, or none

    __repr__ = changed_fields

    def __post_init__(self) -> None:
        object.__setattr__(self, "valid", as_files(self.valid))
        object.__setattr__(self, "columns", as_columns(self.columns))
        check_types(self, "data", RANGES["data"])
        _ = self.valid_share  # refuses a percentage that is out of range
        choice("data.vocabulary", self.vocabulary, ("bpe", "character", "byte"))
        choice("data.documents", self.documents, ("blank-line", "file"))
        choice("data.duplicates", self.duplicates, ("keep", "drop", "refuse"))
        choice("data.bleu", self.bleu, ("13a", "intl", "zh", "char", "none"))
        if len(self.labels) > MOST_LABELS:
            raise InputError(f"data.labels: {len(self.labels):,} labels, at most {MOST_LABELS:,}")
        if len(set(self.labels)) < len(self.labels):
            twice = next(label for i, label in enumerate(self.labels) if label in self.labels[:i])
            raise InputError(f"data.labels: {twice!r:.60} is duplicated")
        if self.bpe_dropout and self.vocabulary != "bpe":
            raise InputError(
                f"data.bpe_dropout={self.bpe_dropout} and data.vocabulary={self.vocabulary} "
                "cannot be combined: only bpe has merges"
            )

    @property
    def valid_share(self) -> float:
        """The fraction of the training data that is held out for validation; 0: `valid` has the
        names of files."""
        if not self.is_percentage(self.valid):
            return 0.0
        if len(self.valid) > 1:
            raise InputError("data.valid must be files or one percentage, not both")
        share = float(self.valid[0].removesuffix("%")) / 100
        if not 0 < share < 1:
            raise InputError(
                "data.valid must be files or a percentage above 0% and below 100%, not "
                f"{self.valid[0]}"
            )
        return share

    @staticmethod
    def is_percentage(names: Sequence[str]) -> bool:
        """Whether the value of `valid` is a percentage of the training data.

        Args:
            names: names of files, or ["5%"].

        Returns:
            True for a percentage.
        """
        return any(re.fullmatch(r"\d{1,9}(\.\d{1,9})?%", name) for name in names)


def as_files(value: Any) -> Any:
    """data.valid as a list: a name or a percentage ("5%", 0.05) is a list with one item."""
    if isinstance(value, float):
        return [f"{100 * value:.9g}%"]
    return [value] if isinstance(value, str) else value


def as_columns(value: Any) -> Any:
    """data.columns as a mapping: `text=review,label=stars` is {"text": "review", ...}."""
    if not isinstance(value, str):
        return dict(value) if isinstance(value, Mapping) else value
    columns: dict[str, str] = {}
    for item in value.split(","):
        name, equals, column = (part.strip() for part in item.partition("="))
        if not name or not equals or not column:
            raise InputError(
                f"data.columns={value!r:.60}: write it as field=column,field=column, for example "
                "text=review,label=stars"
            )
        if name in columns:
            raise InputError(f"data.columns={value!r:.60}: the field {name} has two columns")
        columns[name] = column
    return columns


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The training: steps, optimiser and checkpoints."""

    steps: int = 2_000  # maximum number of optimiser steps
    epochs: float = 0.0  # passes over the training data, converted to steps; 0: use steps
    batch_tokens: int = 4_096  # tokens per packed row; translate: target tokens; else: input tokens
    accumulate: int = 1  # rows per step and process; their gradients are summed
    optimiser: str = "adam"  # adam (the paper's), adamw
    weight_decay: float = 0.0  # for adamw
    beta1: float = 0.9  # Adam: decay rate of the gradient average
    beta2: float = 0.98  # Adam: decay rate of the squared gradient average
    learning_rate: float = DERIVED  # peak; default: the paper's (d_model * warmup)^-0.5, or a
    # tenth of it with --from
    warmup: int = 500  # steps in which the learning rate rises from 0 to its peak
    schedule: str = "inverse-sqrt"  # learning rate after the warmup; inverse-sqrt is the paper's
    label_smoothing: float = 0.1  # probability that is spread over all other tokens (5.4)
    r_drop: float = 0.0  # R-Drop: weight of the divergence between two dropout passes
    balance: bool = False  # classify: weight rare classes more, so that all classes count the same
    similarity_scale: float = 20.0  # embed: factor for the cosines before the softmax
    clip: float = 1.0  # largest gradient norm; 0: no clipping
    validate_every: int = 500  # steps between two validations
    checkpoint_every: int = 250  # steps between two checkpoints
    keep: int = 5  # number of latest checkpoints to keep
    average: int = 5  # latest checkpoints whose mean is a candidate for the final weights; 1: none
    patience: int = 0  # validations without improvement before stopping; 0: never stop early
    dtype: str = "auto"  # of matrix products; auto: bfloat16 where it is faster; sums are float32
    cuda_graphs: bool = True  # on a GPU: capture a row's computation as a CUDA graph and replay it
    tensorboard: bool = False  # write events for TensorBoard beside metrics.jsonl
    seed: int = 1  # random seed for initialisation, shuffling and dropout (--seed)

    __repr__ = changed_fields

    def __post_init__(self) -> None:
        check_types(self, "training", RANGES["training"])
        choice("training.optimiser", self.optimiser, ("adam", "adamw"))
        SCHEDULES.check(self.schedule)
        choice("training.dtype", self.dtype, ("auto", "float32", "bfloat16"))
        if self.weight_decay and self.optimiser == "adam":
            raise InputError(
                f"training.weight_decay={self.weight_decay} and training.optimiser=adam cannot be "
                "combined: use training.optimiser=adamw"
            )
        if self.average > self.keep:
            raise InputError(
                f"training.average={self.average} needs as many checkpoints, but "
                f"training.keep={self.keep} keeps fewer"
            )


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """The decoding: beam search or sampling."""

    beam: int = 4  # hypotheses per sentence; 1 is greedy search
    length_penalty: float = 0.6  # scores are divided by ((length_offset + tokens) /
    # (length_offset + 1)) to this power
    length_offset: float = 5.0  # 5: the length penalty of the paper; 0: scores are divided by
    # length ** length_penalty
    n_best: int = 1  # outputs per sentence: the best of the beam, or this many samples
    max_length: int = 50  # output tokens beyond the source's length; without a source: in total
    min_length: int = 0  # output tokens before the end is allowed
    no_repeat: int = 0  # no sequence of this many tokens occurs twice in an output; 0: no limit
    temperature: float = 0.0  # 0: search; above 0: sample; 1: the model's own probabilities
    top_k: int = 0  # sample only from this many most probable tokens; 0: from all
    top_p: float = 1.0  # sample from the fewest most probable tokens with this total probability
    seed: int = 1  # random seed for sampling

    __repr__ = changed_fields

    def __post_init__(self) -> None:
        check_types(self, "decoding", RANGES["decoding"])
        if self.width * self.max_length > MOST_WRITTEN:
            raise InputError(
                f"decoding.beam (or decoding.n_best) times decoding.max_length is "
                f"{self.width * self.max_length:,}: at most {MOST_WRITTEN:,} for one sentence"
            )
        if self.temperature and self.beam > 1:
            raise InputError(
                f"decoding.temperature={self.temperature} and decoding.beam={self.beam} cannot be "
                "combined: sampling follows one hypothesis: set decoding.beam=1"
            )
        for name in ("top_k", "top_p"):
            if not self.temperature and getattr(self, name) != getattr(DecodingConfig, name):
                raise InputError(
                    f"decoding.{name}={getattr(self, name)} and decoding.temperature=0 cannot be "
                    "combined: set decoding.temperature=1 to sample"
                )
        if not self.temperature and self.n_best > self.beam:
            raise InputError(
                f"decoding.n_best={self.n_best} needs a beam of at least {self.n_best}, but "
                f"decoding.beam={self.beam}"
            )

    @property
    def width(self) -> int:
        """Hypotheses that are followed at once for each sentence."""
        return self.n_best if self.temperature else self.beam

    def divisor(self, tokens: Any) -> Any:
        """The length penalty, by which the log-probability of an output is divided. With
        length_offset=5 it is equation 14 of Wu et al. (2016).

        Args:
            tokens: the number of tokens of the output, a number or an array.

        Returns:
            The divisor, of the same shape.
        """
        offset = self.length_offset
        return ((offset + tokens) / (offset + 1)) ** self.length_penalty


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run depends on.

    Attributes:
        task: the name of the task.
        model: the architecture.
        data: files, vocabulary and limits.
        training: steps, optimiser and checkpoints.
        decoding: beam search or sampling.
    """

    task: str
    model: ModelConfig
    data: DataConfig
    training: TrainingConfig
    decoding: DecodingConfig

    @property
    def longest_input(self) -> int:
        """Tokens of the longest text that the model reads in one piece."""
        if self.model.positions == "learned":
            return min(self.data.max_length, self.model.max_length)
        return self.data.max_length

    def to_yaml(self) -> str:
        """The configuration as YAML, with every default."""
        import yaml

        return yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Read the config.yaml of a run.

        Args:
            path: the file.

        Returns:
            The configuration.

        Raises:
            InputError: the file is not the configuration of a run, or a value is not valid.
        """
        values = current_names(read_yaml(Path(path)), warns=False)
        task = values.pop("task", None)
        if not isinstance(task, str) or set(values) != set(SECTIONS):
            raise InputError(f"{path} is not the configuration of a run: {sorted(values)}")
        return cls(
            task=task,
            model=ModelConfig.from_dict(values["model"]),
            data=section(DataConfig, "data", values["data"]),
            training=section(TrainingConfig, "training", values["training"]),
            decoding=section(DecodingConfig, "decoding", values["decoding"]),
        )


VOCABULARY = ("vocabulary", "vocabulary_size", "shared_vocabulary")


def inherited_vocabulary(start: DataConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the vocabulary, which the model to start from brings.

    Args:
        start: the section `data` of the model to start from.
        values: the user's options of the section.

    Raises:
        InputError: `values` asks for a different vocabulary.
    """
    inherited = {name: getattr(start, name) for name in VOCABULARY}
    for name, value in inherited.items():
        if values.get(name, value) != value:
            both = [f"data.{name}={str(v).lower()}" for v in (values[name], value)]
            raise InputError(
                f"{both[0]} and a model to start from with {both[1]} cannot be combined: the "
                f"vocabulary of that model is used; leave out data.{name}"
            )
    return inherited


def section(cls: type[Section], name: str, values: dict[str, Any]) -> Section:
    """A section from its values."""
    check_keys(cls, name, values)
    return cls(**values)
