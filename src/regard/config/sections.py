"""The four sections of a configuration: model, data, training, decoding.

The same names on the command line (`--set training.steps=2000`), in YAML and in Python; all of it
is checked before any work starts. What a run really used is its `config.yaml`, complete with
every default, and `regard train --config` takes that file again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from regard.config.model import (
    DERIVED,
    FRACTION,
    STYLES,
    ModelConfig,
    Range,
    check_types,
    choice,
)
from regard.config.settings import SECTIONS, current_names, read_yaml
from regard.errors import InputError, unknown

DTYPES = ("auto", "float32", "bfloat16", "int8")  # of a model that is used
TASKS = ("translate", "answer", "generate", "classify", "fill", "embed")
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
        "steps": COUNT, "batch_tokens": COUNT, "accumulate": COUNT, "weight_decay": WEIGHT,
        "beta1": FRACTION, "beta2": FRACTION, "learning_rate": Range(0, 1e40, above=True),
        "warmup": COUNT, "label_smoothing": FRACTION, "r_drop": WEIGHT,
        "similarity_scale": Range(0, 1_000_000, above=True), "clip": Range(0, 1e40),
        "validate_every": EVERY, "checkpoint_every": EVERY, "keep": COUNT, "average": COUNT,
        "patience": Range(0, 1_000_000_000), "seed": SEED,
    },
    "decoding": {
        "beam": Range(1, MOST_HYPOTHESES), "n_best": Range(1, MOST_HYPOTHESES),
        "length_penalty": Range(0, 10), "max_length": Range(1, 100_000),
        "min_length": Range(0, 100_000), "no_repeat": Range(0, 100_000),
        "temperature": Range(0, 1_000), "top_k": Range(0, 1_000_000_000),
        "top_p": Range(0, 1, above=True), "seed": SEED,
    },
}  # fmt: skip
Section = TypeVar("Section")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    train: list[str] = field(default_factory=list)  # --train: files; translate: source, target
    valid: list[str] = field(default_factory=list)  # --valid: held-out files of the same kind
    vocabulary: str = "bpe"  # what a token is: byte-level bpe, one character, one byte
    vocabulary_size: int = 8_000  # requested size; a small corpus may give fewer tokens
    shared_vocabulary: bool = True  # translate: one for source and target, or one each
    max_length: int = 256  # tokens per example; longer ones are skipped or cut (docs/tasks.md)
    max_ratio: float = 4.0  # largest ratio of the two lengths; other pairs are skipped
    bpe_dropout: float = 0.0  # probability of skipping a merge, drawn each time a text is read
    share: float = 1.0  # fraction of the training examples to use, chosen at random
    documents: str = "blank-line"  # what ends a document: a blank line, or the end of its file
    duplicates: str = "keep"  # duplicate rows: keep (with a message), drop, refuse
    labels: list[str] = field(default_factory=list)  # classify: classes; []: the labels in train
    bleu: str = "13a"  # sacreBLEU's tokenizer; zh for Chinese, char for others
    mask: float = 0.15  # fill: fraction of the tokens to predict
    whole_words: bool = False  # fill: all tokens of a word are masked, or none

    def __post_init__(self) -> None:
        check_types(self, "data", RANGES["data"])
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


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    steps: int = 2_000  # maximum number of optimiser steps
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

    def __post_init__(self) -> None:
        check_types(self, "training", RANGES["training"])
        choice("training.optimiser", self.optimiser, ("adam", "adamw"))
        choice("training.schedule", self.schedule, ("inverse-sqrt", "cosine", "constant"))
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
    beam: int = 4  # hypotheses per sentence; 1 is greedy search
    length_penalty: float = 0.6  # scores are divided by ((5 + tokens) / 6) to this power
    n_best: int = 1  # outputs per sentence: the best of the beam, or this many samples
    max_length: int = 50  # output tokens beyond the source's length; without a source: in total
    min_length: int = 0  # output tokens before the end is allowed
    no_repeat: int = 0  # no sequence of this many tokens occurs twice in an output; 0: no limit
    temperature: float = 0.0  # 0: search; above 0: sample; 1: the model's own probabilities
    top_k: int = 0  # sample only from this many most probable tokens; 0: from all
    top_p: float = 1.0  # sample from the fewest most probable tokens with this total probability
    seed: int = 1  # random seed for sampling

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
                f"decoding.n_best={self.n_best} and decoding.beam={self.beam} cannot be combined: "
                "a search keeps no more answers than its beam has"
            )

    @property
    def width(self) -> int:
        """Hypotheses that are followed at once for each sentence."""
        return self.n_best if self.temperature else self.beam


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run depends on."""

    task: str
    model: ModelConfig
    data: DataConfig
    training: TrainingConfig
    decoding: DecodingConfig

    @classmethod
    def build(
        cls,
        task: str,
        preset: str | None,
        values: dict[str, dict[str, Any]],
        start: Config | None = None,
    ) -> Config:
        """From a preset (or the model to start from) and what the user changed. start: that of
        --from, which brings the vocabulary and, where there is no preset, the sizes."""
        if task not in TASKS:
            raise unknown("task", task, TASKS)
        for name in values:
            if name not in SECTIONS:
                raise unknown("section", name, SECTIONS)

        values = current_names(values)

        def chosen(name: str) -> dict[str, Any]:
            return {**DEFAULTS[task].get(name, {}), **values.get(name, {})}

        asked = chosen("data")
        asked |= {} if start is None else brought(task, start.data, asked)
        data = section(DataConfig, "data", asked)
        model = build_model(task, preset, data, values.get("model", {}), start)
        decoding = section(DecodingConfig, "decoding", chosen("decoding"))
        check_positions(task, model, data, decoding)
        training = section(TrainingConfig, "training", chosen("training"))
        if training.learning_rate is DERIVED:
            rate = (model.d_model * training.warmup) ** -0.5
            rate *= 1.0 if start is None else FINE  # what was learned is not to be forgotten
            training = replace(training, learning_rate=rate)
        if training.r_drop and task == "embed":
            raise InputError("--task embed and training.r_drop cannot be combined")
        scale = training.similarity_scale
        if task != "embed" and scale != TrainingConfig.similarity_scale:
            raise InputError(
                f"--task {task} and training.similarity_scale={scale} cannot be combined: "
                "it is for embed"
            )
        if training.balance and model.head != "classifier":
            raise InputError(
                f"training.balance=true and --task {task} with model.style={model.style} cannot be "
                "combined: only a classifier has classes that can be weighed"
            )
        return cls(task=task, model=model, data=data, training=training, decoding=decoding)

    def to_yaml(self) -> str:
        import yaml

        return yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True)

    @classmethod
    def load(cls, path: Path) -> Config:
        """The config.yaml of a run."""
        values = current_names(read_yaml(path), warns=False)
        task = values.pop("task", None)
        if task not in TASKS or set(values) != set(SECTIONS):
            raise InputError(f"{path} is not the configuration of a run: {sorted(values)}")
        return cls(
            task=task,
            model=ModelConfig.from_dict(values["model"]),
            data=section(DataConfig, "data", values["data"]),
            training=section(TrainingConfig, "training", values["training"]),
            decoding=section(DecodingConfig, "decoding", values["decoding"]),
        )


