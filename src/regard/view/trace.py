"""One forward pass of a model with the inputs and outputs of every module.

Hooks store the inputs and outputs of modules. A plan that replaces the model's own stores the
queries, keys and values that attention used, after any rotation. The steps between them (scores,
mask, softmax) are computed with the model's own functions, and `agree` compares each of them with
the next tensor of the model, so the displayed values cannot differ from the model's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.model.attention import MultiHeadAttention, Plan
from regard.model.stack import Stack
from regard.model.transformer import AttentionCapture, Transformer
from regard.ops.heads import repeat_heads
from regard.ops.reference import attention_weights, scaled_scores
from regard.text.batching import Packed


def agree(step: str, displayed: Tensor, computed: Tensor) -> Tensor:
    """Return `displayed` if it equals `computed`, a tensor of the model; raise RuntimeError
    otherwise."""
    if not torch.allclose(displayed, computed, rtol=1e-4, atol=1e-4):
        raise RuntimeError(f"a displayed value differs from the model's: {step}")
    return displayed


class TracedPlan:
    """A plan that stores the inputs and the output of attention."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.weights = plan, plan.weights

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.query = query  # [N, H, K]
        self.key, self.value = repeat_heads(key, query), repeat_heads(value, query)  # [M, H, K]
        self.mixed = self.plan.attend(query, key, value)  # [N, H, K]
        return self.mixed


class Attention(NamedTuple):
    """The intermediate results of one attention, from the scores to the output."""

    scaled: Tensor  # [H, N, M]: scores / sqrt(K)
    masked: Tensor  # [H, N, M]: minus infinity where a query may not look
    weights: Tensor  # [H, N, M]
    mixed: Tensor  # [N, H, K]: the weighted sum of the values
    output: Tensor  # [N, D]


class Trace:
    """The inputs and outputs of modules by name, as in `Transformer.named_modules()`."""

    def __init__(self, model: Transformer, source: Packed | None, target: Packed | None) -> None:
        # Lists, since a shared embedding is used twice: first by the source, last by the target.
        self.inputs: dict[str, list[Tensor]] = defaultdict(list)
        self.outputs: dict[str, list[Tensor]] = defaultdict(list)
        self.plans: dict[str, TracedPlan] = {}
        self.capture, self.norm_first = AttentionCapture(), model.config.norm_first
        self.modules = dict(model.named_modules())
        hooks = []
        for name, module in self.modules.items():
            if isinstance(module, MultiHeadAttention):
                hooks.append(module.register_forward_pre_hook(partial(self._watch, name)))
            if module is not model:
                hooks.append(module.register_forward_hook(partial(self._store, name)))
        try:
            with torch.no_grad():
                self.output = model.eval()(source, target, self.capture)
        finally:
            for hook in hooks:
                hook.remove()

    def _watch(self, name: str, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        self.plans[name] = TracedPlan(inputs[1])
        return (inputs[0], self.plans[name], *inputs[2:])

    def _store(self, name: str, _: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        self.inputs[name].append(inputs[0])
        self.outputs[name].append(output)

    def attention(self, stack: str, layer: int, kind: str = "self") -> Attention:
        """The intermediate results of one attention (kind: self or cross)."""
        name = f"{stack}.layers.{layer}.{kind}_attention"
        module, traced = self.modules[name], self.plans[name]
        assert isinstance(module, MultiHeadAttention)
        captured = self.capture.cross if kind == "cross" else getattr(self.capture, stack)
        query, key = traced.query, traced.key
        scaled = scaled_scores(query, key)
        visible = traced.plan.visibility.matrix(len(query), len(key))
        masked = scaled.masked_fill(~visible, -math.inf)
        weights = attention_weights(query, key, visible)
        agree(f"{name}: softmax", masked.softmax(-1), weights)
        agree(f"{name}: weights", weights, captured[layer][0])
        mixed = (weights @ traced.value.transpose(0, 1)).transpose(0, 1)  # [H, N, K] -> [N, H, K]
        agree(f"{name}: weighted sum", mixed, traced.mixed)
        output = F.linear(mixed.flatten(1), module.output.weight, module.output.bias)
        agree(f"{name}: heads joined", output, self.outputs[name][0])
        return Attention(scaled, masked, weights, mixed, output)

    def residual(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """The input and output of a sub-layer's norm, and the result after the residual, [N, D]."""
        add_and_norm = f"{name}_norm"
        x, added = self.inputs[add_and_norm][0], self.outputs[name][0]
        before, after = (side[f"{add_and_norm}.norm"][0] for side in (self.inputs, self.outputs))
        if self.norm_first:
            agree(f"{name}: norm before it", after, self.inputs[name][0])
            result = x + added
        else:
            agree(f"{name}: residual", x + added, before)
            result = after
        return before, after, agree(f"{name}: add & norm", result, self.outputs[add_and_norm][0])

    def layers(self, stack: str) -> list[Tensor]:
        """The stack's input, each layer's output and, for pre-norm, the final norm's: [N, D]. Every
        sub-layer of every layer is checked."""
        outputs = [self.inputs[stack][0]]
        module = self.modules[stack]
        assert isinstance(module, Stack)
        for i, block in enumerate(module.layers):
            name = f"{stack}.layers.{i}"
            agree(f"{name}: input", outputs[-1], self.inputs[name][0])
            self.attention(stack, i)
            results = [self.residual(f"{name}.self_attention")[2]]
            if block.cross_attention is not None:
                self.attention(stack, i, "cross")
                agree(f"{name}: query", results[-1], self.inputs[f"{name}.cross_attention_norm"][0])
                results.append(self.residual(f"{name}.cross_attention")[2])
            agree(f"{name}: feed-forward", results[-1], self.inputs[f"{name}.feed_forward_norm"][0])
            outputs.append(self.residual(f"{name}.feed_forward")[2])
        if self.norm_first:
            outputs.append(self.outputs[f"{stack}.final_norm"][0])
        agree(f"{stack}: output", outputs[-1], self.outputs[stack][0])
        return outputs
