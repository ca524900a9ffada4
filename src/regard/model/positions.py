"""Positions of tokens (section 3.5): sinusoidal, learned, rotary, or none.

Attention does not depend on order, so order must be part of its input. Sinusoids and rotations are
functions of the position, not tables: they have no maximum length and no parameters. Angles are
computed in float64 because position x frequency loses the low digits of a float32 within a few
thousand positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import ops
from regard.errors import InputError


def angles(positions: Tensor, size: int, base: float) -> Tensor:
    """[N] positions -> [N, size/2] angles: position / base^(2i/size), in float64."""
    return ops.angles(positions, size, base)


def sinusoids(positions: Tensor, d_model: int, base: float = 10_000.0) -> Tensor:
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(the same): [N] -> [N, D], float64."""
    if d_model % 2:
        raise InputError(f"sinusoids come in sine and cosine pairs: d_model={d_model} is odd")
    angle = angles(positions, d_model, base)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)  # [N, D]


class LearnedPositions(nn.Module):
    """A table of one vector for each position, learned like an embedding (Table 3, row E)."""

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, positions: Tensor) -> Tensor:
        return nn.functional.embedding(positions, self.weight)  # [N, D]


class Rotation:
    """Rotary positions (Su et al. 2021): turn each pair of a query's or key's features by its
    position's angle, so that their dot product depends only on how far apart the two are.

    Made once for a row and shared by all its layers.
    """

    def __init__(self, positions: Tensor, head_size: int, base: float) -> None:
        angle = angles(positions, head_size, base)[:, None]  # [N, 1, K/2]: the same in every head
        self.cosine, self.sine = angle.cos(), angle.sin()

    def __call__(self, x: Tensor) -> Tensor:
        """[N, H, K] -> [N, H, K]."""
        cosine, sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]  # [N, H, K/2] each
        turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1)
        return turned.flatten(-2)
