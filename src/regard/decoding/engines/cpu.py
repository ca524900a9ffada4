"""The CPU's own step and pass, in C++ (ops/cpu/inference.cpp): the same functions as
Transformer.step with Beams.advance behind it, Transformer.encode, and decode into a cache.

Weights are packed once for a model, as float32, bfloat16 or int8, and again when they change.
Which of the three is `Transformer.precision`. The tensors of Cache and Beams are read and written
in place: nothing else depends on which engine ran. Several threads can use an engine at the same
time, because a call writes only to its own cache and search.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_int64, c_void_p
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.decoding.beams import Beams
from regard.decoding.engines.cpu_weights import (
    KINDS,
    CBeams,
    CCache,
    CSlots,
    Packing,
    declared,
    whole_blocks,
)
from regard.model.cache import Cache
from regard.model.transformer import Transformer
from regard.ops.cpu import build as native
from regard.text.batching import Packed

GROUP = 512  # tokens that are read at once: what lies between two products stays in the cache


class Engine:
    """A model's packed weights, and what can be done with them."""

    def __init__(self, library: ctypes.CDLL, model: Transformer, precision: str) -> None:
        self.library, self.config = library, model.config
        self.encoder: Packing | None = None
        self.decoder: Packing | None = None
        given = library, model.config, precision
        if model.encoder is not None:
            self.encoder = Packing(*given, model.encoder, model.table("source").weight)
        if model.decoder is not None:
            writes = model.config.head == "language-model"
            matrix = model.output_matrix() if writes else None
            self.decoder = Packing(*given, model.decoder, model.table("target").weight, matrix)

    def hidden(self, row: Packed) -> Tensor:
        """row -> [N, D] of the last layer, of an encoder or of a decoder that stands alone."""
        hidden = torch.empty(len(row.tokens), self.config.d_model)
        packing = self.encoder or self.decoder
        assert packing is not None
        self._read(packing, row, hidden=hidden)
        return hidden

    def start(
        self,
        model: Transformer,
        source: Packed | None,
        read: Packed | None,
        sentences: int,
        width: int,
        steps: int,
    ) -> Cache:
        """As Transformer.start."""
        assert self.decoder is not None
        before = 0 if read is None else max(read.lengths)
        cache = model.empty_cache(sentences, width, before, steps)
        if source is not None:
            model.check_row(source, "source")
            shape = (sentences, self.config.heads, max(source.lengths), self.config.head_size)
            cache.memory = [(torch.empty(shape), torch.empty(shape)) for _ in cache.keys]
            cache.memory_lengths = torch.tensor(source.lengths)
            memory = self.hidden(source)
            stack = self.decoder.reach(0)
            for first, begin, offsets in groups(source):
                self.library.project_memory(
                    ctypes.byref(stack), memory[begin:].data_ptr(),
                    offsets.data_ptr(), len(offsets) - 1, slots_of(cache.memory, first),
                    torch.get_num_threads(),
                )  # fmt: skip
        if read is not None:
            model.check_row(read, "target")
            self._read(self.decoder, read, cache)
            cache.began(read.lengths)
        return cache

    def _read(
        self,
        packing: Packing,
        row: Packed,
        cache: Cache | None = None,
        hidden: Tensor | None = None,
    ) -> None:
        """One stack over a packed row: vectors to `hidden`, keys and values to the cache."""
        stack = packing.reach(max(row.lengths))
        own = [] if cache is None else list(zip(cache.keys, cache.values, strict=True))
        memory = [] if cache is None else cache.memory
        lengths = None if cache is None else cache.memory_lengths
        for first, begin, offsets in groups(row):
            self.library.read_rows(
                ctypes.byref(stack), row.tokens[begin:].data_ptr(), offsets.data_ptr(),
                len(offsets) - 1, packing is self.decoder, self.config.window or 0,
                slots_of(own, first), slots_of(memory, first),
                None if lengths is None else lengths[first:].data_ptr(),
                None if hidden is None else hidden[begin:].data_ptr(), torch.get_num_threads(),
            )  # fmt: skip


def groups(row: Packed) -> Iterator[tuple[int, int, Tensor]]:
    """Whole sequences, about GROUP tokens at a time: the number of the first, its first token, and
    their offsets from there."""
    first = begin = tokens = 0
    for b, length in enumerate([*row.lengths, GROUP]):
        if tokens and tokens + length > GROUP:
            yield first, begin, row.offsets[first : b + 1] - begin
            first, begin, tokens = b, begin + tokens, 0
        tokens += length


