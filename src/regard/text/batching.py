"""A batch is one packed row: all its sequences end to end, with their boundaries as offsets.

Projections, norms, feed-forward and loss process the N real tokens; only attention uses the
boundaries. There is no padding token and no mask, so nothing is computed for padding, and the
result of a sequence cannot depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
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
        if torch.compiler.is_exporting():
            raise InputError(
                "torch.export cannot trace a packed row, whose lengths are Python numbers: export "
                "regard.model.padded_encoder.PaddedEncoder(transformer)"
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
        """Pack lists or tensors of token ids: `Packed.of([[5, 3, 8], [2, 2]])`.

        Args:
            sequences: lists or 1-D tensors of token ids, each with at least one token.

        Returns:
            The packed row, on the device of the first sequence.

        Raises:
            InputError: there is no sequence, a sequence is empty or is not one row of integers, or
                `sequences` is a padded tensor (see `from_padded`).
        """
        dimensions = getattr(sequences, "ndim", None)  # of a tensor or an array
        if dimensions is not None:
            advice = "use Packed.from_padded, which takes lengths or a mask"
            if dimensions < 2:
                advice = "put one sequence into a list: Packed.of([tokens])"
            raise InputError(
                f"Packed.of needs a list of sequences, not a {dimensions}-D tensor: {advice}"
            )
        rows = [_row(b, sequence) for b, sequence in enumerate(sequences)]
        if not rows:
            raise InputError("there is no sequence to pack")
        lengths = torch.tensor([0] + [len(row) for row in rows])
        return cls(torch.cat(rows), lengths.cumsum(0).to(rows[0].device))

    @classmethod
    def from_padded(
        cls,
        tokens: Tensor,
        lengths: Sequence[int] | Tensor | None = None,
        mask: Tensor | None = None,
        padding: int | None = None,
    ) -> Packed:
        """Pack a padded batch of token ids, on the device of the batch.

        Exactly one of `lengths`, `mask` and `padding` states which tokens are real.

        Args:
            tokens: [B, T] integers.
            lengths: [B], the number of real tokens of each row, which come first.
            mask: [B, T], True (or 1) for a real token and False (or 0) for padding. The real
                tokens of a row must be adjacent; padding may be on the right or on the left.
            padding: the token id that fills the rows on the right.

        Returns:
            The packed row of the real tokens.

        Raises:
            InputError: a shape or a type is wrong, a row has no real token, the real tokens of a
                row are not adjacent, or not exactly one of the three arguments is present.
        """
        return cls.select(tokens, real_tokens(tokens, lengths, mask, padding))

    @classmethod
    def select(cls, tokens: Tensor, mask: Tensor) -> Packed:
        """Pack the tokens at which a mask is True.

        Args:
            tokens: [B, T] integers.
            mask: [B, T], as `real_tokens` returns it: True for at least one token of each row.

        Returns:
            The packed row of these tokens, with B sequences.
        """
        offsets = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
        return cls(tokens[mask], offsets)

    def to_padded(self, padding: int = 0) -> tuple[Tensor, Tensor]:
        """The batch as a rectangle, padded on the right.

        Args:
            padding: the token id that fills the rows.

        Returns:
            tokens[B, T] and mask[B, T], which is True for real tokens. T is the length of the
            longest sequence.
        """
        mask = self.pad(torch.ones_like(self.tokens, dtype=torch.bool), False)
        return self.pad(self.tokens, padding), mask

    def pad(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Arrange values of each token as a padded rectangle: [N, ...] -> [B, T, ...].

        Args:
            values: one entry for each token, for example hidden states [N, D].
            fill: the value of the padding.

        Returns:
            [B, T, ...]; T is the length of the longest sequence.

        Raises:
            InputError: `values` does not have one entry for each token.
        """
        if values.dim() < 1 or len(values) != len(self.tokens):
            raise InputError(
                f"values {list(values.shape)} must have one row for each of the "
                f"{len(self.tokens)} tokens"
            )
        shape = (len(self) * max(self.lengths), *values.shape[1:])
        rectangle = values.new_full(shape, fill)
        rectangle = rectangle.index_copy(0, self._slots(values.device), values)
        return rectangle.unflatten(0, (len(self), max(self.lengths)))

    def unpad(self, values: Tensor) -> Tensor:
        """Remove the padding again, the inverse of `pad`: [B, T, ...] -> [N, ...].

        Args:
            values: [B, T, ...], where T is the length of the longest sequence.

        Returns:
            [N, ...]: the values of the N tokens.

        Raises:
            InputError: `values` does not have the shape [B, T, ...] of this row.
        """
        shape = (len(self), max(self.lengths))
        if values.dim() < 2 or tuple(values.shape[:2]) != shape:
            raise InputError(f"values {list(values.shape)} must begin with the shape {list(shape)}")
        return values.flatten(0, 1).index_select(0, self._slots(values.device))

    def _slots(self, device: torch.device) -> Tensor:
        """[N]: the place of each token in the flattened rectangle [B * T]."""
        counts = np.array(self.lengths)
        rows = np.arange(len(counts)).repeat(counts) * max(self.lengths)
        return to_device(torch.from_numpy(rows + positions_array(self.lengths)), device)

    def to(self, device: torch.device | str) -> Packed:
        """Copy the row to a device, without checking it again.

        Args:
            device: the device, or its name.

        Returns:
            The row on that device.
        """
        row = object.__new__(Packed)
        row.tokens, row.offsets = to_device(self.tokens, device), to_device(self.offsets, device)
        row.lengths, row.smallest, row.largest = self.lengths, self.smallest, self.largest
        return row

    def __len__(self) -> int:
        """The number of sequences (B)."""
        return len(self.lengths)

    def split(self, row: Tensor) -> tuple[Tensor, ...]:
        """Split a tensor that has one entry for each token into its sequences.

        Args:
            row: [N, ...].

        Returns:
            B tensors [n, ...], where n is the length of each sequence.
        """
        return row.split(self.lengths)

    def positions(self) -> Tensor:
        """The position of each token in its own sequence.

        Returns:
            [N] integers; each sequence starts from 0.
        """
        return positions_of(self.lengths, self.tokens.device)

    def check(self, vocabulary_size: int, max_length: int | None, name: str) -> None:
        """Refuse token ids outside the vocabulary and sequences longer than `max_length`.

        Args:
            vocabulary_size: token ids must be below this number.
            max_length: tokens of the longest sequence; None: no limit.
            name: the name of the row in messages: "source" or "target".

        Raises:
            InputError: a token id or a sequence is not valid; the message names its position.
        """
        if self.smallest < 0 or self.largest >= vocabulary_size:
            wrong = (self.tokens < 0) | (self.tokens >= vocabulary_size)
            n = int(wrong.nonzero()[0])
            b = int((self.offsets <= n).sum()) - 1
            raise InputError(
                f"{name} token id {int(self.tokens[n])} at position {n - int(self.offsets[b])} of "
                f"sequence {b} is outside the vocabulary of {vocabulary_size} "
                f"(0 to {vocabulary_size - 1})"
            )
        if max_length is not None and max(self.lengths) > max_length:
            b = next(b for b, length in enumerate(self.lengths) if length > max_length)
            raise InputError(
                f"{name} sequence {b} has {self.lengths[b]} tokens, but the learned position table "
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


def _row(b: int, sequence: Sequence[int] | Tensor) -> Tensor:
    """Sequence b as a row of integers."""
    try:
        row = torch.as_tensor(sequence)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"sequence {b} must be a list of token ids, not {sequence!r:.60}"
        ) from None
    if row.dim() == 1 and not len(row):
        return row.long()  # the constructor refuses it
    if row.dim() != 1 or row.is_floating_point() or row.dtype == torch.bool:
        raise InputError(
            f"sequence {b} must be one row of integers, not {row.dtype} {list(row.shape)}"
        )
    return row.long()


