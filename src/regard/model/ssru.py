"""The simpler simple recurrent unit (SSRU, Kim et al. 2019), which replaces self-attention.

    f_t = sigmoid(W_f x_t + b_f)
    c_t = f_t * c_{t-1} + (1 - f_t) * W x_t        c_0 = 0
    h_t = relu(c_t)

The matrix products do not depend on the state, so only the second line is sequential. It is
elementwise: the full pass computes it with log2(T) operations on the whole row, and a decoding step
with one. The state of a hypothesis is one vector per layer, regardless of the prefix length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.config.model import ModelConfig
from regard.model.cache import Cache, Step
from regard.model.linear import Linear
from regard.model.mixers import RowPlan


class Ssru(nn.Module):
    """The recurrent unit of one layer: [N, D] -> [N, D]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input = Linear(config.d_model, config.d_model, bias=False)  # W
        self.forget = Linear(config.d_model, config.d_model)  # W_f, b_f

    def forward(self, x: Tensor, plan: StateRow | StateReading | StateStep) -> Tensor:
        """x[N, D] -> [N, D]."""
        # At least float32, as in the cache: in bfloat16 a forget gate near 1 would be rounded to 1.
        dtype = torch.promote_types(x.dtype, torch.float32)
        forget, inputs = self.forget(x).to(dtype), self.input(x).to(dtype)
        states = plan.states(forget.sigmoid(), (-forget).sigmoid() * inputs)
        return states.relu().to(x.dtype)


class StateRow(RowPlan):
    """The full pass over a packed row: each sequence starts with a state of zeros."""

    def states(self, decay: Tensor, added: Tensor) -> Tensor:
        """c_t = decay_t * c_{t-1} + added_t: [N, D] each -> [N, D]."""
        states: Tensor = Scan.apply(decay, added, self)
        return states


class StateReading:
    """The full pass over a prefix before a search; stores the last state of each sentence for all
    its hypotheses."""

    def __init__(self, row: StateRow, cache: Cache, layer: int) -> None:
        self.row, self.cache, self.layer = row, cache, layer

    def states(self, decay: Tensor, added: Tensor) -> Tensor:
        """See `StateRow.states`."""
        states = self.row.states(decay, added)
        stored = self.cache.states[self.layer]
        stored.copy_(states[self.row.last][:, None].expand_as(stored))
        return states


class StateStep:
    """One decoding step: each hypothesis continues from the state of its parent."""

    def __init__(self, step: Step, layer: int) -> None:
        self.step, self.layer = step, layer

    def states(self, decay: Tensor, added: Tensor) -> Tensor:
        """See `StateRow.states`; decay and added have one row for each hypothesis, [B*W, D]."""
        stored = self.step.cache.states[self.layer]  # [B, W, D]
        before = stored
        if self.step.parents is not None:
            before = stored.gather(1, self.step.parents[..., None].expand_as(stored))
        size = stored.shape[:2]
        stored.copy_(decay.unflatten(0, size) * before + added.unflatten(0, size))
        return stored.flatten(0, 1).to(added.dtype, copy=True)


MixerPlan = RowPlan | StateReading | StateStep  # the plan of a layer without self-attention


class Scan(torch.autograd.Function):
    """The recurrence c_t = decay_t * c_{t-1} + added_t within each sequence of a row.

    With g_t the gradient of all later outputs with respect to c_t, the backward pass is the same
    recurrence in reverse: g_t = out_t + decay_{t+1} * g_{t+1}.
    """

    @staticmethod
    def forward(ctx: Any, decay: Tensor, added: Tensor, row: StateRow) -> Tensor:
        states = scan(decay, added, row, -1)
        ctx.row = row
        ctx.save_for_backward(decay, states)
        return states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        decay, states = ctx.saved_tensors
        row = ctx.row
        gradient = scan(row.shifted(decay, 1), gradients[0], row, 1)
        return gradient * row.shifted(states, -1), gradient, None


def scan(decay: Tensor, added: Tensor, row: RowPlan, direction: int) -> Tensor:
    """Each position combines itself with the one 1, 2, 4, ... places before it (direction -1) or
    after it (1). All factors are at most 1, so nothing overflows, and the states of a sequence do
    not depend on the other sequences of the row."""
    distance = 1
    while distance < row.longest:
        added = added + decay * row.shifted(added, direction * distance)
        distance *= 2
        if distance < row.longest:
            decay = decay * row.shifted(decay, direction * (distance // 2))
    return added
