"""Attention (section 3.2): Attention(Q, K, V) = softmax(Q K^T / sqrt(K)) V, over packed rows.

`reference` is the definition, readable and slow. The fast engines, `padded` (anywhere), `native`
(CPU, in C++) and `tiled` (GPU, in Triton), compute the same function and are held to it by tests,
forward and backward.

The one idea they share: in a packed row, what a query may see is always one run of keys, from
`first[n]` to `last[n]`. Full, causal, restricted, cross and cached attention differ only in
these two numbers, so there is no mask in any signature, and no query that sees nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from regard.config.model import ModelConfig
from regard.errors import InputError, unknown
from regard.model.cache import CachedMemory, CachedSelf, Reading
from regard.model.linear import Linear, product
from regard.model.positions import Rotation
from regard.ops.cpu import build as native
from regard.ops.cpu.attention import NativeLayout
from regard.ops.cuda import training as fused
from regard.ops.cuda.attention import Parts, TiledLayout
from regard.ops.padded import PaddedLayout
from regard.text.batching import positions_array

ENGINES = ("auto", "reference", "padded", "native", "tiled")
LAYOUTS: dict[str, type[PaddedLayout | NativeLayout | TiledLayout]] = {
    "padded": PaddedLayout,
    "native": NativeLayout,
    "tiled": TiledLayout,
}


@dataclass(frozen=True)
class Visibility:
    """What a query may see: the past only (`causal`), at most `window` positions away, or both.

    A query stands at the position of a key: the queries of a sequence are the last of its keys.
    So with a cache one new query sees all the keys before it. Full visibility needs no such
    order, which is what lets cross-attention use it.
    """

    causal: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise InputError(f"window must be at least 1, not {self.window}")

    @property
    def full(self) -> bool:
        return not self.causal and self.window is None

    def runs(self, queries: Sequence[int], keys: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The run of keys that each query sees, counted within its own sequence.

        queries, keys: lengths of the B sequences on both sides.
        Returns first[N] and last[N], both inclusive.
        """
        query_length, key_length = np.array(queries), np.array(keys)
        end = (key_length - 1).repeat(query_length)  # [N]: the last key there is
        if self.full:
            return torch.zeros(len(end), dtype=torch.long), torch.from_numpy(end)
        own = positions_array(queries) + (key_length - query_length).repeat(query_length)
        reach = self.window if self.window is not None else int(key_length.max())
        first = np.maximum(own - reach, 0)
        last = own if self.causal else np.minimum(own + reach, end)
        return torch.from_numpy(first), torch.from_numpy(last)

    def matrix(self, queries: int, keys: int | None = None) -> Tensor:
        """[queries, keys] booleans that a person can look at: True where a query sees a key."""
        keys = queries if keys is None else keys
        first, last = self.runs([queries], [keys])
        key = torch.arange(keys)
        return (first[:, None] <= key) & (key <= last[:, None])


def scaled_scores(query: Tensor, key: Tensor) -> Tensor:
    """Q K^T / sqrt(K) of one sequence: [n, H, K], [m, H, K] -> [H, n, m]."""
    scores = query.transpose(0, 1) @ key.permute(1, 2, 0)  # [H, n, m]
    return scores / math.sqrt(query.shape[-1])


def attention_weights(query: Tensor, key: Tensor, visibility: Visibility) -> Tensor:
    """How much each query of one sequence looks at each key: [H, n, m], rows sum to 1."""
    visible = visibility.matrix(len(query), len(key)).to(query.device)  # [n, m]
    return scaled_scores(query, key).masked_fill(~visible, -math.inf).softmax(dim=-1)


