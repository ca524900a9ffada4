"""Attention (section 3.2): Attention(Q, K, V) = softmax(Q K^T / sqrt(K)) V, over packed rows.

ops/reference.py defines it; ops/attention.py chooses between the definition and faster backends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard import ops
from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.model.cache import CachedMemory, CachedSelf, Reading
from regard.model.linear import LINEAR, Linear
from regard.model.positions import Rotation
from regard.model.visibility import Visibility
from regard.ops.overrides import global_hook
from regard.ops.reference import attention_weights

AttentionWeights = list[list[Tensor]]  # layer, sequence -> [H, n, m]


class Plan:
    """What one kind of attention (encoder, decoder, cross) of a batch needs besides queries, keys
    and values. Made once for a batch and shared by all its layers.

    backend: the attention backend, one of ops.ATTENTION_BACKENDS.
    """

    def __init__(
        self, query_lengths: Sequence[int], key_lengths: Sequence[int], visibility: Visibility, *,
        backend: str = "auto", device: torch.device | str = "cpu", dropout: float = 0.0,
    ) -> None:  # fmt: skip
        self.query_lengths, self.key_lengths = tuple(query_lengths), tuple(key_lengths)
        self.visibility, self.device = visibility, torch.device(device)
        if len(self.query_lengths) != len(self.key_lengths):
            raise InputError(
                f"queries have {len(self.query_lengths)} sequences and keys "
                f"{len(self.key_lengths)}: they must be the same sequences"
            )
        for b, (queries, keys) in enumerate(zip(self.query_lengths, self.key_lengths, strict=True)):
            if not visibility.full and queries > keys:
                raise InputError(
                    f"sequence {b} has {queries} queries but {keys} keys: only full visibility "
                    "allows that, since a query has the position of a key"
                )
        self.queries, self.keys = sum(self.query_lengths), sum(self.key_lengths)  # N, M
        self.layout = ops.attention_layout(
            self.query_lengths, self.key_lengths, visibility.causal, visibility.window,
            backend=backend, device=self.device, dropout=dropout,
        )  # fmt: skip

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
        return self.layout.attend(query, key, value)

    def weights(self, query: Tensor, key: Tensor) -> list[Tensor]:
        """The attention weights of each sequence, [H, n, m], for any backend."""
        parts = query.split(self.query_lengths), key.split(self.key_lengths)
        return [
            attention_weights(q, k, self.visibility.matrix(len(q), len(k)).to(q.device))
            for q, k in zip(*parts, strict=True)
        ]


def is_overridden(attention: nn.Module) -> bool:
    """Whether cross-attention must get the memory itself in each step of a search, and not keys and
    values that were computed before: a pre-hook or another `forward` may use or change the memory.
    A forward hook, which changes only the output, needs no memory."""
    return bool(
        type(attention).forward is not MultiHeadAttention.forward or "forward" in vars(attention)
        or attention._forward_pre_hooks or global_hook()
    )  # fmt: skip


SelfPlan = Plan | CachedSelf | Reading  # self-attention: the full pass, a step, or a prompt


class MultiHeadAttention(nn.Module):
    """Section 3.2.2: H attentions in parallel, each on its own K features.

    Self-attention computes queries, keys and values from the same row, cross-attention computes
    keys and values from the memory.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_size = config.heads, config.head_size
        self.width = self.heads * self.head_size  # H*K, which need not be D
        # W^Q, W^K and W^V of all heads in one matrix: one product instead of 3 H of them.
        self.query_key_value = Linear(config.d_model, 3 * self.width, bias=config.bias)
        self.output = Linear(self.width, config.d_model, bias=config.bias)  # W^O

    def forward(
        self, x: Tensor, plan: SelfPlan | None, memory: Tensor | CachedMemory | None = None,
        rotation: Rotation | None = None, capture: AttentionWeights | None = None,
    ) -> Tensor:  # fmt: skip
        """x[N, D], memory[M, D] for cross-attention -> [N, D]."""
        if memory is None:
            query, key, value = ops.split_heads(self.query_key_value(x), 3, self.heads)
        else:
            query = ops.split_heads(self._project(x, slice(None, self.width)), 1, self.heads)[0]
            if isinstance(memory, CachedMemory):  # with keys and values computed before
                return self.output(memory.attend(query).flatten(1))
            key, value = self.project_memory(memory)
        if rotation is not None:
            query, key = rotation(query), rotation(key)
        assert plan is not None
        if capture is not None:  # computed separately, so that capturing changes nothing
            assert not isinstance(plan, CachedSelf | Reading)  # only the full pass has it
            capture.append(plan.weights(query.detach(), key.detach()))
        return self.output(plan.attend(query, key, value).flatten(1))  # [N, H*K] -> [N, D]

    def project_memory(self, memory: Tensor) -> tuple[Tensor, ...]:
        """memory[M, D] -> key and value, [M, H, K] each."""
        return ops.split_heads(self._project(memory, slice(self.width, None)), 2, self.heads)

    def _project(self, x: Tensor, rows: slice) -> Tensor:
        """These outputs of the projection. Only their weights are read, unless a hook or another
        change of the module requires a call, which computes all outputs."""
        if ops.must_be_called(self.query_key_value, LINEAR):
            return self.query_key_value(x)[:, rows].contiguous()
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        return ops.linear(x, weight[rows], None if bias is None else bias[rows])
