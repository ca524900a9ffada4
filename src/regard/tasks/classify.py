"""classify: a text in, a label out, with a probability that can be believed.

encoder: <cls> and the text are read, and the vector of <cls> tells the class (BERT's way). The
other styles write the label as a text (sequences.py); its probability among all labels is that of
its tokens. Probabilities are calibrated on the validation data by one number, the temperature
(Guo et al. 2017). Of a text longer than data.max_length its beginning is read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.config.sections import MOST_LABELS, Config, DecodingConfig
from regard.console import visible_line
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.errors import InputError
from regard.files import write_file
from regard.model.transformer import Transformer
from regard.tasks.metrics import (
    calibration_error,
    classification,
    confusion,
    fit_temperature,
)
from regard.tasks.sequences import arrange, asked
from regard.tasks.task import (
    Evaluation,
    Ids,
    Say,
    Task,
    forward,
    packed,
    read_rows,
)
from regard.text.batching import Packed
from regard.text.corpus import Classified, Report, read_classified
from regard.text.pieces import in_chunks
from regard.text.reading import Position
from regard.text.store import Chunk, Store, build, token_type
from regard.text.tokenizer import Tokenizer
from regard.training.losses import Batch, Loss, classification_loss

LARGEST_LABELS = 8 * 2**20  # bytes of labels.json
LONGEST_LABEL = 500  # characters
Example = tuple[Path, Classified]


@dataclass(frozen=True)
class Label:
    label: str
    probability: float
    probabilities: dict[str, float]  # of all labels


class Classify(Task):
    name = "classify"
    better = "accuracy"
    counted = 0

    def __init__(
        self,
        tokenizer: Tokenizer,
        style: str,
        labels: Sequence[str],
        longest: int = 256,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(tokenizer, style)
        self.labels, self.longest, self.temperature = list(labels), longest, temperature
        self.numbers = {label: i for i, label in enumerate(self.labels)}
        rows = tokenizer.encode_batch(self.labels)
        self._written = [np.array([*row, Tokenizer.eos]) for row in rows]
        self.weights: Tensor | None = None  # of the classes, where they are balanced

    # ---- data ---------------------------------------------------------------------------

    @classmethod
    def read(
        cls, files: Sequence[Path], config: Config, say: Say | None = None
    ) -> Iterator[Example]:
        return read_rows(files, read_classified, config, say)

    @classmethod
    def texts(cls, example: Example) -> Iterable[str]:
        return [example[1].text, example[1].label]

    def check(self, example: Example) -> None:
        self.number(example)

    def number(self, example: Example) -> int:
        path, (line, _, label) = example
        if label not in self.numbers:
            raise unseen(path, line, label, self.labels)
        return self.numbers[label]

    def build(
        self, files: Sequence[Path], folder: Path, config: Config, quiet: bool
    ) -> tuple[Store, Report]:
        tokenizer, most = self.tokenizer, self.longest - 1  # 1: <cls>, or what closes the text

        def encode(report: Report, position: Position) -> Iterator[Chunk]:
            examples = self.read(files, config)
            for chunk in in_chunks(examples, lambda example: len(example[1].text)):
                texts = tokenizer.encode_batch([example.text for _, example in chunk])
                for ids in texts:
                    if len(ids) > most:
                        report.note(f"cut to {self.longest} tokens")
                yield [
                    [[*ids[:most], tokenizer.eos] for ids in texts],
                    [[self.number(example)] for example in chunk],
                ]

        identity = ["classify", tokenizer.fingerprint, self.labels, most, config.data.duplicates]
        types = [token_type(tokenizer.size), token_type(len(self.labels))]
        return build(files, identity, types, encode, folder, quiet)

    def sizes(self, store: Store) -> list[NDArray[Any]]:
        text = store.lengths[0]
        if self.style == "encoder":
            return [text]  # <cls> instead of <eos>
        label = np.array([len(row) for row in self._written])[self._classes(store)]
        return [text, label] if self.style == "encoder-decoder" else [text + label - 1]

    def _classes(self, store: Store) -> Ids:
        return np.array([int(store.tokens(1, i)[0]) for i in range(len(store))])

    # ---- training -----------------------------------------------------------------------

    def prepare(self, store: Store, config: Config) -> None:
        """Look at the classes of the training data."""
        counts = np.bincount(self._classes(store), minlength=len(self.labels))
        if config.training.balance:
            weights = counts.sum() / len(counts) / np.maximum(counts, 1)
            self.weights = torch.from_numpy(weights).float()

    def batch(self, store: Store, examples: Ids, device: torch.device, seed: int = 0) -> Batch:
        texts = [store.tokens(0, int(i)) for i in examples]
        numbers = np.array([int(store.tokens(1, int(i))[0]) for i in examples])
        if self.style != "encoder":
            return arrange(self.style, texts, [self._written[i] for i in numbers], device)
        rows = [np.concatenate([[Tokenizer.cls], text[:-1]]) for text in texts]
        return Batch(packed(rows, device), None, torch.from_numpy(numbers).to(device))

    @property
    def loss(self) -> Loss:
        if self.style != "encoder":
            return super().loss
        return partial(classification_loss, weights=self.weights)

    def model_options(self) -> dict[str, Any]:
        classes = len(self.labels) if self.style == "encoder" else None
        return {**super().model_options(), "classes": classes}

    def finish(self, model: Transformer, examples: Sequence[Example]) -> bool:
        """Fit the temperature on held-out examples."""
        wanted = np.array([self.number(example) for example in examples])
        logits = self.logits(model, [example.text for _, example in examples])
        self.temperature = round(fit_temperature(logits, wanted), 4)
        return True

    def save(self, folder: Path) -> None:
        super().save(folder)
        whole = {"labels": self.labels, "temperature": self.temperature}
        write_file(folder / "labels.json", json.dumps(whole, ensure_ascii=False, indent=1) + "\n")

    # ---- use ----------------------------------------------------------------------------

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """What is read of each text."""
        rows = (ids[: self.longest - 1] for ids in self.tokenizer.encode_batch(list(texts)))
        if self.style == "encoder":
            return [[Tokenizer.cls, *ids] for ids in rows]
        return [asked(self.style, ids) for ids in rows]

    def written(self, label: str) -> list[int]:
        """What is written for a label, where it is written."""
        ids: list[int] = self._written[self.numbers[label]].tolist()
        return ids

    @torch.no_grad()
    def logits(self, model: Transformer, texts: Sequence[str]) -> NDArray[np.float64]:
        """[texts, classes], before the temperature."""
        rows = self.ids(texts)
        if self.style == "encoder":

            def read(row: Packed, hidden: Tensor) -> list[Any]:
                logits = model.head(hidden, row, model.output_matrix())
                return list(logits.double().cpu().numpy())

            found = forward(model, rows, read)
            return np.array(found).reshape(len(texts), len(self.labels))
        requests = [Request(ids) for ids in rows for _ in self.labels]
        answers = [row.tolist() for _ in rows for row in self._written]
        sums = [sum(seen.logprobs) for seen in score(model, requests, answers)]
        return np.array(sums).reshape(len(texts), len(self.labels))

    def classify(self, model: Transformer, texts: Sequence[str]) -> list[Label]:
        found = []
        for row in self.probabilities(self.logits(model, texts)).tolist():
            best = max(range(len(row)), key=row.__getitem__)
            found.append(
                Label(self.labels[best], row[best], dict(zip(self.labels, row, strict=True)))
            )
        return found

    def probabilities(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        scaled = logits / self.temperature
        powers = np.exp(scaled - scaled.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    def evaluate(
        self,
        model: Transformer,
        examples: Sequence[Example],
        config: Config,
        decoding: DecodingConfig,
    ) -> Evaluation:
        wanted = np.array([self.number(example) for example in examples])
        probabilities = self.probabilities(
            self.logits(model, [example.text for _, example in examples])
        )
        given = probabilities.argmax(1)
        classes = len(self.labels)

        def metric(name: str) -> Any:
            return lambda chosen: classification(wanted[chosen], given[chosen], classes)[name]

        names = ("accuracy", "macro_f1", "matthews")
        metrics = {name: metric(name) for name in names} | {
            "calibration_error": lambda chosen: calibration_error(
                probabilities[chosen], wanted[chosen]
            )
        }
        whole = np.arange(len(wanted))
        scores = {name: round(one(whole), 4) for name, one in metrics.items()}
        samples = [
            f"{self.labels[given[i]]} ({probabilities[i, given[i]]:.0%}), wanted "
            f"{self.labels[wanted[i]]}: {example.text:.100}"
            for i, (_, example) in enumerate(examples[:3])
        ]
        table = confusion(wanted, given, classes).tolist()
        return Evaluation(
            scores, metrics, len(wanted), samples,
            details={"labels": self.labels, "confusion": table},
        )  # fmt: skip


def find_labels(counts: Counter[str], config: Config, files: Sequence[Path]) -> list[str]:
    """The classes of the training data, in the order of data.labels or of the alphabet."""
    names = " ".join(str(path) for path in files)
    declared = config.data.labels
    for label in declared:
        if not counts[label]:
            raise InputError(f"{names}: the class {label!r} of data.labels has no example")
    labels = declared or sorted(counts)
    if len(labels) == 1:
        raise InputError(f"{names}: only one class, {''.join(labels)!r}: at least two are needed")
    if wrong := wrong_labels(labels):
        raise InputError(f"{names}: {wrong}")
    return labels


def wrong_labels(labels: Sequence[object]) -> str:
    """The reason why these cannot be the labels of a model; empty if they are valid."""
    if not 2 <= len(labels) <= MOST_LABELS:
        return f"{len(labels):,} classes: the number must be from 2 to {MOST_LABELS:,}"
    if len(set(map(str, labels))) < len(labels):
        return "a label is duplicated"
    for label in labels:
        if not isinstance(label, str) or visible_line(label) != label or len(label) > LONGEST_LABEL:
            return (
                f"the label {label!r:.60} must be a string of at most {LONGEST_LABEL} characters "
                "without control characters"
            )
    return ""


def unseen(path: Path, line: int, label: str, labels: Sequence[str]) -> InputError:
    known = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
    return InputError(
        f"{path}:{line}: the label {label!r} was never seen in training (known: {known})"
    )