def slots_of(layers: Sequence[tuple[Tensor, Tensor]], first: int = 0) -> Any:
    """Keys and values [B, H, T, K] of each layer, from sentence `first` on."""
    if not layers:
        return None
    each = [
        CSlots(keys[first:].data_ptr(), values[first:].data_ptr(), *keys.stride()[:3])
        for keys, values in layers
    ]
    return (CSlots * len(each))(*each)


class NativeStep:
    """Call it for one step of the model and the search: how many sentences go on."""

    def __init__(self, engine: Engine, cache: Cache, beams: Beams) -> None:
        assert engine.decoder is not None
        self.library, self.cache, self.beams = engine.library, cache, beams
        self.stack = engine.decoder.reach(cache.used + len(beams.records))
        # What else a search may ask for is left to Beams.advance.
        self.advances = not beams.samples and beams.said is None
        padded = whole_blocks(self.library, self.stack.output.outputs)
        self.room = torch.empty(beams.tokens.numel(), padded)  # of the logits
        self.bound: Tensor | None = None  # the table `visible` of the structures below

    def _bind(self) -> None:
        """Point to the tensors as they are now."""
        cache, beams = self.cache, self.beams
        self.bound = cache.visible
        self.own = slots_of(list(zip(cache.keys, cache.values, strict=True)))
        self.memory = slots_of(cache.memory)
        lengths = cache.memory_lengths
        self.c_cache = CCache(
            len(cache.visible), cache.width, cache.slots, cache.used, cache.config.window or 0,
            cache.visible.data_ptr(), cache.positions.data_ptr(), cache.slot_positions.data_ptr(),
            cache.next.data_ptr(), ctypes.addressof(self.own),
            None if self.memory is None else ctypes.addressof(self.memory),
            None if lengths is None else lengths.data_ptr(),
        )  # fmt: skip
        tensors = (beams.tokens, beams.parents, beams.answers, beams.limits, beams.least,
                   beams.rows, beams.time, beams.scores, beams.records, beams.done)  # fmt: skip
        self.c_beams = CBeams(
            beams.candidates, beams.eos, beams.records.shape[1], beams.moved is not None,
            *(tensor.data_ptr() for tensor in tensors),
        )  # fmt: skip

    def __call__(self) -> int:
        if self.advances:
            return self._step()
        self.beams.advance(self.logits())
        return int((~self.beams.done).sum())

    def logits(self) -> Tensor:
        """One step of the model alone: [B, W, V]."""
        self._step()
        shape = self.beams.tokens.shape
        return self.room[: shape.numel(), : self.stack.output.outputs].unflatten(0, shape)

    def _step(self) -> int:
        cache = self.cache
        if cache.visible is not self.bound:
            self._bind()
        self.c_cache.used = cache.used
        going: int = self.library.step(
            ctypes.byref(self.stack), ctypes.byref(self.c_cache), ctypes.byref(self.c_beams),
            self.room.data_ptr(), self.room.shape[1], self.advances, torch.get_num_threads(),
        )  # fmt: skip
        cache.used += cache.width
        return going


# ---- which engine a model has ---------------------------------------------------------------

_engines: WeakKeyDictionary[Transformer, tuple[Any, Engine]] = WeakKeyDictionary()
_packing = Lock()  # held while weights are packed; other threads wait for the result


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
    precision = model.precision or dtype
    now = signature(declared(library), model), precision, library
    known = _engines.get(model)
    if known is None or known[0] != now:
        with _packing:
            known = _engines.get(model)
            if known is None or known[0] != now:
                known = _engines[model] = now, Engine(library, model, precision)
    return known[1]


def signature(library: ctypes.CDLL, model: Transformer) -> Any:
    """What changes when weights do, even where PyTorch is not told of it."""
    tensors = weights_of(model)
    pointers = [tensor.data_ptr() for tensor in tensors]
    count = len(tensors)
    sizes = (c_int64 * count)(*[tensor.nbytes for tensor in tensors])
    numbers = library.fingerprint((c_void_p * count)(*pointers), sizes, count)
    return numbers, pointers, [tensor._version for tensor in tensors]


def weights_of(module: nn.Module) -> list[Tensor]:
    """All parameters: module.parameters() takes longer than a small model's step."""
    found: list[Tensor] = [w for w in module._parameters.values() if w is not None]
    for part in module._modules.values():
        if part is not None:
            found += weights_of(part)
    return found


@torch.no_grad()
def hidden(model: Transformer, row: Packed) -> Tensor:
    """Transformer.hidden of a model with one stack, by whichever engine it has: [N, D]."""
    engine = engine_of(model)
    if engine is None:
        return model.hidden(row) if model.encoder is not None else model.hidden(None, row)
    model.check_row(row, "target")
    return engine.hidden(row).to(model.output_matrix().dtype)
