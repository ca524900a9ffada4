"""The task classify: a model reads a text and predicts its label, with a calibrated probability.

A model of style encoder reads <cls> and the text, and computes the class from the vector of <cls>
(as in BERT). Models of the other styles generate the label as text (sequences.py); the probability
of a label is that of its tokens, normalised over all labels. Probabilities are calibrated on the
validation data by temperature scaling (Guo et al. 2017). The model reads only the beginning of a
text that is longer than data.max_length.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from regard.config.sections import MOST_LABELS, Config, DataConfig
from regard.console import visible_line
from regard.errors import InputError, warn_user
from regard.files import read_json, write_file
from regard.tasks.common import count_cut, one_line, refuse_nan, warn_cut
from regard.tasks.diagnostics import LabelStatistics
from regard.tasks.examples import Say
from regard.tasks.lazy import np, runtime, torch
from regard.tasks.sequences import arrange, check_specials, request
from regard.tasks.task import Array, Context, Evaluation, Ids, Task, Tokenizers
from regard.text.corpus import CLASSIFIED, Classified, CorpusReport

if TYPE_CHECKING:
    from regard.tasks.runtime import Batch, Chunk, Loss, Packed, Request, Store, Transformer

LARGEST_LABELS = 8 * 2**20  # bytes of labels.json
LONGEST_LABEL = 500  # characters
Example = tuple[Path, Classified]


@dataclass(frozen=True, repr=False)
class Label:
    """The class of a text.

    Attributes:
        label: the most probable label.
        probability: its probability, calibrated on the validation data.
        probabilities: the probability of every label.
    """

    label: str
    probability: float
    probabilities: dict[str, float]

    def __repr__(self) -> str:
        return f"Label({self.label!r}, {self.probability:.4f}, of {len(self.probabilities)} labels)"


@dataclass(eq=False, repr=False)
class Classify(Task):
    """Classification of texts.

    Attributes:
        labels: the labels of the classes.
        temperature: the divisor of the logits, fitted on the validation data.
        statistics: labels of the training data, during training only.
    """

    name = "classify"
    help = "Classify texts: print the label of each text and its probability."
    doing = "classifying"
    files = "label<tab>text"
    better = "accuracy"
    counted = 0
    has_metrics = True
    defaults: ClassVar = {"model": {"style": "encoder"}, "training": {"label_smoothing": 0.0}}
    config_options = ("data.duplicates", "data.labels", "training.balance")
    row_format = CLASSIFIED

    labels: Sequence[str] = ()
    temperature: float = 1.0
    statistics: LabelStatistics | None = None

    def __post_init__(self) -> None:
        self.labels, tokenizer = list(self.labels), self.tokenizer
        forced: Sequence[int] = ()
        if self.style != "encoder":
            check_specials(self.name, self.style, tokenizer, tokenizer)
        if self.style == "encoder-decoder":
            forced = tokenizer.target_prefix
        self.numbers = {label: i for i, label in enumerate(self.labels)}
        rows = self.tokenizer.encode_batch(self.labels)
        self._written = [np.array([*row, tokenizer.end]) for row in rows]
        self._outputs = [[*forced, *row, tokenizer.end] for row in rows]
        self.weights: torch.Tensor | None = None  # class weights (training.balance)

    @classmethod
    def model_defaults(cls, style: str, data: DataConfig) -> dict[str, Any]:
        """Add a classifier to an encoder; the training files determine its number of classes."""
        if style != "encoder":
            return {}
        return {"head": "classifier", "classes": max(2, len(data.labels))}

    @classmethod
    def check_config(cls, config: Config) -> None:
        if config.training.balance and config.model.head != "classifier":
            raise InputError(
                f"training.balance=true and model.style={config.model.style} cannot be combined: "
                "class weights need the classifier of an encoder"
            )

    @classmethod
    def make(cls, config: Config, tokenizers: Tokenizers, **learned: Any) -> Classify:
        """Create the task; `learned` has the labels and, if known, the temperature or the
        statistics of the training data."""
        return cls(tokenizers[1], config.model.style, config.data.max_length, **learned)

    @classmethod
    def learned(cls, files: Sequence[Path], config: Config) -> dict[str, Any]:
        statistics, declared = LabelStatistics(), config.data.labels
        for path, (line, text, label) in cls.read(files, config):
            if declared and label not in declared:
                raise InputError(f"{path}:{line}: the label {label!r} is not one of data.labels")
            statistics.add(path, line, text, label)
        labels = find_labels(statistics.counts, config, files)
        return {"labels": labels, "statistics": statistics}

    def describe_data(self, say: Say) -> None:
        if self.statistics is not None:
            for text in self.statistics.table():
                say(text)
            for warning in self.statistics.warnings():
                warn_user(warning)

    @classmethod
    def saved(cls, folder: Path, config: Config) -> dict[str, Any]:
        path, classes = folder / "labels.json", config.model.classes
        content = read_json(path, LARGEST_LABELS, "the labels of a model", LARGEST_LABELS // 8)
        try:
            labels, temperature = content["labels"], content["temperature"]
            valid = isinstance(labels, list) and not wrong_labels(labels)
            valid = valid and type(temperature) in (int, float) and 0.01 <= temperature <= 100
        except (KeyError, TypeError) as error:
            raise InputError(f"{path}: not the labels of a model ({error})") from None
        if not valid:
            raise InputError(f"{path}: the labels or the temperature are invalid")
        if classes not in (None, len(labels)):
            raise InputError(f"{path}: {len(labels)} labels, but the model has {classes} classes")
        return {"labels": labels, "temperature": float(temperature)}

    def save(self, folder: Path) -> None:
        super().save(folder)
        content = {"labels": self.labels, "temperature": self.temperature}
        write_file(folder / "labels.json", json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    def with_config(self, config: Config) -> Classify:
        learned = {"labels": self.labels, "temperature": self.temperature}
        return self.make(config, (self.tokenizer, self.tokenizer), **learned)

    def same_head(self, other: Task) -> bool:
        return isinstance(other, Classify) and other.labels == self.labels

    @classmethod
    def texts(cls, example: Example) -> Iterable[str]:
        return [example[1].text, example[1].label]

    def check(self, example: Example) -> None:
        self.number(example)

    def number(self, example: Example) -> int:
        """Return the class of an example; raises InputError if its label is unknown."""
        path, (line, _, label) = example
        if label not in self.numbers:
            known = ", ".join(self.labels[:10]) + (", ..." if len(self.labels) > 10 else "")
            raise InputError(
                f"{path}:{line}: the label {label!r} was never seen in training (known: {known})"
            )
        return self.numbers[label]

    def encode(self, examples: list[Example], config: Config, report: CorpusReport) -> Chunk:
        most = self.text_room()
        texts = self.tokenizer.encode_batch([example.text for _, example in examples])
        for ids in texts:
            if len(ids) > most:
                report.note(f"cut to {self.longest} tokens")
        return [
            [[*ids[:most], self.tokenizer.end] for ids in texts],
            [[self.number(example)] for example in examples],
        ]

    def identity(self, config: Config) -> list[object]:
        vocabulary, most = self.tokenizer.fingerprint, self.text_room()
        return ["classify", vocabulary, self.labels, most, config.data.duplicates]

    def types(self, files: Sequence[Path], config: Config) -> list[str]:
        return [runtime.token_type(self.tokenizer.size), runtime.token_type(len(self.labels))]

    def sizes(self, store: Store) -> list[Array]:
        text = store.lengths[0] - 1 + self.added  # the special tokens instead of <eos>
        if self.style == "encoder":
            return [text]
        label = np.array([len(row) for row in self._outputs])[self._classes(store)]
        return [text, label] if self.style == "encoder-decoder" else [text + label - 1]

    def _classes(self, store: Store) -> Ids:
        return np.array([int(store.tokens(1, i)[0]) for i in range(len(store))])

    def prepare(self, store: Store, config: Config) -> None:
        """Compute the class weights if training.balance is set."""
        counts = np.bincount(self._classes(store), minlength=len(self.labels))
        if config.training.balance:
            weights = counts.sum() / len(counts) / np.maximum(counts, 1)
            self.weights = torch.from_numpy(weights).float()

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Batch:
        texts = [store.tokens(0, int(i)) for i in examples]
        numbers = np.array([int(store.tokens(1, int(i))[0]) for i in examples])
        if self.style != "encoder":
            tokenizers, labels = (self.tokenizer,) * 2, [self._written[i] for i in numbers]
            return arrange(tokenizers, self.style, texts, labels, device)
        rows = [self.tokenizer.frame_array(text[:-1], self.style) for text in texts]
        return runtime.Batch(
            runtime.packed(rows, device), None, torch.from_numpy(numbers).to(device)
        )

    @property
    def loss(self) -> Loss:
        if self.style != "encoder":
            return super().loss
        return partial(runtime.losses.classification_loss, weights=self.weights)

    def model_options(self) -> dict[str, Any]:
        classes = len(self.labels) if self.style == "encoder" else None
        return {**super().model_options(), "classes": classes}

    def finish(self, model: Transformer, examples: Sequence[Example]) -> bool:
        """Fit the temperature on held-out examples."""
        targets = np.array([self.number(example) for example in examples])
        logits = self.logits(model, [example.text for _, example in examples])
        self.temperature = round(runtime.metrics.fit_temperature(logits, targets), 4)
        return True

    def evaluate(self, model: Transformer, examples: Sequence[Any], config: Config) -> Evaluation:
        targets = np.array([self.number(example) for example in examples])
        texts = [example.text for _, example in examples]
        logits = self.logits(model, texts)
        probabilities = self.probabilities(logits)
        predicted = probabilities.argmax(1)
        classes = len(self.labels)

        def metric(name: str) -> Any:
            return lambda chosen: runtime.metrics.classification(
                targets[chosen], predicted[chosen], classes
            )[name]

        def calibration(error: Any) -> Any:
            return lambda chosen: error(probabilities[chosen], targets[chosen])

        names = ("accuracy", "macro_f1", "matthews")
        metrics = {name: metric(name) for name in names} | {
            "calibration_error": runtime.BiasedMetric(
                calibration(runtime.metrics.calibration_error),
                calibration(runtime.metrics.debiased_calibration_error),
            )
        }
        metrics |= runtime.registered_metrics(self.name, probabilities, targets)
        samples = [
            f"{self.labels[predicted[i]]} ({probabilities[i, predicted[i]]:.0%}), expected "
            f"{self.labels[targets[i]]}: {one_line(example.text):.100}"
            for i, (_, example) in enumerate(examples[:3])
        ]
        table = runtime.metrics.confusion(targets, predicted, classes).tolist()
        return Evaluation(
            runtime.scores_of(metrics, len(targets)), metrics, len(targets), samples,
            details={"labels": self.labels, "confusion": table},
            cut=count_cut(self, texts),
        )  # fmt: skip

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids that the model reads for each text."""
        rows = [ids[: self.text_room()] for ids in self.tokenizer.encode_batch(list(texts))]
        if self.style == "encoder":
            return [self.tokenizer.frame(ids, self.style) for ids in rows]
        return [list(self.request_of(ids).source) for ids in rows]

    @property
    def added(self) -> int:
        if self.style in ("encoder", "encoder-decoder"):
            return super().added
        return len(self.tokenizer.begin) + 1  # <sep>

    def request_of(self, ids: Sequence[int]) -> Request:
        """Return the decoding request for the token ids of a text, if a label is generated."""
        return request((self.tokenizer, self.tokenizer), self.style, ids)

    def written(self, label: str) -> list[int]:
        """Return the tokens of a label, for the styles that generate it."""
        return self._outputs[self.numbers[label]]

    def logits(self, model: Transformer, texts: Sequence[str]) -> Array:
        """Return the logits before temperature scaling: [texts, classes]."""
        rows = self.ids(texts)
        if self.style == "encoder":

            def read(row: Packed, hidden: torch.Tensor) -> list[Any]:
                logits = model.head(hidden, row, model.output_matrix())
                return list(logits.cpu().double().numpy())

            return np.array(runtime.forward(model, rows, read, alone=True)).reshape(
                len(texts), len(self.labels)
            )
        bos, eos = self.tokenizer.bos, self.tokenizer.eos
        requests = [runtime.Request(i, bos=bos, eos=eos) for i in rows for _ in self.labels]
        labels = [row for _ in rows for row in self._outputs]
        sums = [sum(scored.logprobs) for scored in runtime.score(model, requests, labels)]
        return np.array(sums).reshape(len(texts), len(self.labels))

    def probabilities(self, logits: Array) -> Array:
        """Return the calibrated probabilities: [texts, classes]."""
        scaled = logits / self.temperature
        powers = np.exp(scaled - scaled.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def classify(self, model: Transformer, texts: Sequence[str]) -> list[Label]:
        """Predict the label of each text, with the probabilities of all labels."""
        labels = []
        for row in self.probabilities(self.logits(model, texts)).tolist():
            best = max(range(len(row)), key=row.__getitem__)
            probabilities = dict(zip(self.labels, row, strict=True))
            labels.append(Label(self.labels[best], row[best], probabilities))
        return labels

    def predict(self, model: Transformer, inputs: Sequence[str], context: Context) -> list[Label]:
        warn_cut(self, inputs, context)
        labels = self.classify(model, inputs)
        refuse_nan(label.probability for label in labels)
        return labels

    def parse(self, text: str, options: Namespace, longest: int, where: str) -> str | None:
        return text if text.strip() else None

    def line(self, text: str, prediction: Label | None, options: Namespace) -> str:
        if prediction is None:
            return ""
        return f"{one_line(prediction.label)}\t{prediction.probability:.4f}"

    def to_json(self, text: str, prediction: Label | None, options: Namespace) -> dict[str, Any]:
        empty: dict[str, Any] = {"label": None, "probability": None, "probabilities": {}}
        return {"text": text} | (vars(prediction) if prediction else empty)


def find_labels(counts: Counter[str], config: Config, files: Sequence[Path]) -> list[str]:
    """Find the labels of the training data.

    Args:
        counts: number of examples of each label.
        config: the configuration.
        files: the training files, for error messages.

    Returns:
        The labels in the order of data.labels, or in alphabetical order.

    Raises:
        InputError: a label of data.labels has no example, or the labels are invalid.
    """
    names = " ".join(str(path) for path in files)
    declared = config.data.labels
    for label in declared:
        if not counts[label]:
            raise InputError(f"{names}: the class {label!r} of data.labels has no example")
    labels = declared or sorted(counts)
    if len(labels) == 1:
        part = (
            f" (data.valid={config.data.valid[0]} is held out)" if config.data.valid_share else ""
        )
        raise InputError(
            f"{names}: only one class, {labels[0]!r}, in {sum(counts.values()):,} training examples"
            f"{part}: a classifier needs at least two"
        )
    if wrong := wrong_labels(labels):
        raise InputError(f"{names}: {wrong}")
    return labels


def wrong_labels(labels: Sequence[object]) -> str:
    """Return the reason why labels are invalid, or an empty string if they are valid."""
    if not 2 <= len(labels) <= MOST_LABELS:
        return f"{len(labels):,} classes: the number of classes must be from 2 to {MOST_LABELS:,}"
    if len(set(map(str, labels))) < len(labels):
        return "a label is duplicated"
    for label in labels:
        if not isinstance(label, str) or visible_line(label) != label or len(label) > LONGEST_LABEL:
            return (
                f"the label {label!r:.60} must be a string of at most {LONGEST_LABEL} characters "
                "without control characters"
            )
    return ""
