"""A stack of the Transformer: the embedding of its tokens, its layers, and its attention plans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import ops
from regard.config.model import ModelConfig
from regard.model.attention import (
    AttentionWeights,
    MultiHeadAttention,
    Plan,
    RotationFunction,
    SelfPlan,
)
from regard.model.block import Block, make_norm
from regard.model.cache import CachedMemory
from regard.model.positions import (
    LearnedPositions,
    Positions,
    Rotation,
    make_positions,
    sinusoids,
)
from regard.model.ssru import MixerPlan, StateRow


@dataclass(frozen=True)
class Plans:
    """The attention plans of a batch."""

    encoder: Plan | MixerPlan | None = None
    decoder: Plan | StateRow | None = None
    cross: Plan | None = None


class Stack(nn.Module):
    """An encoder or a decoder: the embedding of tokens, and the layers after it."""

    def __init__(self, config: ModelConfig, layers: int, cross: bool) -> None:
        super().__init__()
        self.config = config
        self.positions = make_positions(config)
        self.embedding_norm = make_norm(config) if config.embedding_norm else None
        self.layers = nn.ModuleList(Block(config, cross, i) for i in range(layers))
        # The output of pre-norm layers is not normalised, so the stack ends with a norm.
        self.final_norm = make_norm(config) if config.norm_first else None

    def embed(
        self, table: nn.Embedding, tokens: Tensor, positions: Tensor, rows: Tensor | None
    ) -> Tensor:
        """Sections 3.4 and 3.5: tokens[N], positions[N] -> [N, D].

        rows: the encodings of all positions (`rows_until`).
        """
        scale = math.sqrt(self.config.d_model) if self.config.scale_embeddings else 1.0
        dropout = self.config.dropout if self.training else 0.0
        return ops.embed(table, tokens, scale, rows, positions, dropout, self.embedding_norm)

    def position_rows(self, positions: Tensor) -> Tensor | None:
        """The encoding to add to the embeddings at positions[N], [N, D]; None: no encoding."""
        if isinstance(self.positions, LearnedPositions):
            return self.positions(positions)
        if isinstance(self.positions, Positions):
            return self.positions.rows(positions)
        if self.config.positions != "sinusoidal":
            return None
        return sinusoids(positions, self.config.d_model, self.config.position_base)

    def rows_until(self, length: int, device: torch.device) -> Tensor | None:
        """position_rows of at least the first `length` positions: each is computed once, not once
        for each token at that position."""
        if self.config.positions == "learned":
            length = min(length, self.config.max_length)
        return self.position_rows(torch.arange(length, device=device))

    def rotation(self, positions: Tensor) -> RotationFunction | None:
        """The function that changes queries and keys at positions[N]; None: no change."""
        own = self.positions
        if isinstance(own, Positions) and own.has("rotate"):
            return lambda x: own.rotate(x, positions)
        if self.config.positions != "rotary":
            return None
        return Rotation(positions, self.config.head_size, self.config.position_base)

    def forward(
        self, x: Tensor, positions: Tensor, plans: Sequence[SelfPlan | MixerPlan],
        memories: Sequence[Tensor | CachedMemory] | None = None, cross_plan: Plan | None = None,
        capture: AttentionWeights | None = None, cross_capture: AttentionWeights | None = None,
    ) -> Tensor:  # fmt: skip
        """x[N, D] -> [N, D]; a plan and a memory for each layer (the same, unless cached)."""
        rotation, own = self.rotation(positions), self.positions
        bias = own.bias if isinstance(own, Positions) and own.has("bias") else None
        for i, block in enumerate(self.layers):
            memory = memories[i] if memories else None
            x = block(x, plans[i], memory, cross_plan, rotation, capture, cross_capture, bias)
        return x if self.final_norm is None else ops.add_norm(x, None, self.final_norm)


def initialise(module: nn.Module) -> None:
    """Glorot for matrices, zero for biases; embeddings have unit size once they are scaled."""
    if isinstance(module, MultiHeadAttention):  # W^Q, W^K and W^V each as a matrix of its own
        sizes = module.width, *[module.key_value_heads * module.head_size] * 2
        for part in module.query_key_value.weight.data.split(sizes):
            nn.init.xavier_uniform_(part)
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
