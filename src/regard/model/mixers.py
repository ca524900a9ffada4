"""Alternatives to self-attention in the encoder: recurrence or convolution (section 4).

A block mixes positions, then processes each separately. `model.mixer` chooses the mixer, so that
what the paper compares in theory can be trained: the same block, the same trainer, another mixer.
No mixer mixes sequences of a packed row.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from regard.config.model import ModelConfig
from regard.config.registry import MIXERS
from regard.errors import InputError
from regard.model.linear import Linear
from regard.text.batching import positions_of

# cuDNN takes bfloat16 weights, but torch does not keep them in one piece for it, and says so at
# every new model.
warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


class RowPlan:
    """The structure of a packed row for a mixer, created once per batch for all layers."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str) -> None:
        self.length, self.position = torch.tensor(lengths), positions_of(lengths)  # on the host
        self.device = device
        self.before = self.position.to(device)  # [N]: tokens of the same sequence before each token
        after = self.length.repeat_interleave(self.length) - 1 - self.position
        self.after = after.to(device)  # [N]: and after it
        self.longest, self.sequences = max(lengths, default=0), len(lengths)
        self.equal = len(set(lengths)) == 1

    @cached_property
    def last(self) -> Tensor:
        """The row of the last token of each sequence, [B]."""
        return (self.length.cumsum(0) - 1).to(self.device)

    @cached_property
    def steps(self) -> Tensor:
        """The number of sequences that have a token at each position, [T], on the host."""
        return self.position.bincount()

    @cached_property
    def order(self) -> Tensor:
        """The order of recurrence, [N]: all first tokens, then all second ones, and so on; of the
        longest sequences first."""
        rank = self.length.argsort(descending=True, stable=True).argsort()
        key = self.position * self.sequences + rank.repeat_interleave(self.length)
        return key.argsort().to(self.device)

    @cached_property
    def back(self) -> Tensor:
        """The inverse of `order`."""
        return self.order.argsort()

    def shifted(self, x: Tensor, offset: int) -> Tensor:
        """x[N, D] -> [N, D]: at each token the vector of the one `offset` further on, or zeros
        where its sequence has none."""
        if offset == 0:
            return x
        far = min(abs(offset), len(x))
        moved = F.pad(x, (0, 0, far, 0))[: len(x)] if offset < 0 else F.pad(x, (0, 0, 0, far))[far:]
        outside = (self.before if offset < 0 else self.after) < far
        return moved.masked_fill(outside[:, None], 0.0)


class Recurrence(nn.Module):
    """An LSTM or GRU over each sequence: n sequential steps.

    Bidirectional, with half of the width for each direction; `causal`: left to right, full width.
    """

    def __init__(self, config: ModelConfig, causal: bool = False) -> None:
        super().__init__()
        kind = nn.LSTM if config.mixer == "lstm" else nn.GRU
        size = config.d_model if causal else config.d_model // 2
        self.recurrence = kind(config.d_model, size, bias=config.bias, bidirectional=not causal)

    def forward(self, x: Tensor, plan: RowPlan) -> Tensor:
        """x[N, D] -> [N, D]."""
        if plan.equal:  # packed, a GRU's backward pass takes time that grows with the square of n
            rows = x.unflatten(0, (plan.sequences, -1)).transpose(0, 1)  # [n, B, D]
            return self.recurrence(rows)[0].transpose(0, 1).flatten(0, 1)
        states, _ = self.recurrence(PackedSequence(x[plan.order], plan.steps))
        return states.data[plan.back]


class Convolution(nn.Module):
    """Each token and its neighbours, k of them with gaps of `dilation` between: k D -> D.

    With dilation k^layer, `dilated`, each layer multiplies the reach by k.
    """

    def __init__(self, config: ModelConfig, layer: int, causal: bool = False) -> None:
        super().__init__()
        k, dilation = config.kernel, config.kernel**layer if config.mixer == "dilated" else 1
        first = -(k - 1) if causal else -(k // 2)
        self.offsets = [dilation * (first + i) for i in range(k)]
        self.neighbours = Linear(k * config.d_model, config.d_model, bias=config.bias)

    def forward(self, x: Tensor, plan: RowPlan) -> Tensor:
        """x[N, D] -> [N, D]."""
        return self.neighbours(torch.cat([plan.shifted(x, o) for o in self.offsets], dim=-1))


def make_mixer(config: ModelConfig, layer: int, causal: bool = False) -> nn.Module | None:
    """The mixer of a layer (layers count from 0); None for mixer=none."""
    if MIXERS.is_custom(config.mixer):
        module = MIXERS.call(config.mixer, config, layer)
        if not isinstance(module, nn.Module):
            raise InputError(
                f"model.mixer={config.mixer}: the factory must return a module, not "
                f"{type(module).__name__}"
            )
        return module
    if config.mixer in ("lstm", "gru"):
        return Recurrence(config, causal)
    return None if config.mixer == "none" else Convolution(config, layer, causal)