FINE = 0.1  # the learning rate of fine-tuning beside that of training
# What is usual for a task where it is not what is usual for translation.
PLAIN = {"label_smoothing": 0.0}
DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "translate": {},
    "answer": {"data": {"max_length": 512}, "decoding": {"max_length": 30}, "training": PLAIN},
    "generate": {
        "model": {"style": "decoder"},
        "training": PLAIN,
        "decoding": {"beam": 1, "temperature": 0.8, "max_length": 200},
    },
    "classify": {"model": {"style": "encoder"}, "training": PLAIN},
    "fill": {"model": {"style": "encoder"}, "training": PLAIN},
    "embed": {"model": {"style": "encoder"}, "training": PLAIN},
}
STYLES_OF_TASK = {
    "generate": ("decoder",),
    "fill": ("encoder",),
    "embed": ("encoder", "decoder"),
}  # the others work in every style
OPTIONS_OF_TASKS = {
    "bleu": ("translate",),
    "bpe_dropout": ("translate", "answer"),
    "documents": ("generate", "fill"),
    "duplicates": ("answer", "classify", "embed"),
    "labels": ("classify",),
    "mask": ("fill",),
    "max_ratio": ("translate",),
    "whole_words": ("fill",),
}


VOCABULARY = ("vocabulary", "vocabulary_size", "shared_vocabulary")