def real_tokens(
    tokens: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    mask: Tensor | None = None,
    padding: int | None = None,
) -> Tensor:
    """The mask[B, T] of a padded batch: True for real tokens. See `Packed.from_padded`."""
    if not isinstance(tokens, Tensor) or tokens.dim() != 2:
        shape = list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise InputError(f"a padded batch must be a tensor [B, T], not {shape}")
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise InputError(f"token ids must be integers, not {tokens.dtype}")
    if sum(option is not None for option in (lengths, mask, padding)) != 1:
        raise InputError(
            "a padded batch needs exactly one of lengths, mask and padding, which separates tokens "
            "from padding"
        )
    if lengths is not None:
        real = _mask_of_lengths(tokens, lengths)
    elif mask is not None:
        if not isinstance(mask, Tensor) or mask.shape != tokens.shape:
            shape = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise InputError(f"mask must have the shape {list(tokens.shape)}, not {shape}")
        real = mask.to(tokens.device) != 0
    else:
        after = tokens.ne(torch.tensor(padding)).flip(1).cumsum(1).flip(1)
        real = after > 0  # a real token is here or further on
    if not bool(real.any(1).all()):
        b = int((~real.any(1)).nonzero()[0])
        raise InputError(f"row {b} has no token: every sequence needs at least one token")
    if padding is not None and bool((first := tokens[:, 0] == padding).any()):
        raise InputError(
            f"row {int(first.nonzero()[0])} begins with the padding id {padding}: padding names "
            "padding on the right only; use mask for padding on the left"
        )
    begins = real & ~torch.nn.functional.pad(real, (1, 0))[:, :-1]
    if bool((begins.sum(1) > 1).any()):
        b, t = begins.cumsum(1).eq(2).logical_and(begins).nonzero()[0].tolist()
        raise InputError(
            f"the mask of row {b} has padding before token {t}, between real tokens: the real "
            "tokens of a row must be adjacent"
        )
    return real


def _mask_of_lengths(tokens: Tensor, lengths: Sequence[int] | Tensor) -> Tensor:
    counts = torch.as_tensor(lengths)
    rows, most = tokens.shape
    if tuple(counts.shape) != (rows,) or counts.is_floating_point() or counts.dtype == torch.bool:
        raise InputError(
            f"lengths must be {rows} integers, one for each row, not {counts.dtype} "
            f"{list(counts.shape)}"
        )
    for b, count in enumerate(counts.tolist()):
        if not 1 <= count <= most:
            raise InputError(f"the length of row {b} is {count}: it must be from 1 to {most}")
    return torch.arange(most, device=tokens.device) < counts.to(tokens.device)[:, None]
