"""The batches that `Transformer.forward` accepts: packed, or padded with lengths or a mask."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard.errors import InputError
from regard.text.batching import Packed, real_tokens


def read_batch(
    batch: Packed | Tensor | None, lengths: Sequence[int] | Tensor | None, mask: Tensor | None,
    side: str,
) -> tuple[Packed | None, Tensor | None]:  # fmt: skip
    """A packed batch, and the mask[B, T] of a padded one. side: for error messages."""
    if isinstance(batch, Tensor):
        if batch.dim() != 2:
            raise InputError(
                f"the {side} must be Packed or a padded tensor [B, T], not a tensor of shape "
                f"{list(batch.shape)}"
            )
        if lengths is None and mask is None:
            raise InputError(
                f"the {side} is a padded tensor: pass {side}_lengths or {side}_mask as well"
            )
        try:
            real = real_tokens(batch, lengths, mask)
        except InputError as error:
            raise InputError(f"{side}: {error}") from None
        return Packed.select(batch, real), real
    if batch is not None and not isinstance(batch, Packed):
        raise InputError(
            f"the {side} must be Packed or a padded tensor [B, T], not {type(batch).__name__}: use "
            "Packed.of for a list of sequences"
        )
    if lengths is not None or mask is not None:
        name = f"{side}_lengths" if lengths is not None else f"{side}_mask"
        state = "missing" if batch is None else "packed"
        raise InputError(f"{name} belongs to a padded {side}, but the {side} is {state}")
    return batch, None
