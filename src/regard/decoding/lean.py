"""A decoding step on a CPU without modules: the same function as Transformer.step.

For a small model and few rows, calling modules and looking at tensors costs more than the
arithmetic. Here the weights are taken out of the modules once for a search, and rows stay in the
form in which the products give them: W xᵀ is [features, rows], and that is what the next product
wants (model/linear.py says why). Only norms and attention want [rows, features].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.model.block import EPSILON
from regard.model.cache import Cache, Step
from regard.model.config import ModelConfig
from regard.model.linear import FEW_ROWS, ColumnProduct, column_product
from regard.model.transformer import Transformer

Norm = Callable[[Tensor], Tensor]  # rows [N, D] -> [N, D]


@dataclass(frozen=True)
class Layer:
    """What a decoder layer does, as functions."""

    self_norm: Norm
    query_key_value: ColumnProduct
    self_output: ColumnProduct
    cross_norm: Norm | None
    query: ColumnProduct | None
    cross_output: ColumnProduct | None
    feed_norm: Norm
    inner: ColumnProduct
    outer: ColumnProduct


class LeanStep:
    """Call it with tokens[B, W] and parents as Transformer.step: logits[B, W, V]."""

    def __init__(self, model: Transformer, cache: Cache) -> None:
        assert model.decoder is not None
        self.config, self.cache, self.model = model.config, cache, model
        self.rows = 0  # for which the products are made
        self.scale = self.config.d_model**0.5 if self.config.scale_embeddings else 1.0
        self.layers: list[Layer] = []

    @staticmethod
    def can(model: Transformer) -> bool:
        """Is this a model that it knows, on a CPU?"""
        config = model.config
        plain = config.positions != "rotary" and not config.embedding_norm
        return plain and model.output_matrix().device.type == "cpu"

    def _bind(self, rows: int) -> None:
        """Make the products for so many rows."""
        model, decoder = self.model, self.model.decoder
        assert decoder is not None
        self.rows, self.layers = rows, []
        for block in decoder.layers:
            parts: Any = block
            own, cross, feed = parts.self_attention, parts.cross_attention, parts.feed_forward
            self.layers.append(Layer(
                norm_of(parts.self_attention_norm.norm, self.config),
                product_of(own.query_key_value, rows), product_of(own.output, rows),
                None if cross is None else norm_of(parts.cross_attention_norm.norm, self.config),
                None if cross is None else product_of(cross.query_key_value, rows, own.width),
                None if cross is None else product_of(cross.output, rows),
                norm_of(parts.feed_forward_norm.norm, self.config),
                product_of(feed.inner, rows), product_of(feed.outer, rows),
            ))  # fmt: skip
        final = decoder.final_norm
        self.final_norm = None if final is None else norm_of(final, self.config)
        # Logits must be turned over in the end, which from some number of rows on does not pay.
        matrix = model.output_matrix().detach()
        columns = column_product(matrix, None, rows)
        self.logits: Norm = lambda x: F.linear(x, matrix)
        if rows <= 2 * FEW_ROWS:
            self.logits = lambda x: columns(x.t()).t().contiguous()

    @torch.no_grad()
    def __call__(self, tokens: Tensor, parents: Tensor | None) -> Tensor:
        cache, config = self.cache, self.config
        if tokens.numel() != self.rows:
            self._bind(tokens.numel())
        step = Step(cache, parents, cache.used + cache.width)
        x = F.embedding(tokens.flatten(), self.model.table("target").weight) * self.scale
        if cache.position_rows is not None:
            positions = cache.positions
            if config.positions == "learned":  # a sentence that is done may be past the table
                positions = positions.clamp(max=config.max_length - 1)
            place = cache.position_rows[positions].to(x.dtype)  # [B, D]
            x = (x.view(*tokens.shape, -1) + place[:, None]).flatten(0, 1)
        first = config.norm_first
        for i, layer in enumerate(self.layers):
            y = layer.self_norm(x) if first else x
            x = x + layer.self_output(self._self(layer.query_key_value(y.t()), i, step)).t()
            x = x if first else layer.self_norm(x)
            if layer.query is not None and layer.cross_norm and layer.cross_output:
                y = layer.cross_norm(x) if first else x
                x = x + layer.cross_output(self._cross(layer.query(y.t()), i)).t()
                x = x if first else layer.cross_norm(x)
            y = layer.feed_norm(x) if first else x
            x = x + layer.outer(self._activate(layer.inner(y.t()))).t()
            x = x if first else layer.feed_norm(x)
        if self.final_norm is not None:
            x = self.final_norm(x)
        cache.positions += 1
        cache.next += cache.width
        cache.used += cache.width
        return self.logits(x).view(*tokens.shape, -1)

    def _self(self, new: Tensor, i: int, step: Step) -> Tensor:
        """Queries, keys and values of the new tokens, [3*H*K, N]: keep the keys and values."""
        cache = self.cache
        new = new.view(3, self.config.heads, -1, *cache.visible.shape[:2])
        new = new.permute(0, 3, 1, 4, 2)  # [3, B, H, W, K]
        cache.slots_of[i].narrow(3, cache.used, cache.width).copy_(new[1:])
        keys, values = (x[i].narrow(2, 0, step.seen) for x in (cache.keys, cache.values))
        return self._attend(new[0], keys, values, step.mask)

    def _cross(self, query: Tensor, i: int) -> Tensor:
        query = query.view(self.config.heads, -1, *self.cache.visible.shape[:2])
        return self._attend(
            query.permute(2, 0, 3, 1), *self.cache.memory[i], self.cache.memory_mask
        )

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """query[B, H, W, K] -> columns [H*K, B*W]."""
        looking = query.to(key.dtype).contiguous()  # the cache may be float32 where the rest is not
        output = F.scaled_dot_product_attention(looking, key, value, mask)
        return output.transpose(1, 2).reshape(self.rows, -1).to(query.dtype).t()

    def _activate(self, x: Tensor) -> Tensor:
        if self.config.activation == "swiglu":
            gate, x = x.chunk(2)
            return F.silu(gate) * x
        return x.relu_() if self.config.activation == "relu" else F.gelu(x)


def product_of(layer: Any, rows: int, first: int | None = None) -> ColumnProduct:
    """A linear layer, or the first rows of its matrix."""
    bias = None if layer.bias is None else layer.bias.detach()[:first]
    return column_product(layer.weight.detach()[:first], bias, rows)


def norm_of(norm: Any, config: ModelConfig) -> Norm:
    shape, weight = (config.d_model,), norm.weight.detach()
    if config.norm == "rms":
        return lambda x: torch.rms_norm(x, shape, weight, EPSILON)
    bias = norm.bias.detach()
    return lambda x: torch.layer_norm(x, shape, weight, bias, EPSILON)
