"""A model from another toolkit that has been read but not yet written as a model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.config.model import ModelConfig
from regard.text.imported import ImportedTokenizer


@dataclass
class ImportedModel:
    """A model from another toolkit, described with the terms of regard.

    Attributes:
        format: the format of the source, for example "Hugging Face" or "GGUF".
        architecture: the name of the architecture in its own toolkit, for example "bert".
        task: the task of regard that the model performs.
        config: the architecture.
        tensors: the weights, with the names of `Transformer.state_dict()`.
        tokenizers: the source and target tokenizers; the same object twice if they share one.
        max_length: the largest number of tokens in an input, including special tokens.
        labels: the names of the classes of a classifier.
        temperature: the divisor of its logits.
        chat_template: the Jinja template of a conversation, if the model has one.
        decoding: options of the section `decoding`, for example {"beam": 6}.
        options: options of the original that regard ignores, for the model card.
        files: the files that were read.
    """

    format: str
    architecture: str
    task: str
    config: ModelConfig
    tensors: dict[str, Tensor]
    tokenizers: tuple[ImportedTokenizer, ImportedTokenizer]
    max_length: int
    labels: Sequence[str] = ()
    temperature: float = 1.0
    chat_template: str | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Path] = ()


class Oracle(Protocol):
    """Another runtime that runs the same model; proof.py compares regard with it.

    Two members are optional. `agreement` is the required fraction of equal greedy tokens.
    `tokenize_target(texts)` returns the token ids of texts in the target vocabulary, without
    special tokens; it is called if the model has two vocabularies.

    Attributes:
        name: the package of the runtime, for example "transformers".
        version: its version.
        tolerance: the largest difference between two logits that float32 rounding explains.
    """

    name: str
    version: str
    tolerance: float

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids that the model reads for each text, with the special tokens of its task
        (`proof.read_row`).

        Raises:
            NotCompared: the runtime cannot tokenise texts; the message is the reason.
        """
        ...

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[NDArray[np.floating[Any]]] | None:
        """For each row of token ids: the logits [T, V] of a decoder or of a masked language model,
        the class logits [C] of a classifier, the vector [D] of an encoder with pooling; for an
        encoder-decoder the logits [1, V] of the first token of the output. None if the runtime does
        not show them."""
        ...

    def generate(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]] | None:
        """For each row, the tokens of greedy decoding without the row itself and without the token
        that ends it, at most `steps` of them. None if the model has no decoder."""
        ...
