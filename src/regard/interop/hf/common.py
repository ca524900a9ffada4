"""What the readers of Hugging Face architectures share: options, names and the order of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.interop.hf.names import Names
from regard.interop.tensors import Conversion, TensorReader

ACTIVATIONS = {
    "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
LARGEST = 10**12  # of an integer in config.json


@dataclass(frozen=True)
class Source:
    """The options of a model.

    Attributes:
        path: config.json, for error messages.
        values: the options of config.json.
        generation: the options of generation_config.json.
        pooling: the pooling of the sentence-transformers files, or None if there are none.
    """

    path: Path
    values: Mapping[str, Any]
    generation: Mapping[str, Any] = field(default_factory=dict)
    pooling: str | None = None

    @property
    def architecture(self) -> str:
        """The name of the class, for example "BertForMaskedLM"; empty if config.json has none."""
        names = self.values.get("architectures") or [""]
        if not isinstance(names, list) or not isinstance(names[0], str):
            raise self.error(f"architectures={names!r:.60} is not a list of names")
        return names[0]

    def error(self, message: str) -> InputError:
        return InputError(f"{self.path}: {message}")

    def integer(self, name: str, default: int | None = None) -> int:
        """A number of config.json; an error if it is missing and has no default."""
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise self.error(f"{name} is missing")
        if type(value) is not int or not 0 <= value <= LARGEST:
            raise self.error(f"{name}={value!r:.40} is not an integer from 0 to {LARGEST:,}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{name}={value!r:.40} is not a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(f"{name}={value!r:.40} is neither true nor false")
        return value

    def token(self, name: str) -> int:
        """A token id of generation_config.json or config.json, the first one if it is a list; -1 if
        there is none."""
        for values in (self.generation, self.values):
            value = values.get(name)
            value = value[0] if isinstance(value, list) and value else value
            if type(value) is int:
                return value
        return -1

    def activation(self, name: str, default: str) -> str:
        value = self.values.get(name) or default
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.error(
                f"{name}={value!r:.40} cannot be imported: regard supports {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[value]

    def dropout_note(self, name: str, default: float, used: float) -> dict[str, str]:
        """A note for the model card if regard trains with another dropout than an option states.

        Args:
            name: the option.
            default: its value if it is missing.
            used: the dropout of regard in the same place.
        """
        value = self.number(name, default)
        return {} if value == used else {name: f"{value:g}: regard uses {used:g} in training"}

    def refuse(self, **defaults: Any) -> None:
        """Raise an InputError for options that regard cannot express.

        Args:
            **defaults: the values that regard can express; a missing or null option has this value.
        """
        for name, default in defaults.items():
            value = self.values.get(name)
            if value is not None and value != default:
                raise self.error(
                    f"{name}={value!r:.60} cannot be imported: regard does not support this value"
                )

    def model(self, **values: Any) -> ModelConfig:
        """The configuration of the model; an error names config.json."""
        try:
            return ModelConfig(**values)
        except InputError as error:
            raise self.error(f"this model cannot be imported: {error}") from None


@dataclass(frozen=True)
class Recipe:
    """How a Hugging Face model becomes a regard model; see `ImportedModel`.

    Attributes:
        conversion: computes the tensors.
        ignored: regular expressions of tensors that the model does not need.
        start: the first token that the decoder of an encoder-decoder reads.
        target: the tokens with which every output begins.
    """

    task: str
    config: ModelConfig
    conversion: Conversion
    max_length: int
    ignored: Sequence[str] = ()
    labels: Sequence[str] = ()
    start: int = -1
    target: tuple[int, ...] = ()
    decoding: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def interleave(x: Tensor, dim: int, groups: int = 1) -> Tensor:
    """Reorder features [first halves, second halves] as pairs, in each of the groups.

    Feature i and feature i + n/2 of a group of n become features 2i and 2i + 1. This converts
    rotary positions that rotate halves, with a group for each head, and sinusoids that have all
    sines before all cosines.
    """
    split = x.unflatten(dim, (groups, 2, -1)).transpose(dim + 1, dim + 2)
    return split.flatten(dim, dim + 2)


class Builder:
    """Collects the tensors of regard.

    Args:
        reader: reads tensors from the source.
        config: the model.
        features: reorders the features of the model along a dimension, if their order differs.
        biases: which matrices have biases in the source, by kind: "attention", "output",
            "feed-forward". The others become zeros if the model has them.
    """

    def __init__(
        self, reader: TensorReader, config: ModelConfig,
        features: Callable[[Tensor, int], Tensor] | None = None,
        biases: Sequence[str] = ("attention", "output", "feed-forward"),
    ) -> None:  # fmt: skip
        self.reader, self.config, self.biases = reader, config, biases
        self.features = features or (lambda x, dim: x)
        self.tensors: dict[str, Tensor] = {}

    def table(self, target: str, source: str, rows: int) -> Tensor:
        """An embedding or an output matrix: [rows, D]."""
        x = self.features(self.reader(f"{source}.weight", rows, self.config.d_model), 1)
        self.tensors[f"{target}.weight"] = x
        return x

    def norm(self, target: str, source: str) -> None:
        for name in ("weight", "bias") if self.config.norm == "layer" else ("weight",):
            x = self.reader(f"{source}.{name}", self.config.d_model)
            self.tensors[f"{target}.{name}"] = self.features(x, 0)

    def linear(self, target: str, source: str, outputs: int) -> None:
        """A matrix of a head, D -> outputs, with its bias."""
        self.tensors[f"{target}.weight"] = self.reader(
            f"{source}.weight", outputs, self.config.d_model
        )
        self.tensors[f"{target}.bias"] = self.reader(f"{source}.bias", outputs)

    def attention(self, target: str, source: str, names: Names, rotary: bool = False) -> None:
        """The projections of self-attention or cross-attention."""
        c, d = self.config, self.config.d_model
        weights, biases = [], []
        parts = (
            (names.query, c.heads),
            (names.key, c.key_value_heads),
            (names.value, c.key_value_heads),
        )
        for i, (name, heads) in enumerate(parts):
            size = heads * c.head_size
            own = [self.features(self.reader(f"{source}{name}.weight", size, d), 1)]
            if c.query_key_value_bias:
                own.append(self._bias(f"{source}{name}", size, "attention"))
            if rotary and i < 2:
                own = [interleave(x, 0, heads) for x in own]
            weights.append(own[0])
            biases += own[1:]
        self.tensors[f"{target}.query_key_value.weight"] = torch.cat(weights)
        if biases:
            self.tensors[f"{target}.query_key_value.bias"] = torch.cat(biases)
        width = c.heads * c.head_size
        self._back(f"{target}.output", f"{source}{names.output}", width, "output")

    def feed_forward(self, target: str, source: str, names: Names) -> None:
        c = self.config
        matrices = [
            self.reader(f"{source}{name}.weight", c.d_ff, c.d_model) for name in names.inner
        ]
        self.tensors[f"{target}.inner.weight"] = self.features(torch.cat(matrices), 1)
        if c.bias:
            biases = [self._bias(f"{source}{name}", c.d_ff, "feed-forward") for name in names.inner]
            self.tensors[f"{target}.inner.bias"] = torch.cat(biases)
        self._back(f"{target}.outer", f"{source}{names.outer}", c.d_ff, "feed-forward")

    def _back(self, target: str, source: str, inputs: int, kind: str) -> None:
        """A matrix whose outputs are added to the features of the model."""
        d = self.config.d_model
        self.tensors[f"{target}.weight"] = self.features(
            self.reader(f"{source}.weight", d, inputs), 0
        )
        if self.config.bias:
            self.tensors[f"{target}.bias"] = self.features(self._bias(source, d, kind), 0)

    def _bias(self, source: str, size: int, kind: str) -> Tensor:
        return self.reader(f"{source}.bias", size) if kind in self.biases else torch.zeros(size)

    def layer(self, target: str, source: str, names: Names, rotary: bool = False) -> None:
        """All tensors of a layer; each prefix ends with a dot if the names need one."""
        self.attention(f"{target}.self_attention", source, names, rotary)
        self.norm(f"{target}.self_attention_norm.norm", source + names.attention_norm)
        if names.cross:
            self.attention(f"{target}.cross_attention", source, names.of_cross_attention())
            self.norm(f"{target}.cross_attention_norm.norm", source + names.cross_norm)
        self.feed_forward(f"{target}.feed_forward", source, names)
        self.norm(f"{target}.feed_forward_norm.norm", source + names.norm)


def read_labels(source: Source) -> list[str]:
    """The names of the classes, from id2label.

    Raises:
        InputError: the classes are not numbered from 0, or there are fewer than two.
    """
    source.refuse(problem_type="single_label_classification")
    table = source.values.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(table, dict) or not all(
        isinstance(name, str) and str(i) in table for i, name in enumerate(table.values())
    ):
        raise source.error("id2label does not number the classes from 0")
    labels = [str(table[str(i)]) for i in range(len(table))]
    if len(labels) < 2:
        raise source.error("a classifier with one output (a regression) is not supported")
    if len(set(labels)) < len(labels):
        raise source.error("id2label has duplicate names")
    return labels
