"""A model's weights in the blocked layout of the C++ code (ops/cpu/product.h), in one of three
types, and the ctypes structures that point to them.

A structure never changes after another thread can see it: longer position tables go into a new
structure, and a call keeps the structure that it started with.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from ctypes import c_double, c_int64, c_uint64, c_void_p
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from regard.config.model import ModelConfig
from regard.model.attention import MultiHeadAttention
from regard.model.block import Block
from regard.model.positions import angles
from regard.model.quantise import quantise
from regard.model.ssru import Ssru
from regard.model.stack import Stack
from regard.ops.common import ACTIVATION_CODES
from regard.ops.cpu.build import once

KINDS = {"float32": 0, "bfloat16": 1, "int8": 2}
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}  # of a weight
MIN_POSITIONS = 256  # rows of the smallest position table
HUGE_PAGE = 2**21  # bytes
CHUNK = 2**25  # bytes reserved at a time; the system allocates only what is used


def structure(name: str, fields: dict[str, Any]) -> Any:
    """A ctypes structure. fields: names separated by blanks -> their type."""
    each = [(field, kind) for names, kind in fields.items() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": each})


# The structures of ops/cpu/product.h, layers.h, choose.h and inference.cpp.
CMatrix = structure("CMatrix", {"tiles scale start bias": c_void_p, "outputs inputs": c_int64})
CNorm = structure("CNorm", {"gain shift": c_void_p})
CLayer = structure("CLayer", {
    "self_norm": CNorm, "query_key_value self_output": CMatrix,
    "cross_norm": CNorm, "query key_value cross_output": CMatrix,
    "feed_norm": CNorm, "inner outer": CMatrix,
})  # fmt: skip
CStack = structure("CStack", {
    "kind activation norm_first heads key_value_heads head_size d_model layers": c_int64,
    "embeddings_are_bfloat16 recurrent": c_int64, "scale epsilon": c_double,
    "embeddings position_rows rotation": c_void_p, "positions": c_int64,
    "embedding_norm final_norm": CNorm, "layer": c_void_p, "output": CMatrix,
})  # fmt: skip
CSlots = structure("CSlots", {
    "keys values": c_void_p, "sentence_stride head_stride slot_stride": c_int64,
})  # fmt: skip
CCache = structure("CCache", {
    "sentences width slots used window": c_int64,
    "visible positions slot_positions next own memory memory_lengths": c_void_p,
})  # fmt: skip
CBeams = structure("CBeams", {
    "candidates eos room move": c_int64,
    "tokens parents finished limits min_steps rows time scores records done": c_void_p,
    "no_repeat prefix places steps top_k": c_int64, "temperature top_p": c_double,
    "noise sequences": c_void_p,
})  # fmt: skip
CSentence = structure("CSentence", {"own memory": c_void_p, "index memory_length": c_int64})
CSearch = structure("CSearch", {"cache": CCache, "beams": CBeams, "unfinished": c_int64})
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "block_size": (c_int64, []),
    "words_in": (c_int64, [c_int64] * 2),
    "pack_matrix": (None, [c_int64, c_void_p, c_int64, c_int64, *[c_void_p] * 2]),
    "fingerprint": (c_uint64, [c_void_p, c_void_p, c_int64]),
    "read_rows": (None, [*[c_void_p] * 3, *[c_int64] * 3, *[c_void_p] * 2, c_int64]),
    "project_memory": (None, [*[c_void_p] * 3, c_int64, c_void_p, c_int64]),
    "project_output": (None, [*[c_void_p] * 2, c_int64, c_void_p, *[c_int64] * 2]),
    "step": (c_int64, [*[c_void_p] * 2, c_int64, c_void_p, *[c_int64] * 2]),
}


@once
def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions set. They are set only once; otherwise another
    thread could call a function before its types are set."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class BlockedWeights:
    """The weights of one stack; `reach` returns the structure that C++ reads.

    Args:
        blocks: the blocked matrices by name; the names begin with `name`. Missing matrices are
            computed and added. They can be in memory that several processes share.
        memory: where the weights are allocated.
        output: the output matrix and its bias, for a decoder with a language-model head.
    """

    def __init__(
        self, library: ctypes.CDLL, config: ModelConfig, precision: str,
        blocks: dict[str, Tensor], memory: BlockMemory, name: str, stack: Stack, table: Tensor,
        output: tuple[Tensor, Tensor | None] | None = None,
    ) -> None:  # fmt: skip
        self.library, self.config, self.kind = library, config, KINDS[precision]
        self.blocks, self.memory, self.name, self.matrices = blocks, memory, name, 0
        self.position_rows = stack.position_rows
        self.references: list[Any] = []  # keep alive the memory that the structures point to
        self._lock = Lock()  # held while position tables are computed
        modules: Any = stack.layers
        layers = (CLayer * len(modules))(*map(self._layer, modules))
        self.references.append(layers)
        self._stack = CStack(
            self.kind, ACTIVATION_CODES[config.activation], config.norm_first, config.heads,
            config.key_value_heads, config.head_size, config.d_model, len(layers),
            table.dtype == torch.bfloat16, modules[0].recurrent,
            config.d_model**0.5 if config.scale_embeddings else 1.0, config.norm_epsilon,
            self._pointer(table.detach()), None, None, 0,
            self._norm(stack.embedding_norm), self._norm(stack.final_norm),
            ctypes.addressof(layers),
        )  # fmt: skip
        if output is not None:
            self._stack.output = self._matrix(*output)
        self._stack.references = self.references

    def reach(self, positions: int) -> Any:
        """A CStack with position tables for at least this many positions. It keeps everything that
        it points to alive, and no other call changes it."""
        if self.config.positions == "learned":
            positions = self.config.max_length
        stack = self._stack
        if stack.positions < positions:
            with self._lock:
                stack = self._stack
                if stack.positions < positions:
                    stack = self._stack = self._longer(positions)
        return stack

    def _longer(self, positions: int) -> Any:
        """A copy of the structure with longer position tables."""
        config, stack = self.config, CStack.from_buffer_copy(self._stack)
        count = max(MIN_POSITIONS, 1 << (positions - 1).bit_length())
        table_positions = torch.arange(positions if config.positions == "learned" else count)
        rows, rotation = self.position_rows(table_positions), None
        if rows is not None:
            rows = rows.detach().float()
            stack.position_rows = rows.data_ptr()
        if config.positions == "rotary":
            angle = angles(table_positions, config.head_size, config.position_base)
            rotation = torch.stack((angle.cos(), angle.sin()), -1).flatten(1).float()
            stack.rotation = rotation.data_ptr()
        stack.positions = len(table_positions)
        stack.references = self.references, rows, rotation
        return stack

    def _pointer(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        assert tensor.is_contiguous()
        self.references.append(tensor)
        return tensor.data_ptr()

    def _matrix(self, weight: Tensor, bias: Tensor | None) -> Any:
        name = f"{self.name}.{self.matrices}."
        self.matrices += 1
        if name + "tiles" not in self.blocks:
            parts = to_blocks(self.library, self.kind, weight, self.memory)
            self.blocks.update((name + part, tensor) for part, tensor in parts.items())
        tiles, scale, start = (
            self._pointer(self.blocks.get(name + part)) for part in ("tiles", "scale", "start")
        )
        return CMatrix(
            tiles, scale, start,
            self._pointer(None if bias is None else bias.detach().float()), *weight.shape,
        )  # fmt: skip

    def _linear(self, layer: nn.Linear, rows: slice = slice(None)) -> Any:
        return self._matrix(layer.weight[rows], None if layer.bias is None else layer.bias[rows])

    def _norm(self, norm: Any) -> Any:
        if norm is None:
            return CNorm()
        shift = getattr(norm, "bias", None)
        return CNorm(
            self._pointer(norm.weight.detach().float()),
            self._pointer(None if shift is None else shift.detach().float()),
        )

    def _layer(self, block: Block) -> Any:
        cross, feed = block.cross_attention, block.feed_forward
        layer = CLayer(
            feed_norm=self._norm(block.feed_forward_norm.norm),
            inner=self._linear(feed.inner),
            outer=self._linear(feed.outer),
        )
        if isinstance(block.mixer, Ssru):
            layer.self_norm = self._norm(block.mixer_norm.norm)
            both, bias = (block.mixer.input, block.mixer.forget), block.mixer.forget.bias
            layer.query_key_value = self._matrix(
                torch.cat([part.weight.detach() for part in both]),
                torch.cat((torch.zeros_like(bias), bias)),
            )
        else:
            own = block.self_attention
            layer.self_norm = self._norm(block.self_attention_norm.norm)
            layer.query_key_value = self._linear(own.query_key_value)
            layer.self_output = self._linear(own.output)
        if isinstance(cross, MultiHeadAttention) and block.cross_attention_norm is not None:
            layer.cross_norm = self._norm(block.cross_attention_norm.norm)
            layer.query = self._linear(cross.query_key_value, slice(cross.width))
            layer.key_value = self._linear(cross.query_key_value, slice(cross.width, None))
            layer.cross_output = self._linear(cross.output)
        return layer


class BlockMemory:
    """Memory for blocked matrices. Large models use huge pages: a step reads all weights, and one
    core reads them 1.4 times as fast as from pages of 4 KiB."""

    def __init__(self, size: int) -> None:
        """size: an estimate of the number of bytes of all matrices."""
        self.huge = size >= 2 * HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")  # Linux
        self.rest = torch.empty(0, dtype=torch.int)

    def allocate(self, words: int) -> Tensor:
        """Words of 4 bytes, aligned to 64 bytes, the size of a vector register."""
        whole = -(-words // 16) * 16
        if not self.huge:
            return aligned(torch.empty(whole + 16, dtype=torch.int), 64)[:words]
        if whole > len(self.rest):
            size = max(CHUNK, whole * 4) + HUGE_PAGE
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # the kernel does not support huge pages
                pages.madvise(mmap.MADV_HUGEPAGE)
            self.rest = aligned(torch.frombuffer(pages, dtype=torch.int), HUGE_PAGE)
        allocated, self.rest = self.rest[:words], self.rest[whole:]
        return allocated


def aligned(words: Tensor, size: int) -> Tensor:
    """The words that start at the first address divisible by `size`."""
    return words[-words.data_ptr() % size // 4 :]


def to_blocks(
    library: ctypes.CDLL, kind: int, weight: Tensor, memory: BlockMemory
) -> dict[str, Tensor]:
    """The blocked layout of weight[O, I]: its tiles, and in int8 also the scale and the start of
    each output."""
    weight = weight.detach().float().contiguous()
    outputs, inputs = weight.shape
    padded = whole_blocks(library, outputs)
    tiles = memory.allocate(padded * library.words_in(kind, inputs))
    parts = {"tiles": tiles}
    if kind == KINDS["int8"]:
        parts |= {"scale": torch.zeros(padded), "start": torch.empty(padded, dtype=torch.int)}
        numbers, parts["scale"][:outputs] = quantise(weight)
        weight = numbers.float()
    start = parts["start"].data_ptr() if "start" in parts else None
    library.pack_matrix(kind, weight.data_ptr(), outputs, inputs, tiles.data_ptr(), start)
    return parts


def whole_blocks(library: ctypes.CDLL, outputs: int) -> int:
    """The number of outputs of a product, rounded up to whole blocks."""
    block: int = library.block_size()
    return -(-outputs // block) * block
