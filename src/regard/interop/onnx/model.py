"""The Transformer as ONNX graphs: an encoder, and a decoder that reads tokens after a cache.

Padding can be on either side: a mask marks the real tokens, and the position of a token is the
number of real tokens before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from regard.config.model import ModelConfig
from regard.interop.onnx.graph import HIDDEN, Graph
from regard.interop.runtime_files import Array


@dataclass
class Tokens:
    """The tokens that a stack reads in one call, and the keys that they attend to.

    Attributes:
        ids: [B, T].
        mask: [B, S], 1 for real tokens, in float32.
        positions: [B, T].
        bias: [B, 1, T, S], added to the scores of self-attention.
        rotation: the sines and cosines of rotary positions, [B, 1, T, K/2] each.
        past: for each layer, the names of the cached keys and values; empty if there are none.
        present: receives the keys and values of all tokens of each layer.
        memory: for each layer, the keys and values of the source.
        memory_bias: [B, 1, 1, S], added to the scores of cross-attention.
    """

    ids: str
    mask: str
    positions: str
    bias: str
    rotation: tuple[str, str] | None = None
    past: list[tuple[str, str]] = field(default_factory=list)
    present: list[tuple[str, str]] = field(default_factory=list)
    memory: list[tuple[str, str]] = field(default_factory=list)
    memory_bias: str | None = None


class Builder:
    """Adds the parts of a model to a graph.

    Args:
        graph: the graph.
        config: the architecture.
        weights: the weights, with the names of `Transformer.state_dict()`.
    """

    def __init__(self, graph: Graph, config: ModelConfig, weights: Mapping[str, Array]) -> None:
        self.graph, self.config, self.weights = graph, config, weights
        # Rotary positions rotate the pairs (0, 1), (2, 3), ... of the features of a head. Here the
        # first elements of all pairs come first, so a rotation needs no interleaving. This does not
        # change the product of a query and a key.
        pairs = np.arange(config.head_size).reshape(-1, 2).T.reshape(-1)
        rotated = config.heads + config.key_value_heads
        self.order = (np.arange(rotated)[:, None] * config.head_size + pairs).reshape(-1)

    # ---- inputs -------------------------------------------------------------------------------

    def tokens(self, ids: str, mask: str, causal: bool, past: str | None = None) -> Tokens:
        """Prepare ids[B, T] and mask[B, S]; past: the cached keys of the first layer."""
        graph, config = self.graph, self.config
        count = graph.size(ids, 1)  # T
        counts = graph.add("CumSum", mask, graph.constant("axis", np.array(1, np.int64)))
        all_positions = graph.add(
            "Max", graph.add("Sub", counts, graph.integers(1)), graph.integers(0)
        )  # [B, S]
        real = graph.add("Cast", mask, to=9)  # to bool
        visible = graph.add("Unsqueeze", real, graph.integers(1))  # [B, 1, S]
        positions, before = all_positions, graph.integers(0)
        if past is not None:
            before = graph.size(past, 2)  # P
            end = graph.add("Add", before, count)
            positions = graph.add("Slice", all_positions, before, end, graph.integers(1))
        if causal:
            keys = graph.range(graph.integers(0), graph.add("Add", before, count))
            queries = graph.range(before, graph.add("Add", before, count))
            seen = graph.add(
                "LessOrEqual", keys, graph.add("Unsqueeze", queries, graph.integers(1))
            )
            visible = graph.add("And", visible, seen)  # [B, T, S]
        if config.window is not None:
            distance = graph.add(
                "Sub", graph.add("Unsqueeze", positions, graph.integers(2)),
                graph.add("Unsqueeze", all_positions, graph.integers(1)),
            )  # fmt: skip
            near = graph.add(
                "LessOrEqual", graph.add("Abs", distance), graph.integers(config.window)
            )
            visible = graph.add("And", visible, near)
        rotation = None
        if config.positions == "rotary":
            sine, cosine = graph.angles(positions, config.head_size, config.position_base)
            axis = graph.integers(1)
            rotation = graph.add("Unsqueeze", sine, axis), graph.add("Unsqueeze", cosine, axis)
        numbers = graph.add("Cast", mask, to=1)  # to float32
        return Tokens(ids, numbers, positions, self.bias(visible), rotation)

    def bias(self, visible: str) -> str:
        """[B, T, S] booleans -> [B, 1, T, S]: 0 where a query may attend to a key."""
        graph = self.graph
        bias = graph.add("Where", visible, graph.number(0.0), graph.number(HIDDEN))
        return graph.add("Unsqueeze", bias, graph.integers(1))

    def memory_bias(self, mask: str) -> str:
        """The mask[B, S] of the source -> [B, 1, 1, S]."""
        graph = self.graph
        real = graph.add("Unsqueeze", graph.add("Cast", mask, to=9), graph.integers(1))
        return self.bias(real)

    # ---- stacks -------------------------------------------------------------------------------

    def stack(self, stack: str, tokens: Tokens) -> str:
        """The output of the last layer of the encoder or the decoder: [B, T, D]."""
        config = self.config
        x = self.embed(stack, tokens)
        layers = config.encoder_layers if stack == "encoder" else config.decoder_layers
        for number in range(layers):
            name = f"{stack}.layers.{number}"
            norm = f"{name}.self_attention_norm.norm"
            y = self.self_attention(self.before(x, norm), f"{name}.self_attention", tokens, number)
            x = self.after(x, y, norm)
            if tokens.memory:
                norm = f"{name}.cross_attention_norm.norm"
                y = self.cross_attention(
                    self.before(x, norm), f"{name}.cross_attention", tokens, number
                )
                x = self.after(x, y, norm)
            norm = f"{name}.feed_forward_norm.norm"
            y = self.feed_forward(self.before(x, norm), f"{name}.feed_forward")
            x = self.after(x, y, norm)
        return self.norm(x, f"{stack}.final_norm") if config.norm_first else x

    def before(self, x: str, norm: str) -> str:
        """The input of a sub-layer."""
        return self.norm(x, norm) if self.config.norm_first else x

    def after(self, x: str, y: str, norm: str) -> str:
        """The output of a sub-layer y with its residual connection."""
        x = self.graph.add("Add", x, y)
        return x if self.config.norm_first else self.norm(x, norm)

    def norm(self, x: str, name: str) -> str:
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        return self.graph.norm(x, name, weight, bias, self.config.norm_epsilon)

    def linear(self, x: str, name: str, rows: slice | None = None, part: str = "") -> str:
        """A linear layer, or some rows of it; part: the name of these rows."""
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if rows is not None:
            weight, bias = weight[rows], None if bias is None else bias[rows]
        return self.graph.linear(x, name + part, weight, bias)

    def table(self, side: str) -> str:
        """The embedding table of a side, [V, D]."""
        name = "embeddings.shared.weight"
        name = name if name in self.weights else f"embeddings.{side}.weight"
        return self.graph.constant(name, self.weights[name])

    def embed(self, stack: str, tokens: Tokens) -> str:
        """The sum of embedding and position: [B, T, D]."""
        graph, config = self.graph, self.config
        table = self.table("source" if stack == "encoder" else "target")
        x = graph.add("Gather", table, tokens.ids)
        if config.scale_embeddings:
            x = graph.add("Mul", x, graph.number(math.sqrt(config.d_model)))
        if config.positions == "learned":
            name = f"{stack}.positions.weight"
            rows = graph.constant(name, self.weights[name])
            x = graph.add("Add", x, graph.add("Gather", rows, tokens.positions))
        elif config.positions == "sinusoidal":
            parts = graph.angles(tokens.positions, config.d_model, config.position_base)
            pairs = [graph.add("Unsqueeze", part, graph.integers(-1)) for part in parts]
            encoding = graph.reshape(graph.add("Concat", *pairs, axis=-1), 0, 0, config.d_model)
            x = graph.add("Add", x, encoding)
        return self.norm(x, f"{stack}.embedding_norm") if config.embedding_norm else x

    def feed_forward(self, x: str, name: str) -> str:
        graph, config = self.graph, self.config
        inner = self.linear(x, f"{name}.inner")
        if config.activation == "swiglu":
            gate, rest = graph.split(inner, [config.d_ff, config.d_ff])
            inner = graph.add("Mul", graph.activation(gate, "silu"), rest)
        else:
            inner = graph.activation(inner, config.activation)
        return self.linear(inner, f"{name}.outer")

    # ---- attention ----------------------------------------------------------------------------

    def self_attention(self, x: str, name: str, tokens: Tokens, layer: int) -> str:
        graph, config = self.graph, self.config
        size, shared = config.head_size, config.key_value_heads
        projection = f"{name}.query_key_value"
        weight, bias = self.weights[f"{projection}.weight"], self.weights.get(f"{projection}.bias")
        if tokens.rotation is not None:
            order = np.concatenate([self.order, np.arange(len(self.order), len(weight))])
            weight, bias = weight[order], None if bias is None else bias[order]
        parts = graph.split(
            graph.linear(x, projection, weight, bias),
            [config.heads * size, shared * size, shared * size],
        )
        heads = (config.heads, shared, shared)
        query, key, value = (
            graph.heads(part, count, size) for part, count in zip(parts, heads, strict=True)
        )
        if tokens.rotation is not None:
            query, key = self.rotate(query, tokens.rotation), self.rotate(key, tokens.rotation)
        if tokens.past:
            old_key, old_value = tokens.past[layer]
            key = graph.add("Concat", old_key, key, axis=2)  # [B, G, S, K]
            value = graph.add("Concat", old_value, value, axis=2)
        tokens.present.append((key, value))
        return self.linear(self.attend(query, key, value, tokens.bias), f"{name}.output")

    def cross_attention(self, x: str, name: str, tokens: Tokens, layer: int) -> str:
        graph, config = self.graph, self.config
        queries = config.heads * config.head_size
        query = self.linear(x, f"{name}.query_key_value", slice(queries), ".query")
        query = graph.heads(query, config.heads, config.head_size)
        assert tokens.memory_bias is not None
        attended = self.attend(query, *tokens.memory[layer], tokens.memory_bias)
        return self.linear(attended, f"{name}.output")

    def project_memory(self, memory: str, layer: int) -> tuple[str, str]:
        """The keys and values of the source for a layer of the decoder: [B, G, S, K] each."""
        graph, config = self.graph, self.config
        queries, shared = config.heads * config.head_size, config.key_value_heads
        name = f"decoder.layers.{layer}.cross_attention.query_key_value"
        both = self.linear(memory, name, slice(queries, None), ".memory")
        key, value = graph.split(both, [shared * config.head_size] * 2)
        size = config.head_size
        return graph.heads(key, shared, size), graph.heads(value, shared, size)

    def rotate(self, x: str, rotation: tuple[str, str]) -> str:
        """Rotary positions: [B, H, T, K] -> [B, H, T, K]."""
        graph, (sine, cosine) = self.graph, rotation
        first, second = graph.split(x, [self.config.head_size // 2] * 2)
        turned = (
            graph.add("Sub", graph.add("Mul", first, cosine), graph.add("Mul", second, sine)),
            graph.add("Add", graph.add("Mul", first, sine), graph.add("Mul", second, cosine)),
        )
        return graph.add("Concat", *turned, axis=-1)

    def attend(self, query: str, key: str, value: str, bias: str) -> str:
        """query[B, H, T, K], key and value[B, G, S, K], bias[B, 1, T or 1, S] -> [B, T, H K]."""
        graph, config = self.graph, self.config
        size, shared = config.head_size, config.key_value_heads
        query = graph.add("Mul", query, graph.number(1 / math.sqrt(size)))
        grouped = shared != config.heads
        if grouped:  # each key belongs to H / G queries: [B, G, H / G, T, K] and [B, G, 1, S, K]
            query = graph.reshape(query, 0, shared, config.heads // shared, -1, size)
            key, value, bias = (
                graph.add("Unsqueeze", x, graph.integers(2)) for x in (key, value, bias)
            )
        last = list(range(5 if grouped else 4))
        last[-2:] = reversed(last[-2:])
        scores = graph.add("MatMul", query, graph.add("Transpose", key, perm=last))
        weights = graph.add("Softmax", graph.add("Add", scores, bias), axis=-1)
        attended = graph.add("MatMul", weights, value)
        if grouped:
            attended = graph.reshape(attended, 0, config.heads, -1, size)
        rows = graph.add("Transpose", attended, perm=[0, 2, 1, 3])  # [B, T, H, K]
        return graph.reshape(rows, 0, 0, config.heads * size)

    # ---- heads --------------------------------------------------------------------------------

    def word_logits(self, hidden: str) -> str:
        """The logits of head=language-model and head=masked-language-model: [B, T, V]."""
        graph, config = self.graph, self.config
        if config.head == "masked-language-model":
            hidden = graph.activation(self.linear(hidden, "head.transform"), "gelu")
            hidden = self.norm(hidden, "head.norm")
        name = "head.output.weight"
        own = self.weights.get(name)
        matrix = self.table("target") if own is None else graph.constant(name, own)
        bias = self.weights.get("head.bias")
        added = None if bias is None else graph.constant("head.bias", bias)
        return graph.logits(hidden, matrix, added, config.d_model, config.vocabulary_size)

    def class_logits(self, hidden: str, tokens: Tokens) -> str:
        """The logits of head=classifier: [B, C]."""
        first = self.linear(self.pool(hidden, tokens, "cls"), "head.transform")
        first = self.graph.activation(first, self.config.classifier_activation)
        return self.linear(first, "head.classes")

    def vector(self, hidden: str, tokens: Tokens) -> str:
        """The unit-length vector of head=pooling: [B, D]."""
        graph = self.graph
        pooled = self.pool(hidden, tokens, self.config.pooling)
        length = graph.add("ReduceL2", pooled, axes=[-1], keepdims=1)
        return graph.add("Div", pooled, graph.add("Max", length, graph.number(1e-12)))

    def pool(self, hidden: str, tokens: Tokens, how: str) -> str:
        """hidden[B, T, D] -> [B, D]: the mean of the real tokens, the first or the last one."""
        graph = self.graph
        if how == "mean":
            mask = graph.add("Unsqueeze", tokens.mask, graph.integers(-1))
            total = graph.add(
                "ReduceSum", graph.add("Mul", hidden, mask), graph.integers(1), keepdims=0
            )
            return graph.add(
                "Div", total, graph.add("ReduceSum", mask, graph.integers(1), keepdims=0)
            )
        place = graph.add("ArgMax", tokens.mask, axis=1, select_last_index=int(how == "last"))
        return graph.add("GatherND", hidden, place, batch_dims=1)