def brought(task: str, start: DataConfig, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The vocabulary that --from brings, once no other one is asked for."""
    if task != "translate" and not start.shared_vocabulary:
        raise two_vocabularies(task)
    found = {name: getattr(start, name) for name in VOCABULARY}
    for name, value in found.items():
        if asked.get(name, value) != value:
            said = [f"data.{name}={str(one).lower()}" for one in (asked[name], value)]
            raise InputError(
                f"{said[0]} and --from a model with {said[1]} cannot be combined: --from brings "
                f"the vocabulary; leave data.{name} out"
            )
    return found


def two_vocabularies(task: str) -> InputError:
    return InputError(
        f"--from a model with two vocabularies and --task {task} cannot be combined: it has one"
    )


def build_model(
    task: str,
    preset: str | None,
    data: DataConfig,
    values: dict[str, Any],
    start: Config | None,
) -> ModelConfig:
    """The preset, or the model to start from, with the changes that were asked for."""
    # Pre-norm takes a higher rate: on Multi30k, 1,800 steps, one seed each, it had 35.6 BLEU at
    # 5e-3 and post-norm 30.7 at 3e-3. model.norm_first=false is the paper's.
    defaults: dict[str, Any] = {"vocabulary_size": data.vocabulary_size, "norm_first": True}
    if not data.shared_vocabulary:
        defaults["tie_embeddings"] = "target-output"
    if start is not None and preset is None:
        defaults = {**start.model.to_dict(), "head": DERIVED, "classes": None}
    else:
        defaults |= DEFAULTS[task].get("model", {})
    if task == "embed":
        defaults["head"] = "pooling"
    elif task == "classify" and {**defaults, **values}.get("style") == "encoder":
        # How many classes there are is known for certain once the files have been read.
        defaults |= {"head": "classifier", "classes": max(2, len(data.labels))}
    values = {**defaults, **values}
    check_task(task, values.get("style", STYLES[0]), data)
    if start is not None and preset is None:
        model = ModelConfig.from_dict(values)
    else:
        model = ModelConfig.preset(preset or "base", **values)
    if not data.shared_vocabulary and model.tie_embeddings in ("all", "source-target"):
        raise InputError(
            f"data.shared_vocabulary=false and model.tie_embeddings={model.tie_embeddings} "
            "cannot be combined: one matrix has one vocabulary"
        )
    return model


def check_task(task: str, style: str, data: DataConfig) -> None:
    styles = STYLES_OF_TASK.get(task)
    if styles and style in STYLES and style not in styles:
        raise InputError(
            f"--task {task} and model.style={style} cannot be combined: "
            f"it needs {' or '.join(styles)}"
        )
    for name, tasks in OPTIONS_OF_TASKS.items():
        value = getattr(data, name)
        if task not in tasks and value != type(data)().__dict__[name]:
            raise InputError(
                f"--task {task} and data.{name}={value} cannot be combined: "
                f"it is for {' and '.join(tasks)}"
            )
    if task != "translate" and not data.shared_vocabulary:
        raise InputError(f"--task {task} and data.shared_vocabulary=false cannot be combined")


def check_positions(
    task: str, model: ModelConfig, data: DataConfig, decoding: DecodingConfig
) -> None:
    """Learned positions end somewhere: the longest row that there may be must fit."""
    writes = decoding.max_length if model.has_decoder else 0
    behind = writes
    if task in ("translate", "answer") and model.style != "encoder-decoder":
        # Input and target stand in one row; an encoder's has its slots (tasks/sequences.py).
        behind = max(writes, data.max_length if model.has_decoder else data.max_length * 3 // 2 + 8)
    longest = data.max_length + behind
    if model.positions == "learned" and model.max_length < longest:
        raise InputError(
            f"model.max_length={model.max_length} with model.positions=learned is less than the "
            f"{longest} that data.max_length={data.max_length} and "
            f"decoding.max_length={writes} together need"
        )


def section(cls: type[Section], name: str, values: dict[str, Any]) -> Section:
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise unknown("configuration key", f"{name}.{key}", [f"{name}.{k}" for k in known])
    return cls(**values)