class Plan:
    """What one kind of attention (encoder, decoder, cross) of a batch needs to know beside
    queries, keys and values. Made once for a batch and shared by all its layers."""

    def __init__(
        self,
        query_lengths: Sequence[int],
        key_lengths: Sequence[int],
        visibility: Visibility,
        *,
        engine: str = "auto",
        device: torch.device | str = "cpu",
        dropout: float = 0.0,
    ) -> None:
        self.query_lengths, self.key_lengths = tuple(query_lengths), tuple(key_lengths)
        self.visibility, self.device, self.dropout = visibility, torch.device(device), dropout
        self.engine, self.asked = choose_engine(engine, self.device, dropout), engine
        if len(self.query_lengths) != len(self.key_lengths):
            raise InputError(
                f"queries have {len(self.query_lengths)} sequences and keys "
                f"{len(self.key_lengths)}: they must be the same sequences"
            )
        for b, (queries, keys) in enumerate(zip(self.query_lengths, self.key_lengths, strict=True)):
            if not visibility.full and queries > keys:
                raise InputError(
                    f"sequence {b} has {queries} queries but {keys} keys: only full visibility "
                    "allows that, since a query stands at the position of a key"
                )
        self.queries, self.keys = sum(self.query_lengths), sum(self.key_lengths)  # N, M
        self.layout: PaddedLayout | NativeLayout | TiledLayout | None = None
        if layout := LAYOUTS.get(self.engine):
            self.layout = layout(self.query_lengths, self.key_lengths, visibility, self.device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query[N, H, K], key[M, H, K], value[M, H, K] -> [N, H, K]."""
        if len(query) != self.queries or len(key) != self.keys or key.shape != value.shape:
            raise InputError(
                f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} "
                f"do not match offsets that end at {self.queries} queries and {self.keys} keys"
            )
        if query.shape[1:] != key.shape[1:]:
            raise InputError(
                f"query has (heads, head size) {tuple(query.shape[1:])} but key and value have "
                f"{tuple(key.shape[1:])}"
            )
        if self.layout is None:
            return self._reference(query, key, value)
        if self.engine == "tiled" and self.asked == "auto" and not TiledLayout.knows(query):
            lengths = self.query_lengths, self.key_lengths
            self.engine = "padded"
            self.layout = PaddedLayout(*lengths, self.visibility, self.device)
        return self.layout.attend(query, key, value, self.dropout)

    def weights(self, query: Tensor, key: Tensor) -> list[Tensor]:
        """The attention weights of each sequence, [H, n, m], whatever the engine is."""
        return [
            attention_weights(q, k, self.visibility)
            for q, k in zip(
                query.split(self.query_lengths), key.split(self.key_lengths), strict=True
            )
        ]

    def _reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The definition, one sequence after the other."""
        outputs = []
        values = value.split(self.key_lengths)
        for weights, v in zip(self.weights(query, key), values, strict=True):
            weights = nn.functional.dropout(weights, self.dropout)
            outputs.append((weights @ v.transpose(0, 1)).transpose(0, 1))  # [H, n, K] -> [n, H, K]
        return torch.cat(outputs)


def choose_engine(engine: str, device: torch.device, dropout: float) -> str:
    """`auto`: native on a CPU where it can be had, tiled for training on a GPU, padded
    elsewhere."""
    if engine not in ENGINES:
        raise unknown("attention engine", engine, ENGINES)
    if engine in ("native", "tiled") and dropout > 0:
        raise InputError(
            f"engine={engine} and attention_dropout={dropout} cannot be combined: it never holds "
            "the weights that would be dropped; use engine=padded"
        )
    if engine == "native" and (device.type != "cpu" or native.library("attention") is None):
        raise InputError("engine=native needs a CPU and a C++ compiler: use engine=padded or auto")
    if engine != "auto":
        return engine
    if dropout > 0:
        return "padded"
    if device.type == "cpu" and native.library("attention") is not None:
        return "native"
    trains = device.type == "cuda" and torch.is_grad_enabled() and fused.triton_is_there()
    return "tiled" if trains else "padded"


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    visibility: Visibility,
    *,
    engine: str = "auto",
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention of packed rows.

    query[N, H, K], key[M, H, K], value[M, H, K], offsets[B+1] on both sides -> [N, H, K].
    """
    queries, keys = query_offsets.diff().tolist(), key_offsets.diff().tolist()
    plan = Plan(queries, keys, visibility, engine=engine, device=query.device, dropout=dropout)
    return plan.attend(query, key, value)


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: H attentions side by side, each on its own K features.

    Self-attention takes queries, keys and values from the same row, cross-attention keys and
    values from the memory.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_size = config.heads, config.head_size
        self.width = self.heads * self.head_size  # H*K, which need not be D
        # W^Q, W^K and W^V of all heads in one matrix: one product instead of 3 H of them.
        self.query_key_value = Linear(config.d_model, 3 * self.width, bias=config.bias)
        self.output = Linear(self.width, config.d_model, bias=config.bias)  # W^O

    def forward(
        self,
        x: Tensor,
        plan: Plan | CachedSelf | Reading | None,
        memory: Tensor | CachedMemory | None = None,
        rotation: Rotation | None = None,
        captured: list[list[Tensor]] | None = None,
    ) -> Tensor:
        """x[N, D], memory[M, D] for cross-attention -> [N, D]."""
        if memory is None:
            query, key, value = self._heads(self.query_key_value(x), 3)
        else:
            query = self._heads(self._project(x, slice(None, self.width)), 1)[0]
            if isinstance(memory, CachedMemory):  # its keys and values are there already
                return self.output(memory.attend(query).flatten(1))
            key, value = self.project_memory(memory)
        if rotation is not None:
            query, key = rotation(query), rotation(key)
        assert plan is not None
        if captured is not None:  # beside the fast path, so that looking changes nothing
            assert not isinstance(plan, CachedSelf | Reading)  # only the full pass is watched
            captured.append(plan.weights(query.detach(), key.detach()))
        return self.output(plan.attend(query, key, value).flatten(1))  # [N, H*K] -> [N, D]

    def project_memory(self, memory: Tensor) -> tuple[Tensor, ...]:
        """memory[M, D] -> key and value, [M, H, K] each."""
        return self._heads(self._project(memory, slice(self.width, None)), 2)

    def _project(self, x: Tensor, rows: slice) -> Tensor:
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        return product(x, weight[rows], None if bias is None else bias[rows])

    def _heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """[N, parts*H*K] -> as many tensors [N, H, K]."""
        if torch.is_grad_enabled():
            return Parts.apply(x, parts, self.heads)
        return x.view(len(x), parts, self.heads, self.head_size).unbind(1)
