"""Positions of tokens (section 3.5): sinusoidal, learned, rotary, none, or registered by a user.

Attention does not depend on order, so order must be part of its input. Sinusoids and rotations are
functions of the position, not tables: they have no maximum length and no parameters. Angles are
computed in float64 because position x frequency loses the low digits of a float32 within a few
thousand positions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import ops
from regard.config.model import ModelConfig
from regard.config.registry import POSITIONS
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


class Positions(nn.Module):
    """Base class of position encodings that `regard.register_positions` adds.

    A subclass overrides one or more of the three methods. Each is a function of positions or of
    distances, so that the full pass and the steps of decoding give the same result. Positions count
    from 0 and have no upper limit.
    """

    def rows(self, positions: Tensor) -> Tensor | None:
        """The vectors that are added to the embeddings of tokens.

        Args:
            positions: [N] integers.

        Returns:
            [N, D]; None: no vector is added.
        """
        return None

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change the queries or the keys of self-attention.

        Args:
            x: [N, H, K], queries or keys.
            positions: [N] integers.

        Returns:
            [N, H, K].
        """
        return x

    def bias(self, distance: Tensor) -> Tensor:
        """The numbers that are added to the scores of self-attention.

        Args:
            distance: [..., n, m] integers, the position of the key minus that of the query.

        Returns:
            [..., H, n, m].
        """
        raise NotImplementedError

    @classmethod
    def has(cls, method: str) -> bool:
        """Whether the class overrides a method.

        Args:
            method: "rows", "rotate" or "bias".

        Returns:
            True if it does.
        """
        return getattr(cls, method) is not getattr(Positions, method)


def make_positions(config: ModelConfig) -> nn.Module | None:
    """The module of `model.positions`; None if the encoding has no parameters."""
    if config.positions == "learned":
        return LearnedPositions(config.max_length, config.d_model)
    if not POSITIONS.is_custom(config.positions):
        return None
    module = POSITIONS.call(config.positions, config)
    if not isinstance(module, Positions):
        raise InputError(
            f"model.positions={config.positions}: the factory must return a regard.Positions, not "
            f"{type(module).__name__}"
        )
    return module


class Rotation:
    """Rotary positions (Su et al. 2021): rotate each pair of features of a query or key by the
    angle of its position, so that their dot product depends only on their distance.

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
