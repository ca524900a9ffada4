"""The CPU engine: C++ code (ops/cpu/inference.cpp) for a step of the search and for full passes.

`CpuModel` computes what Transformer.encode, Transformer.hidden and Transformer.start compute, and
`CpuStep` what Transformer.step with Beams.advance computes. The C++ code reads and writes the
tensors of Cache and Beams in place, so that everything else is the same for each engine.

The weights are converted to a blocked layout once per model, as float32, bfloat16 or int8
(`Transformer.precision`), and again when they change. Several threads can use one `CpuModel` at the
same time, because a call writes only to its own cache and search.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_int64, c_void_p
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from regard.decoding.beams import Beams
from regard.decoding.engines.cpu_weights import (
    KINDS,
    BlockedWeights,
    CBeams,
    CCache,
    CSlots,
    declared,
    whole_blocks,
)
from regard.decoding.engines.eager import EagerSearch
from regard.decoding.requests import Job
from regard.model.cache import Cache
from regard.model.overrides import weights_of
from regard.model.transformer import Transformer
from regard.ops.cpu import build
from regard.text.batching import Packed

GROUP = 512  # tokens of one pass: few enough that activations stay in the processor cache


class CpuModel:
    """A model's weights in the blocked layout, and the passes over them."""

    def __init__(
        self, library: ctypes.CDLL, model: Transformer, precision: str, blocks: dict[str, Tensor]
    ) -> None:
        self.library, self.config, self.blocks = library, model.config, blocks
        self.encoder: BlockedWeights | None = None
        self.decoder: BlockedWeights | None = None
        shared = library, model.config, precision, blocks
        if model.encoder is not None:
            table = model.table("source").weight
            self.encoder = BlockedWeights(*shared, "encoder", model.encoder, table)
        if model.decoder is not None:
            generates = model.config.head == "language-model"
            output = model.output_matrix() if generates else None
            table = model.table("target").weight
            self.decoder = BlockedWeights(*shared, "decoder", model.decoder, table, output)

    def hidden(self, row: Packed) -> Tensor:
        """The last layer's output [N, D] of the encoder, or of a decoder-only model."""
        hidden = torch.empty(len(row.tokens), self.config.d_model)
        weights = self.encoder or self.decoder
        assert weights is not None
        self._read(weights, row, hidden=hidden)
        return hidden

    def start(
        self, model: Transformer, source: Packed | None, read: Packed | None, sentences: int,
        width: int, steps: int,
    ) -> Cache:  # fmt: skip
        """Transformer.start: a cache with the source encoded and the prompt read."""
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
        self, weights: BlockedWeights, row: Packed, cache: Cache | None = None,
        hidden: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Run one stack over a packed row: write the output to `hidden`, keys and values to the
        cache."""
        stack = weights.reach(max(row.lengths))
        own = [] if cache is None else list(zip(cache.keys, cache.values, strict=True))
        memory = [] if cache is None else cache.memory
        lengths = None if cache is None else cache.memory_lengths
        for first, begin, offsets in groups(row):
            self.library.read_rows(
                ctypes.byref(stack), row.tokens[begin:].data_ptr(), offsets.data_ptr(),
                len(offsets) - 1, weights is self.decoder, self.config.window or 0,
                slots_of(own, first), slots_of(memory, first),
                None if lengths is None else lengths[first:].data_ptr(),
                None if hidden is None else hidden[begin:].data_ptr(), torch.get_num_threads(),
            )  # fmt: skip


def groups(row: Packed) -> Iterator[tuple[int, int, Tensor]]:
    """Split a row into groups of whole sequences of about GROUP tokens. Yields the index of the
    first sequence, its first token, and the offsets of the sequences from there."""
    first = begin = tokens = 0
    for b, length in enumerate([*row.lengths, GROUP]):
        if tokens and tokens + length > GROUP:
            yield first, begin, row.offsets[first : b + 1] - begin
            first, begin, tokens = b, begin + tokens, 0
        tokens += length


def slots_of(layers: Sequence[tuple[Tensor, Tensor]], first: int = 0) -> Any:
    """An array of CSlots: keys and values [B, H, T, K] of each layer, from sentence `first` on."""
    if not layers:
        return None
    each = [
        CSlots(keys[first:].data_ptr(), values[first:].data_ptr(), *keys.stride()[:3])
        for keys, values in layers
    ]
    return (CSlots * len(each))(*each)


class CpuStep:
    """Call it to run one step of the model and of the search; it returns the number of unfinished
    sentences."""

    def __init__(self, model: CpuModel, cache: Cache, beams: Beams) -> None:
        assert model.decoder is not None
        self.library, self.cache, self.beams = model.library, cache, beams
        self.stack = model.decoder.reach(cache.used + len(beams.records))
        # C++ implements beam search; Beams.advance does sampling and no_repeat.
        self.advances = not beams.sampling and beams.sequences is None
        padded = whole_blocks(self.library, self.stack.output.outputs)
        self.buffer = torch.empty(beams.tokens.numel(), padded)  # logits
        self.bound: Tensor | None = None  # the `visible` that the structures below point to

    def _bind(self) -> None:
        """Point to the current tensors; Cache.keep and Beams.keep replace them."""
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
        tensors = (beams.tokens, beams.parents, beams.finished, beams.limits, beams.min_steps,
                   beams.rows, beams.time, beams.scores, beams.records, beams.done)  # fmt: skip
        self.c_beams = CBeams(
            beams.candidates, beams.eos, beams.records.shape[1], beams.reordering is not None,
            *(tensor.data_ptr() for tensor in tensors),
        )  # fmt: skip

    def __call__(self) -> int:
        if self.advances:
            return self._step()
        self.beams.advance(self.logits())
        return int((~self.beams.done).sum())

    def logits(self) -> Tensor:
        """Run one step of the model alone: [B, W, V]."""
        self._step()
        shape = self.beams.tokens.shape
        return self.buffer[: shape.numel(), : self.stack.output.outputs].unflatten(0, shape)

    def _step(self) -> int:
        cache = self.cache
        if cache.visible is not self.bound:
            self._bind()
        self.c_cache.used = cache.used
        remaining: int = self.library.step(
            ctypes.byref(self.stack), ctypes.byref(self.c_cache), ctypes.byref(self.c_beams),
            self.buffer.data_ptr(), self.buffer.shape[1], self.advances, torch.get_num_threads(),
        )  # fmt: skip
        cache.used += cache.width
        return remaining


class CpuSearch(EagerSearch):
    """The search loop of EagerSearch with the C++ start and step."""

    def __init__(self, model: Transformer, job: Job, compiled: CpuModel) -> None:
        self.compiled = compiled
        super().__init__(model, job)
        self.cpu_step = CpuStep(compiled, self.cache, self.beams)

    def _start(self, source: Packed | None, read: Packed | None) -> Cache:
        steps, sentences = self.beams.records.shape[:2]
        return self.compiled.start(self.model, source, read, sentences, self.beams.width, steps)

    def _step(self) -> int:
        return self.cpu_step()


# ---- the CpuModel of a Transformer ----------------------------------------------------------

_models: WeakKeyDictionary[Transformer, tuple[Any, CpuModel]] = WeakKeyDictionary()
_converting = Lock()  # held while weights are converted; other threads wait for the result


def cpu_model(model: Transformer, blocks: dict[str, Tensor] | None = None) -> CpuModel | None:
    """The CpuModel with the current weights, from a cache if they have not changed. None if the C++
    code is not available or does not support the model.

    blocks: see `BlockedWeights`; they are of the current weights. None: they are computed.
    """
    weight = model.output_matrix()
    dtype = str(weight.dtype).removeprefix("torch.")
    mixed = model.encoder is not None and model.config.mixer != "attention"
    unsupported = mixed or bool(model.config.custom_parts)  # it implements the built-in parts only
    if weight.device.type != "cpu" or dtype not in KINDS or unsupported or model.training:
        return None
    library = build.library("inference")
    if library is None:
        return None
    precision = model.precision or dtype
    key = signature(declared(library), model), precision, library
    cached = _models.get(model)
    if cached is None or cached[0] != key:
        if any(part.dtype != weight.dtype for part in weights_of(model)):
            return None  # the C++ code reads all weights in the same way
        with _converting:
            cached = _models.get(model)
            if cached is None or cached[0] != key:
                cached = _models[model] = (
                    key,
                    CpuModel(library, model, precision, {} if blocks is None else blocks),
                )
    return cached[1]


def signature(library: ctypes.CDLL, model: Transformer) -> Any:
    """A value that changes when weights change, even if PyTorch's version counters do not."""
    tensors = weights_of(model)
    pointers = [tensor.data_ptr() for tensor in tensors]
    count = len(tensors)
    sizes = (c_int64 * count)(*[tensor.nbytes for tensor in tensors])
    numbers = library.fingerprint((c_void_p * count)(*pointers), sizes, count)
    return numbers, pointers, [tensor._version for tensor in tensors]
