"""Each kind of layer on its own, as the model builds it, with its line of the paper's table 1.

The formulas are exact for these layers: the counts must equal them, and the table's O(...) is their
limit for long sequences. n tokens, width d, window r, kernel k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.config.model import ModelConfig
from regard.config.parameters import visible
from regard.lab.common.layer_kinds import LAYER_KINDS, layer_options
from regard.model.attention import MultiHeadAttention, Plan
from regard.model.block import FeedForward
from regard.model.mixers import RowPlan, make_mixer
from regard.model.visibility import Visibility

REFERENCE = "reference"  # self-attention by its definition: all n x n weights are in memory
LAYERS = (*LAYER_KINDS, REFERENCE)
HEAD = 64  # features of a head, as in the paper
INNER = 4  # d_ff / d_model, as in the paper


@dataclass(frozen=True)
class Theory:
    """A line of table 1, with its orders of growth as exponents that can be fitted."""

    operations: str
    in_n: float  # exponent of n for long sequences
    in_d: float
    sequential: str
    steps_in_n: float
    path: str
    growth: str  # of the path with n: constant, linear, logarithmic, never


THEORY = {
    "attention": Theory("n² d", 2, 1, "1", 0, "1", "constant"),
    "reference": Theory("n² d", 2, 1, "1", 0, "1", "constant"),
    "restricted": Theory("r n d", 1, 1, "1", 0, "n / r", "linear"),
    "lstm": Theory("n d²", 1, 2, "n", 1, "n", "linear"),
    "gru": Theory("n d²", 1, 2, "n", 1, "n", "linear"),
    "convolution": Theory("k n d²", 1, 2, "1", 0, "n / k", "linear"),
    "dilated": Theory("k n d²", 1, 2, "1", 0, "log_k n", "logarithmic"),
    "feed-forward": Theory("n d²", 1, 2, "1", 0, "never", "never"),
}


class Layer:
    """One layer of a kind: `layer(x, layer.plan(n))` is [n, d] -> [n, d]. Recurrence and
    convolution are causal (left to right)."""

    def __init__(
        self, name: str, d: int, window: int, kernel: int, device: torch.device,
        dtype: torch.dtype = torch.float32, number: int = 0,
    ) -> None:  # fmt: skip
        self.name, self.device, self.dtype = name, device, dtype
        options: dict[str, Any] = layer_options(window, kernel).get(name, {})
        self.config = ModelConfig(
            style="encoder", vocabulary_size=1, encoder_layers=1, d_model=d,
            heads=max(1, d // HEAD), d_ff=INNER * d, dropout=0.0, **options,
        )  # fmt: skip
        module: nn.Module | None
        if name == "feed-forward":
            module = FeedForward(self.config)
        elif self.config.mixer == "attention":
            module = MultiHeadAttention(self.config)
        else:
            module = make_mixer(self.config, number, causal=True)
        assert module is not None
        self.module = module.to(device, dtype)

    def plan(self, n: int, backend: str = "auto") -> Any:
        if self.name == "feed-forward":
            return None
        if self.config.mixer != "attention":
            return RowPlan([n], self.device)
        backend = "reference" if self.name == REFERENCE else backend
        visibility = Visibility(window=self.config.window)
        return Plan([n], [n], visibility, backend=backend, device=self.device)

    def __call__(self, x: Tensor, plan: Any) -> Tensor:
        return self.module(x) if plan is None else self.module(x, plan)

    def parameters(self) -> int:
        return sum(p.numel() for p in self.module.parameters())


def expected_parameters(name: str, d: int, kernel: int) -> tuple[str, int]:
    """The closed form of a layer's parameters, and its value."""
    text, squares, ones = {
        "lstm": ("8 d² + 8 d", 8, 8), "gru": ("6 d² + 6 d", 6, 6),
        "convolution": (f"{kernel} d² + d", kernel, 1), "dilated": (f"{kernel} d² + d", kernel, 1),
        "feed-forward": (f"{2 * INNER} d² + {INNER + 1} d", 2 * INNER, INNER + 1),
    }.get(name, ("4 d² + 4 d", 4, 4))  # fmt: skip
    return text, squares * d * d + ones * d


def expected_operations(name: str, n: int, d: int, window: int, kernel: int) -> tuple[str, float]:
    """The closed form of a layer's operations (a multiplication and an addition are two), and its
    value. Attention: by its definition; an attention backend may compute more."""
    if name in ("attention", REFERENCE):
        return "4 n² d + 8 n d²", 4.0 * n * n * d + 8.0 * n * d * d
    if name == "restricted":
        return "4 (2r + 1) n d + 8 n d²", 4.0 * visible(n, window) * d + 8.0 * n * d * d
    factor = {"lstm": 16, "gru": 12, "feed-forward": 4 * INNER}.get(name, 2 * kernel)
    return f"{factor} n d²", float(factor * n * d * d)


def expected_path(name: str, n: int, window: int, kernel: int) -> int | None:
    """The closed form of the path length: the number of layers (of a recurrence: steps) from the
    first input to the last output; None: there is no path."""
    if name == "feed-forward" or (name in ("convolution", "dilated") and kernel < 2):
        return None
    if name in ("attention", REFERENCE):
        return 1
    if name in ("lstm", "gru"):
        return n
    reach = window if name == "restricted" else kernel - 1  # of the first layer, to the left
    layers, far = 0, 0
    while far < n - 1 or layers == 0:
        far += reach * (kernel**layers if name == "dilated" else 1)
        layers += 1
    return layers
