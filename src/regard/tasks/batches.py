"""Tensor code that tasks share: packed rows, and a forward pass over many sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.engines import hidden
from regard.decoding.requests import by_size
from regard.model.transformer import Transformer
from regard.text.batching import Packed

EVALUATED_TOKENS = 16_384  # tokens of a batch in evaluation and prediction


def packed(rows: Sequence[NDArray[Any]], device: torch.device) -> Packed:
    """Sequences of token ids as one packed row on a device."""
    tokens, offsets = np.concatenate(rows).astype(np.int64), bounds(rows)
    return Packed(torch.from_numpy(tokens), torch.from_numpy(offsets)).to(device)


def bounds(rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """[B+1]: where each sequence begins in a packed row, and where the last one ends."""
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])])


@torch.no_grad()
def forward(
    model: Transformer, rows: Sequence[Sequence[int]], read: Callable[[Packed, Tensor], list[Any]],
    alone: bool = False,
) -> list[Any]:  # fmt: skip
    """Run one stack over sequences in batches of similar length. `read` returns one result for
    each sequence of a batch from its vectors [N, D]; the results are returned in order.

    alone: whether `read` gets one sequence at a time on a CPU. The vectors do not depend on the
    batch, but PyTorch's products in `read` can depend on the number of rows.
    """
    device = model.output_matrix().device
    results: dict[int, Any] = {}
    for batch in by_size([len(row) for row in rows], EVALUATED_TOKENS):
        row = Packed.of([rows[i] for i in batch]).to(device)
        vectors = hidden(model, row)
        if alone and device.type == "cpu":
            for i, part in zip(batch, row.split(vectors), strict=True):
                [results[i]] = read(Packed.of([rows[i]]), part)
        else:
            results.update(zip(batch, read(row, vectors), strict=True))
    return [results[i] for i in range(len(rows))]
