"""What a query may attend to: a value, not a mask tensor."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard import ops
from regard.errors import InputError


@dataclass(frozen=True)
class Visibility:
    """What a query may see: the past only (`causal`), at most `window` positions away, or both.

    A query has the position of a key: the queries of a sequence are at the positions of its last
    keys. So with a cache one new query sees all the keys before it. Full visibility does not depend
    on positions, which is why cross-attention can use it.
    """

    causal: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise InputError(f"window must be at least 1, not {self.window}")

    @property
    def full(self) -> bool:
        return not self.causal and self.window is None

    def matrix(self, queries: int, keys: int | None = None) -> Tensor:
        """The [queries, keys] matrix of booleans: True where a query sees a key."""
        return ops.visible(queries, queries if keys is None else keys, self.causal, self.window)
