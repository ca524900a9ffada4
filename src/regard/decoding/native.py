"""The CPU's own step and pass, in C++ (native/inference.cpp): the same functions as
Transformer.step with Beams.advance behind it, Transformer.encode, and decode into a cache.

Weights are packed once for a model, as float32, bfloat16 or int8, and packed again when they
change. Which of the three is `Transformer.precision`. The tensors of Cache and Beams are read and
written where they are: nothing else knows which engine ran.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_double, c_int64, c_uint64, c_void_p
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard import native
from regard.decoding.beams import Beams
from regard.model.attention import MultiHeadAttention
from regard.model.block import EPSILON, Block
from regard.model.cache import Cache
from regard.model.positions import angles
from regard.model.transformer import Stack, Transformer
from regard.text.batching import Packed

KINDS = {"float32": 0, "bfloat16": 1, "int8": 2}
ACTIVATIONS = {"relu": 1, "gelu": 2, "swiglu": 3}
GROUP = 512  # tokens that are read at once: what lies between two products stays in the cache
FEWEST_POSITIONS = 256  # that are made at once


def structure(name: str, pointers: str = "", integers: str = "", **others: Any) -> Any:
    """A ctypes structure, its fields in this order: pointers, integers, others."""
    fields: list[tuple[str, Any]] = [(field, c_void_p) for field in pointers.split()]
    fields += [(field, c_int64) for field in integers.split()]
    return type(name, (ctypes.Structure,), {"_fields_": [*fields, *others.items()]})


# As in native/product.h, layers.h, choose.h and inference.cpp.
CMatrix = structure("CMatrix", "tiles scale start bias", "outputs inputs")
CNorm = structure("CNorm", "gain shift")
CLayer = structure(
    "CLayer",
    self_norm=CNorm, query_key_value=CMatrix, self_output=CMatrix,
    cross_norm=CNorm, query=CMatrix, key_value=CMatrix, cross_output=CMatrix,
    feed_norm=CNorm, inner=CMatrix, outer=CMatrix,
)  # fmt: skip
CStack = structure(
    "CStack", "",
    "kind activation norm_first heads head_size d_model layers embeddings_are_short",
    scale=c_double, epsilon=c_double, embeddings=c_void_p, place=c_void_p, turn=c_void_p,
    positions=c_int64, embedding_norm=CNorm, final_norm=CNorm, layer=c_void_p, output=CMatrix,
)  # fmt: skip
CSlots = structure("CSlots", "keys values", "sentence_stride head_stride slot_stride")
CCache = structure(
    "CCache", "", "sentences width slots used window",
    **dict.fromkeys("visible positions slot_positions next own memory memory_lengths".split(),
                    c_void_p),
)  # fmt: skip
CBeams = structure(
    "CBeams", "", "candidates eos room move",
    **dict.fromkeys("tokens parents answers limits least rows time scores records done".split(),
                    c_void_p),
)  # fmt: skip
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "block_size": (c_int64, []),
    "words_in": (c_int64, [c_int64] * 2),
    "pack_matrix": (None, [c_int64, c_void_p, c_int64, c_int64, *[c_void_p] * 3]),
    "fingerprint": (c_uint64, [c_void_p, c_void_p, c_int64]),
    "read_rows": (None, [*[c_void_p] * 3, *[c_int64] * 3, *[c_void_p] * 4, c_int64]),
    "project_memory": (None, [*[c_void_p] * 3, c_int64, c_void_p, c_int64]),
    "step": (c_int64, [*[c_void_p] * 4, *[c_int64] * 3]),
}


@cache
def declared(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Engine:
    """A model's packed weights, and what can be done with them."""

    def __init__(self, library: ctypes.CDLL, model: Transformer, precision: str) -> None:
        self.library, self.config, self.kind = library, model.config, KINDS[precision]
        self.kept: list[Any] = []  # what the structures point to
        self.positions = 0  # that are made
        tables = [model.table(side).weight.detach() for side in ("source", "target")]
        self.encoder, self.decoder = (
            None if stack is None else self._stack(stack, table)
            for stack, table in zip((model.encoder, model.decoder), tables, strict=True)
        )
        if self.decoder is not None and model.config.head == "language-model":
            self.decoder.output = self._matrix(model.output_matrix(), None)

    # ---- packing ------------------------------------------------------------------------

    def _pointer(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self.kept.append(tensor)
        return tensor.data_ptr()

    def _matrix(self, weight: Tensor, bias: Tensor | None) -> Any:
        weight = weight.detach().float().contiguous()
        outputs, inputs = weight.shape
        block = self.library.block_size()
        padded = -(-outputs // block) * block
        words = self.library.words_in(self.kind, inputs)
        # Registers are loaded whole: tiles begin at a multiple of their size.
        tiles = torch.empty(padded * words + 16, dtype=torch.int32)
        tiles = tiles[-(tiles.data_ptr() // 4) % 16 :]
        int8 = self.kind == KINDS["int8"]
        scale = torch.empty(padded) if int8 else None
        start = torch.empty(padded, dtype=torch.int32) if int8 else None
        made = CMatrix(
            self._pointer(tiles), self._pointer(scale), self._pointer(start),
            self._pointer(None if bias is None else bias.detach().float()), outputs, inputs,
        )  # fmt: skip
        self.library.pack_matrix(
            self.kind, weight.data_ptr(), outputs, inputs, made.tiles, made.scale, made.start
        )
        return made

    def _norm(self, norm: Any) -> Any:
        if norm is None:
            return CNorm(None, None)
        shift = getattr(norm, "bias", None)
        return CNorm(
            self._pointer(norm.weight.detach().float()),
            self._pointer(None if shift is None else shift.detach().float()),
        )

    def _linear(self, layer: nn.Linear, rows: slice = slice(None)) -> Any:
        return self._matrix(layer.weight[rows], None if layer.bias is None else layer.bias[rows])

    def _layer(self, block: Block) -> Any:
        own, cross, feed = block.self_attention, block.cross_attention, block.feed_forward
        layer = CLayer(
            self_norm=self._norm(block.self_attention_norm.norm),
            query_key_value=self._linear(own.query_key_value),
            self_output=self._linear(own.output),
            feed_norm=self._norm(block.feed_forward_norm.norm),
            inner=self._linear(feed.inner), outer=self._linear(feed.outer),
        )  # fmt: skip
        if isinstance(cross, MultiHeadAttention) and block.cross_attention_norm is not None:
            layer.cross_norm = self._norm(block.cross_attention_norm.norm)
            layer.query = self._linear(cross.query_key_value, slice(cross.width))
            layer.key_value = self._linear(cross.query_key_value, slice(cross.width, None))
            layer.cross_output = self._linear(cross.output)
        return layer

    def _stack(self, stack: Stack, table: Tensor) -> Any:
        config = self.config
        blocks: Any = stack.layers
        layers = (CLayer * len(blocks))(*(self._layer(block) for block in blocks))
        self.kept += [layers, stack]
        made = CStack(
            self.kind, ACTIVATIONS[config.activation], config.norm_first, config.heads,
            config.head_size, config.d_model, len(layers), table.dtype == torch.bfloat16,
            config.d_model**0.5 if config.scale_embeddings else 1.0, EPSILON,
            self._pointer(table), None, None, 1,
            self._norm(stack.embedding_norm), self._norm(stack.final_norm),
            ctypes.addressof(layers),
        )  # fmt: skip
        made.stack = stack
        return made

    def _reach(self, stack: Any, positions: int) -> None:
        """Have so many positions ready."""
        if stack.positions >= positions:
            return
        limit = self.config.max_length if self.config.positions == "learned" else positions
        count = min(limit, max(FEWEST_POSITIONS, 1 << (positions - 1).bit_length()))
        if self.config.positions == "learned":
            count = limit
        where = torch.arange(count)
        place = stack.stack.position_rows(where)
        if place is not None:
            stack.place = self._pointer(place.detach().float().contiguous())
        if self.config.positions == "rotary":
            angle = angles(where, self.config.head_size, self.config.position_base)
            turn = torch.stack((angle.cos(), angle.sin()), -1).flatten(1).float()
            stack.turn = self._pointer(turn.contiguous())
        stack.positions = count

    # ---- passes -------------------------------------------------------------------------

    def hidden(self, row: Packed) -> Tensor:
        """row -> [N, D] of the last layer, of an encoder or of a decoder that stands alone."""
        stack = self.decoder if self.encoder is None else self.encoder
        self._reach(stack, max(row.lengths))
        hidden = torch.empty(len(row.tokens), self.config.d_model)
        causal = self.encoder is None
        for first, last in groups(row.lengths):
            begin = int(row.offsets[first])
            offsets = row.offsets[first : last + 1] - begin
            self.library.read_rows(
                ctypes.byref(stack), row.tokens[begin:].data_ptr(), offsets.data_ptr(),
                last - first, causal, self.config.window or 0, None, None, None,
                hidden[begin:].data_ptr(), torch.get_num_threads(),
            )  # fmt: skip
        return hidden

    def start(
        self, model: Transformer, source: Packed | None, read: Packed | None, sentences: int,
        width: int, steps: int,
    ) -> Cache:  # fmt: skip
        """As Transformer.start."""
        for row, side in ((source, "source"), (read, "target")):
            if row is not None:
                model.check_row(row, side)
        before = 0 if read is None else max(read.lengths)
        cache = model.empty_cache(sentences, width, before, steps)
        self._reach(self.decoder, before + steps)
        memory_slots = None
        if source is not None:
            memory = self.hidden(source)
            shape = (sentences, self.config.heads, max(source.lengths), self.config.head_size)
            cache.memory = [
                (torch.empty(shape), torch.empty(shape)) for _ in range(self.decoder.layers)
            ]
            cache.memory_lengths = torch.tensor(source.lengths)
            memory_slots = slots_of(cache.memory)
            for first, last in groups(source.lengths):
                begin = int(source.offsets[first])
                offsets = source.offsets[first : last + 1] - begin
                self.library.project_memory(
                    ctypes.byref(self.decoder), memory[begin:].data_ptr(), offsets.data_ptr(),
                    last - first, moved(memory_slots, first), torch.get_num_threads(),
                )  # fmt: skip
        if read is not None:
            own = slots_of(list(zip(cache.keys, cache.values, strict=True)))
            for first, last in groups(read.lengths):
                begin = int(read.offsets[first])
                offsets = read.offsets[first : last + 1] - begin
                lengths = cache.memory_lengths
                self.library.read_rows(
                    ctypes.byref(self.decoder), read.tokens[begin:].data_ptr(), offsets.data_ptr(),
                    last - first, True, self.config.window or 0, moved(own, first),
                    None if memory_slots is None else moved(memory_slots, first),
                    None if lengths is None else lengths[first:].data_ptr(),
                    None, torch.get_num_threads(),
                )  # fmt: skip
            cache.began(read.lengths)
        return cache


def groups(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Whole sequences, about GROUP tokens at a time: the first, and the one after the last."""
    first = tokens = 0
    for b, length in enumerate(lengths):
        if tokens and tokens + length > GROUP:
            yield first, b
            first, tokens = b, 0
        tokens += length
    yield first, len(lengths)


def slots_of(layers: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """Keys and values [B, H, T, K] of each layer."""
    return (CSlots * len(layers))(
        *(CSlots(k.data_ptr(), v.data_ptr(), *k.stride()[:3]) for k, v in layers)
    )


def moved(slots: Any, sentences: int) -> Any:
    """The same from another sentence on."""
    return type(slots)(*(
        CSlots(
            s.keys + 4 * sentences * s.sentence_stride, s.values + 4 * sentences * s.sentence_stride,
            s.sentence_stride, s.head_stride, s.slot_stride,
        )
        for s in slots
    ))  # fmt: skip


class NativeStep:
    """Call it for one step of the model and the search: how many sentences go on."""

    def __init__(self, engine: Engine, cache: Cache, beams: Beams) -> None:
        self.engine, self.cache, self.beams = engine, cache, beams
        # What else a search may ask for is left to Beams.advance.
        self.advances = not beams.samples and beams.said is None
        rows = beams.tokens.numel()
        block = engine.library.block_size()
        self.stride = -(-engine.decoder.output.outputs // block) * block
        self.logits = torch.empty(rows, self.stride)
        self.bound: Tensor | None = None  # the table `visible` of the structures below

    def _bind(self) -> None:
        cache, beams = self.cache, self.beams
        self.bound, sentences = cache.visible, len(cache.visible)
        self.own = slots_of(list(zip(cache.keys, cache.values, strict=True)))
        self.memory = slots_of(cache.memory) if cache.memory else None
        self.c_cache = CCache(
            sentences, cache.width, cache.slots, cache.used, cache.config.window or 0,
            *(t.data_ptr() for t in (cache.visible, cache.positions, cache.slot_positions)),
            cache.next.data_ptr(), ctypes.addressof(self.own),
            None if self.memory is None else ctypes.addressof(self.memory),
            None if cache.memory_lengths is None else cache.memory_lengths.data_ptr(),
        )  # fmt: skip
        tensors = (beams.tokens, beams.parents, beams.answers, beams.limits, beams.least,
                   beams.rows, beams.time, beams.scores, beams.records, beams.done)  # fmt: skip
        self.c_beams = CBeams(
            beams.candidates, beams.eos, beams.records.shape[1], beams.moved is not None,
            *(t.data_ptr() for t in tensors),
        )  # fmt: skip

    def __call__(self) -> int:
        cache, beams = self.cache, self.beams
        if cache.visible is not self.bound:
            self._bind()
        self.c_cache.used = cache.used
        going = self.engine.library.step(
            ctypes.byref(self.engine.decoder), ctypes.byref(self.c_cache),
            ctypes.byref(self.c_beams), self.logits.data_ptr(), self.stride, self.advances,
            torch.get_num_threads(),
        )  # fmt: skip
        cache.used += cache.width
        if self.advances:
            return int(going)
        rows = self.logits[: beams.tokens.numel(), : self.engine.decoder.output.outputs]
        beams.advance(rows.unflatten(0, beams.tokens.shape))
        return int((~beams.done).sum())


# ---- which engine a model has ---------------------------------------------------------------

_engines: WeakKeyDictionary[Transformer, tuple[Any, Engine]] = WeakKeyDictionary()


def engine_of(model: Transformer) -> Engine | None:
    """The model's engine with its weights as they are now; None: PyTorch has to serve."""
    weight = model.output_matrix()
    dtype = str(weight.dtype).removeprefix("torch.")
    mixed = model.encoder is not None and model.config.mixer != "attention"
    if weight.device.type != "cpu" or dtype not in KINDS or mixed or model.training:
        return None
    library = native.library("inference")
    if library is None:
        return None
    declared(library)
    precision = dtype if model.precision is None else model.precision
    now = signature(library, model), precision, native.variant()
    known = _engines.get(model)
    if known is None or known[0] != now:
        known = _engines[model] = now, Engine(library, model, precision)
    return known[1]


def signature(library: ctypes.CDLL, model: Transformer) -> Any:
    """What changes when weights do."""
    tensors = list(model.parameters())
    count = len(tensors)
    pointers = (c_void_p * count)(*(tensor.data_ptr() for tensor in tensors))
    sizes = (c_int64 * count)(*(tensor.nbytes for tensor in tensors))
    seen = library.fingerprint(pointers, sizes, count)
    return seen, tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
