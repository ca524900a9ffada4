"""Attention (section 3.2): Attention(Q, K, V) = softmax(Q K^T / sqrt(K)) V, over packed rows.

ops/reference.py defines it; ops/attention.py chooses between the definition and faster backends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.config.model import ModelConfig
from regard.config.registry import ATTENTION
from regard.errors import InputError
from regard.model.cache import CachedMemory, CachedSelf, Reading
from regard.model.linear import LINEAR, Linear
from regard.model.rectangles import BiasFunction, Rectangles, WeightFunction, score_mask
from regard.model.visibility import Visibility
from regard.ops.overrides import global_hook
from regard.ops.reference import attention_weights

RotationFunction = Callable[[Tensor], Tensor]  # queries or keys [N, H, K] -> [N, H, K]
AttentionWeights = list[list[Tensor]]  # layer, sequence -> [H, n, m]


class Plan:
    """The inputs of one kind of attention (encoder, decoder, cross) besides queries, keys and
    values. It is created once per batch and shared by all layers.

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
        """query[N, H, K], key[M, G, K], value[M, G, K] -> [N, H, K]."""
        key, value = ops.repeat_heads(key, query), ops.repeat_heads(value, query)
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

    @cached_property
    def _rectangles(self) -> Rectangles:
        return Rectangles(self.query_lengths, self.key_lengths, self.visibility, self.device)

    def attend_with(
        self, query: Tensor, key: Tensor, value: Tensor, weigh: WeightFunction,
        bias: BiasFunction | None,
    ) -> Tensor:  # fmt: skip
        """`attend` with weights that `weigh` computes and a position bias of the scores."""
        key, value = ops.repeat_heads(key, query), ops.repeat_heads(value, query)
        return self._rectangles.attend(query, key, value, weigh, bias)

    def weights(
        self, query: Tensor, key: Tensor, weigh: WeightFunction | None = None,
        bias: BiasFunction | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """The attention weights of each sequence, [H, n, m], for any backend.

        weigh, bias: as in `attend_with`; without them scaled dot-product attention.
        """
        weights = []
        parts = query.split(self.query_lengths), key.split(self.key_lengths)
        for q, k in zip(*parts, strict=True):
            k = ops.repeat_heads(k, q)
            visible = self.visibility.matrix(len(q), len(k)).to(q.device)
            if weigh is None:
                weights.append(attention_weights(q, k, visible))
                continue
            position = torch.arange(len(k), device=q.device)
            distance = position - position[len(k) - len(q) :, None] if bias else None
            mask = score_mask(visible[None], distance, bias, q.dtype)  # [H or 1, n, m]
            weights.append(weigh(q.transpose(0, 1)[None], k.transpose(0, 1)[None], mask[None])[0])
        return weights


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
    """Section 3.2.2: H attentions in parallel, each on its own K features. With grouped heads
    (Ainslie et al. 2023) there are only G heads of keys and values, each shared by H / G queries.

    Self-attention computes queries, keys and values from the same row, cross-attention computes
    keys and values from the memory.

    An attention variant (`regard.register_attention`) is a subclass that overrides `weights`, and
    `__init__` if it has parameters.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_size = config.heads, config.head_size
        self.key_value_heads = config.key_value_heads
        self.dropout = config.attention_dropout
        self.width = self.heads * self.head_size  # H*K, which need not be D
        # W^Q, W^K and W^V of all heads in one matrix: one product instead of H + 2 G of them.
        outputs = self.width + 2 * self.key_value_heads * self.head_size
        self.query_key_value = Linear(config.d_model, outputs, bias=config.query_key_value_bias)
        self.output = Linear(self.width, config.d_model, bias=config.bias)  # W^O

    def forward(
        self, x: Tensor, plan: SelfPlan | None, memory: Tensor | CachedMemory | None = None,
        rotation: RotationFunction | None = None, capture: AttentionWeights | None = None,
        bias: BiasFunction | None = None,
    ) -> Tensor:  # fmt: skip
        """Self-attention, or cross-attention if there is a memory.

        Args:
            x: [N, D], the vectors that look.
            plan: which keys each query sees; None: the memory contains cached keys and values.
            memory: [M, D], the vectors to look at in cross-attention, or their cached keys and
                values; None: self-attention.
            rotation: changes queries and keys by their positions, if positions are rotary.
            capture: where the attention weights are stored, if they are needed.
            bias: computes what the distance of two positions adds to their score
                (`Positions.bias`).

        Returns:
            [N, D].
        """
        explicit = bias is not None or type(self).weights is not MultiHeadAttention.weights
        if memory is None:
            query, key, value = self._split(self.query_key_value(x))
        else:
            query = ops.split_heads(self._project(x, slice(None, self.width)), 1, self.heads)[0]
            if isinstance(memory, CachedMemory):  # keys and values were computed before
                attended = (
                    memory.attend_with(query, self._weigh) if explicit else memory.attend(query)
                )
                return self.output(attended.flatten(1))
            key, value = self.project_memory(memory)
        if rotation is not None:
            query, key = rotation(query), rotation(key)
        assert plan is not None
        if capture is not None:  # computed separately, so that capturing does not change the output
            assert not isinstance(plan, CachedSelf | Reading)  # only the full pass has it
            with torch.no_grad():
                weigh = self.weights if explicit else None
                capture.append(plan.weights(query.detach(), key.detach(), weigh, bias))
        if explicit:
            attended = plan.attend_with(query, key, value, self._weigh, bias)
        else:
            attended = plan.attend(query, key, value)
        return self.output(attended.flatten(1))  # [N, H*K] -> [N, D]

    def weights(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        """The weight of each key for each query, softmax(Q K^T / sqrt(K) + mask).

        A subclass overrides this method to change how queries and keys become weights. It is used
        in training, in the steps of decoding and for captured attention weights. Without a subclass
        and without a position bias, a faster backend computes the same function.

        Args:
            query: [B, H, n, K].
            key: [B, H, m, K].
            mask: [B or 1, H or 1, n, m], added to the scores: the bias of the positions, and minus
                infinity where a query may not see a key. Every query sees at least one key.

        Returns:
            [B, H, n, m].
        """
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_size)
        return (scores + mask).softmax(-1)

    def _weigh(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        """`weights` with dropout."""
        return F.dropout(self.weights(query, key, mask), self.dropout, self.training)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, ...]:
        """The keys and values of a memory for cross-attention.

        Args:
            memory: [M, D], the output of the encoder.

        Returns:
            The keys and the values, [M, G, K] each.
        """
        parts = self._project(memory, slice(self.width, None))
        return ops.split_heads(parts, 2, self.key_value_heads)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """The queries [N, H, K], keys and values [N, G, K] of their product [N, (H + 2 G) K]."""
        if self.key_value_heads == self.heads:
            return ops.split_heads(x, 3, self.heads)
        heads = self.heads, self.key_value_heads, self.key_value_heads
        return x.unflatten(1, (-1, self.head_size)).split(heads, dim=1)

    def _project(self, x: Tensor, rows: slice) -> Tensor:
        """These outputs of the projection. Only their weights are read, unless a hook or another
        change of the module requires a call, which computes all outputs."""
        if ops.must_be_called(self.query_key_value, LINEAR):
            return self.query_key_value(x)[:, rows].contiguous()
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        return ops.linear(x, weight[rows], None if bias is None else bias[rows])


def make_attention(config: ModelConfig) -> MultiHeadAttention:
    """The self-attention or cross-attention of `model.attention`."""
    if not ATTENTION.is_custom(config.attention):
        return MultiHeadAttention(config)
    attention = ATTENTION.call(config.attention, config)
    if not isinstance(attention, MultiHeadAttention):
        raise InputError(
            f"model.attention={config.attention}: the factory must return a "
            f"regard.MultiHeadAttention, not {type(attention).__name__}"
        )
    return attention
