"""The heads of the Transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.config.model import ModelConfig
from regard.model.block import make_norm
from regard.model.linear import Linear
from regard.text.batching import Packed


class Head(nn.Module):
    """From the last layer's output to logits, classes or one vector for each sequence."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, self.pooling, self.dropout = config.head, config.pooling, config.dropout
        d_model, size = config.d_model, config.vocabulary_size
        tied = config.tie_embeddings in ("all", "target-output")
        words = config.head in ("language-model", "masked-language-model")
        self.bias: nn.Parameter | None = None
        self.output = Linear(d_model, size, bias=False) if words and not tied else None
        if config.head == "masked-language-model":  # as in BERT: one more layer, and a bias
            self.transform = Linear(d_model, d_model)
            self.norm = make_norm(config)
            self.bias = nn.Parameter(torch.zeros(size))
        elif config.output_bias:
            self.bias = nn.Parameter(torch.zeros(size))
        elif config.head == "classifier":
            assert config.classes is not None
            self.activation = config.classifier_activation
            self.transform = Linear(d_model, d_model)
            self.classes = Linear(d_model, config.classes)

    def forward(self, hidden: Tensor, row: Packed | None, matrix: Tensor) -> Tensor:
        """hidden[N, D] -> [N, V] logits, [B, classes], or [B, D].

        Args:
            hidden: the last layer's output, or some rows of it if the head predicts tokens.
            row: the tokens of `hidden`; a head that predicts tokens does not need it.
            matrix: `Transformer.output_matrix()`, used if the head has no matrix of its own.
        """
        if self.kind in ("pooling", "classifier"):
            assert row is not None
            return self.sequences(hidden, row)
        words = self.words(hidden)
        if self.output is None:
            return ops.linear(words, matrix, self.bias)  # [N, V]
        logits = self.output(words)
        return logits if self.bias is None else logits + self.bias

    def sequences(self, hidden: Tensor, row: Packed) -> Tensor:
        """The output for each sequence: [B, D] vectors or [B, classes] logits."""
        if self.kind == "pooling":
            return pool(hidden, row, self.pooling)
        first = self.transform(pool(hidden, row, "cls"))  # [B, D]
        first = first.tanh() if self.activation == "tanh" else first.relu()
        return self.classes(F.dropout(first, self.dropout, self.training))

    def words(self, hidden: Tensor) -> Tensor:
        """The vectors that the output matrix turns into logits: [N, D]."""
        if self.kind != "masked-language-model":
            return hidden
        return self.norm(F.gelu(self.transform(hidden)))


def pool(hidden: Tensor, row: Packed, how: str) -> Tensor:
    """One vector for each sequence: hidden[N, D] -> [B, D]."""
    if how == "mean":
        return ops.segment_means(hidden, row.offsets.diff())
    return hidden[row.offsets[:-1] if how == "cls" else row.offsets[1:] - 1]
