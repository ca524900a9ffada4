"""The engine for training on a GPU: flex attention, compiled, on the packed row as it is.

Blocks of 128 queries visit only the blocks of keys that one of them may see. Because what a
query sees is one run of keys, and the runs move to the right along the row, the key blocks of a
query block are one range from the first block of its first query to the last of its last: the
table is a few vector operations, no search. All tensors have a size that depends on N and M
only, so rows of a fixed size never recompile.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.errors import InputError

if TYPE_CHECKING:
    from regard.model.attention import Visibility

BLOCK = 128
SMALLEST = 16  # head size that the compiled kernel takes


class FlexLayout:
    """The block table of one kind of attention of a batch."""

    def __init__(
        self,
        query_lengths: Sequence[int],
        key_lengths: Sequence[int],
        visibility: Visibility,
        device: torch.device,
    ) -> None:
        from torch.nn.attention.flex_attention import BlockMask

        queries, keys = torch.tensor(query_lengths), torch.tensor(key_lengths)
        first, last = visibility.runs(query_lengths, key_lengths)
        base = (keys.cumsum(0) - keys).repeat_interleave(queries)  # [N]
        first, last = first + base, last + base  # [N]: each query's run of keys in the packed row
        n, m = len(first), int(keys.sum())
        start = torch.arange(0, n, BLOCK)
        low = first[start] // BLOCK
        high = last[(start + BLOCK - 1).clamp(max=n - 1)] // BLOCK
        blocks = -(-m // BLOCK)
        table = (
            low[:, None] + torch.arange(blocks)
        ) % blocks  # the first high-low+1 of a row count
        run = torch.stack((first, last)).to(device, non_blocking=True)

        def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (run[0, query] <= key) & (key <= run[1, query])

        self.block_mask = BlockMask.from_kv_blocks(
            (high - low + 1).int()[None, None].to(device, non_blocking=True),
            table.int()[None, None].to(device, non_blocking=True),
            BLOCK_SIZE=BLOCK,
            mask_mod=visible,
            seq_lengths=(n, m),
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
        assert dropout == 0, "choose_engine excludes it"
        if query.device.type == "cpu" and (query.requires_grad or key.requires_grad):
            raise InputError("engine=flex trains on a GPU only: on a CPU use engine=padded or auto")
        size = query.shape[-1]
        heads = [x.transpose(0, 1)[None] for x in (query, key, value)]  # [1, H, N, K]
        if size < SMALLEST:  # zeros change no dot product
            heads = [pad(x, (0, SMALLEST - size)) for x in heads]
        flex = kernel(query.device.type)
        output = flex(*heads, block_mask=self.block_mask, scale=1 / math.sqrt(size))
        return output[0].transpose(0, 1)[..., :size]  # [N, H, K]


@cache
def kernel(device: str) -> Callable[..., Any]:
    """Compiled on a GPU; elsewhere PyTorch's own slow version, which is enough to test with."""
    from torch.nn.attention.flex_attention import flex_attention

    # At each compilation it warns that the result will not be kept on the disk.
    logging.getLogger("torch._functorch._aot_autograd.autograd_cache").setLevel(logging.ERROR)
    function: Callable[..., Any] = flex_attention
    return torch.compile(function) if device == "cuda" else function
