"""Attention of packed sequences as tensors and offsets."""

from torch import Tensor

from regard.model.attention import Plan
from regard.model.visibility import Visibility


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    visibility: Visibility,
    *,
    backend: str = "auto",
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention of packed sequences.

    query[N, H, K], key[M, H, K], value[M, H, K], offsets[B+1] on both sides -> [N, H, K].
    """
    queries, keys = query_offsets.diff().tolist(), key_offsets.diff().tolist()
    plan = Plan(queries, keys, visibility, backend=backend, device=query.device, dropout=dropout)
    return plan.attend(query, key, value)
