"""A batch is one packed row: all its sequences end to end, with their boundaries as offsets.

Projections, norms, feed-forward and loss process the N real tokens; only attention uses the
boundaries. There is no padding token and no mask, so nothing is computed for padding, and the
result of a sequence cannot depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from regard.errors import InputError
from regard.ops.layout import positions_array, to_device


class Packed:
    """`tokens[N]` and `offsets[B+1]`: sequence b is `tokens[offsets[b]:offsets[b+1]]`.

    Everything is checked once, here, on the host: lengths and the range of the token ids are
    plain Python numbers from then on, so that no later check waits for a GPU.
    """

    __slots__ = ("largest", "lengths", "offsets", "smallest", "tokens")

    tokens: Tensor  # [N] int64
    offsets: Tensor  # [B+1] int64
    lengths: tuple[int, ...]  # of each sequence, all at least 1
    smallest: int  # token id
    largest: int  # token id

    def __init__(self, tokens: Tensor, offsets: Tensor) -> None:
        for name, tensor in (("tokens", tokens), ("offsets", offsets)):
            if tensor.dim() != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
                raise InputError(
                    f"{name} must be one row of integers, not {tensor.dtype} {list(tensor.shape)}"
                )
        bounds = offsets.tolist()
        if len(bounds) < 2:
            raise InputError("a packed row needs at least one sequence: offsets [0, length]")
        if bounds[0] != 0 or bounds[-1] != len(tokens):
            raise InputError(
                f"offsets run from {bounds[0]} to {bounds[-1]} but there are {len(tokens)} tokens: "
                f"they must run from 0 to {len(tokens)}"
            )
        for b, (start, end) in enumerate(pairwise(bounds)):
            if end == start:
                raise InputError(f"sequence {b} is empty: every sequence needs at least one token")
            if end < start:
                raise InputError(f"offsets must rise, but offset {b + 1} is {end} after {start}")
        self.tokens = tokens.long()
        self.offsets = offsets.long()
        self.lengths = tuple(end - start for start, end in pairwise(bounds))
        self.smallest, self.largest = int(tokens.min()), int(tokens.max())

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int] | Tensor]) -> Packed:
        """Pack lists or tensors of token ids: `Packed.of([[5, 3, 8], [2, 2]])`."""
        rows = [torch.as_tensor(sequence, dtype=torch.long) for sequence in sequences]
        if not rows:
            raise InputError("there is no sequence to pack")
        lengths = torch.tensor([0] + [len(row) for row in rows])
        return cls(torch.cat(rows), lengths.cumsum(0))

    def to(self, device: torch.device | str) -> Packed:
        """The same row on another device, without checking it again."""
        row = object.__new__(Packed)
        row.tokens, row.offsets = to_device(self.tokens, device), to_device(self.offsets, device)
        row.lengths, row.smallest, row.largest = self.lengths, self.smallest, self.largest
        return row

    def __len__(self) -> int:
        """How many sequences there are (B)."""
        return len(self.lengths)

    def split(self, row: Tensor) -> tuple[Tensor, ...]:
        """Cut anything that has one entry for each token back into sequences."""
        return row.split(self.lengths)

    def positions(self) -> Tensor:
        """[N]: the position of each token in its own sequence, from 0."""
        return positions_of(self.lengths, self.tokens.device)

    def check(self, vocabulary_size: int, max_length: int | None, what: str) -> None:
        """Refuse token ids outside the vocabulary and sequences longer than `max_length`."""
        if self.smallest < 0 or self.largest >= vocabulary_size:
            wrong = (self.tokens < 0) | (self.tokens >= vocabulary_size)
            n = int(wrong.nonzero()[0])
            b = int((self.offsets <= n).sum()) - 1
            raise InputError(
                f"{what} token id {int(self.tokens[n])} at position {n - int(self.offsets[b])} of "
                f"sequence {b} is outside the vocabulary of {vocabulary_size} "
                f"(0 to {vocabulary_size - 1})"
            )
        if max_length is not None and max(self.lengths) > max_length:
            b = next(b for b, length in enumerate(self.lengths) if length > max_length)
            raise InputError(
                f"{what} sequence {b} has {self.lengths[b]} tokens, but the learned position table "
                f"has {max_length} rows: shorten it or raise model.max_length"
            )

    def __repr__(self) -> str:
        lengths = ", ".join(map(str, self.lengths[:6])) + (", ..." if len(self) > 6 else "")
        return (
            f"Packed({len(self.tokens)} tokens in {len(self)} sequences of lengths {lengths}, "
            f"device={self.tokens.device})"
        )


def positions_of(lengths: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """[N]: 0, 1, ... within each sequence of a packed row."""
    return to_device(torch.from_numpy(positions_array(lengths)), device)
