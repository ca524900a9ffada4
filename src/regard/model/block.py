"""The block of all three styles (section 3.1): self-attention, cross-attention where there is a
memory, feed-forward, and around each of them add & norm.

An encoder layer is a block that sees all positions, a decoder-only layer is a block that sees the
past, a decoder layer has cross-attention as well. The plan determines which tokens a block sees.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from regard import ops
from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.model.attention import (
    AttentionWeights,
    Plan,
    RotationFunction,
    SelfPlan,
    make_attention,
)
from regard.model.cache import CachedMemory
from regard.model.linear import LINEAR, Linear
from regard.model.mixers import make_mixer
from regard.model.rectangles import BiasFunction
from regard.model.ssru import MixerPlan, Ssru
from regard.ops.reference import ACTIVATIONS


def make_norm(config: ModelConfig) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_epsilon)
    return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)


class AddAndNorm(nn.Module):
    """The residual connection around a sub-layer f, with dropout on the output of f (section 5.4).

    post-norm, as published:  norm(x + f(x))
    pre-norm (norm_first):    x + f(norm(x))
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.norm_first, self.dropout = config.norm_first, config.dropout

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.norm_first:
            return ops.add_norm(x, sublayer(ops.add_norm(x, None, self.norm)), None, dropout)
        return ops.add_norm(x, sublayer(x), self.norm, dropout)


class FeedForward(nn.Module):
    """Section 3.3: the same two-layer network at every position, D -> F -> D.

    ReLU, GELU or SiLU: W2 f(W1 x). SwiGLU (Shazeer 2020): W2 (silu(W1 x) * W3 x).
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation, self.dropout = config.activation, config.feed_forward_dropout
        gates = 2 if config.activation == "swiglu" else 1  # W1 and W3 in one matrix
        self.inner = Linear(config.d_model, gates * config.d_ff, bias=config.bias)
        self.outer = Linear(config.d_ff, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.activation == "swiglu":
            gate, x = self.inner(x).chunk(2, dim=-1)  # [N, F] each
            x = F.silu(gate) * x
        elif ops.must_be_called(self.inner, LINEAR):  # for a hook, the activation comes after it
            x = ACTIVATIONS[self.activation](self.inner(x))  # [N, F]
        else:
            x = self.inner(x, self.activation)  # [N, F]
        return self.outer(F.dropout(x, self.dropout, self.training))  # [N, D]


def same_shape(x: Tensor, mixed: Tensor) -> Tensor:
    """The output of a mixer; an InputError if its shape would be broadcast to that of x[N, D]."""
    if mixed.shape != x.shape:
        raise InputError(
            f"a mixer must return a tensor of the shape {list(x.shape)} of its input, not "
            f"{list(mixed.shape)}"
        )
    return mixed


class Block(nn.Module):
    """One layer; `mixer` may replace self-attention (mixers.py, ssru.py)."""

    def __init__(self, config: ModelConfig, cross: bool, layer: int = 0) -> None:
        super().__init__()
        self.mixer: nn.Module | None = None
        decoder = cross or config.style == "decoder"
        self.recurrent = decoder and config.decoder_mixer == "ssru"
        if (config.decoder_mixer if decoder else config.mixer) == "attention":
            self.self_attention = make_attention(config)
            self.self_attention_norm = AddAndNorm(config)
        elif decoder or config.mixer != "none":
            self.mixer = Ssru(config) if decoder else make_mixer(config, layer)
            self.mixer_norm = AddAndNorm(config)
        self.cross_attention = make_attention(config) if cross else None
        self.cross_attention_norm = AddAndNorm(config) if cross else None
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = AddAndNorm(config)

    def forward(
        self, x: Tensor, plan: SelfPlan | MixerPlan, memory: Tensor | CachedMemory | None = None,
        cross_plan: Plan | None = None, rotation: RotationFunction | None = None,
        capture: AttentionWeights | None = None, cross_capture: AttentionWeights | None = None,
        bias: BiasFunction | None = None,
    ) -> Tensor:  # fmt: skip
        """x[N, D], memory[M, D] -> [N, D]."""
        if not isinstance(plan, MixerPlan):
            x = self.self_attention_norm(
                x,
                lambda x: self.self_attention(
                    x, plan, rotation=rotation, capture=capture, bias=bias
                ),
            )
        elif self.mixer is not None:
            mixer = self.mixer
            x = self.mixer_norm(x, lambda x: same_shape(x, mixer(x, plan)))
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            attention = self.cross_attention
            x = self.cross_attention_norm(
                x, lambda x: attention(x, cross_plan, memory=memory, capture=cross_capture)
            )
        return self.feed_forward_norm(x, self.feed_forward)
