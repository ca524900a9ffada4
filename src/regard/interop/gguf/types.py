"""The types of tensors in GGUF files, and their conversion to float32.

A quantised type stores a row in blocks of 32 or 256 elements. A block contains small integers and
their scales. Each function below converts all blocks of a tensor at once: its input has
one row of bytes for each block, its output one row of elements.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# All types by their number, for messages.
NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

# The types that regard reads: elements and bytes of a block.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144),
    14: (256, 210),
}  # fmt: skip
PLAIN = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
CHUNK = 2**14  # blocks that are converted at a time, so that they stay in the processor's cache


def dequantise(data: Tensor, type: int) -> Tensor:
    """Convert a tensor to float32.

    Args:
        data: the bytes of the tensor, uint8.
        type: its type, one of BLOCKS.

    Returns:
        Its elements, float32, in one dimension.
    """
    if type in PLAIN:
        return data.view(PLAIN[type]).float()
    elements, size = BLOCKS[type]
    blocks = data.view(-1, size)
    result = torch.empty(len(blocks), elements)
    rows = max(1, CHUNK * 32 // elements)
    for start in range(0, len(blocks), rows):
        result[start : start + rows] = DEQUANTISE[type](blocks[start : start + rows])
    return result.flatten()


def _halves(blocks: Tensor, start: int) -> Tensor:
    """The float16 number at byte `start` of each block: [N, 1], as float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    """The low halves of the bytes [N, n], then the high halves: [N, 2n]."""
    return torch.cat((data & 15, data >> 4), dim=1)


def _q8_0(blocks: Tensor) -> Tensor:
    """scale; 32 signed bytes."""
    return blocks[:, 2:].contiguous().view(torch.int8).float() * _halves(blocks, 0)


def _q4_0(blocks: Tensor) -> Tensor:
    """scale; 32 nibbles, of which 8 is zero."""
    return (_nibbles(blocks[:, 2:]).float() - 8) * _halves(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    """scale, minimum; 32 nibbles."""
    return _nibbles(blocks[:, 4:]).float() * _halves(blocks, 0) + _halves(blocks, 2)


def _q4_k(blocks: Tensor) -> Tensor:
    """scale of scales, scale of minimums, 8 scales and 8 minimums of 6 bits; 256 nibbles.

    The bytes of the scales and minimums are three groups of four. The first two groups have the
    first four scales and minimums in their low 6 bits, the third has the low 4 bits of the others,
    and the high 2 bits of the first two groups are the high bits of the others.
    """
    first, second, third = blocks[:, 4:16].split(4, dim=1)
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=1).float()
    minimums = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=1).float()
    scales, minimums = scales * _halves(blocks, 0), minimums * _halves(blocks, 2)
    # Each 32 bytes have 32 elements in their low halves, and the next 32 in their high halves.
    data = blocks[:, 16:].reshape(-1, 4, 1, 32)
    values = torch.cat((data & 15, data >> 4), dim=2).view(-1, 8, 32).float()
    return (values * scales[..., None] - minimums[..., None]).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    """256 values of 6 bits, of which 32 is zero: low 4 bits, high 2 bits; 16 scales; their scale.

    Each half of the block has 128 values, in four groups of 32. Their low bits are in 64 bytes: the
    low halves have groups 0 and 1, the high halves groups 2 and 3. Their high bits are in 32 bytes:
    group i in bits 2i and 2i + 1.
    """
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat((low & 15, low >> 4), dim=2).view(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = torch.cat([high >> 2 * i & 3 for i in range(4)], dim=2)
    values = (low | high << 4).view(-1, 16, 16).float() - 32
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float() * _halves(blocks, 208)
    return (values * scales[..., None]).flatten(1)


DEQUANTISE: dict[int, Callable[[Tensor], Tensor]] = {
    2: _q4_0, 3: _q4_1, 8: _q8_0, 12: _q4_k, 14: _q6_k,
}  # fmt: skip
