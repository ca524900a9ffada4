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
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.beams import Beams
from regard.decoding.engines.cpu_weights import (
    BYTES,
    KINDS,
    BlockedWeights,
    BlockMemory,
    CBeams,
    CCache,
    CSearch,
    CSentence,
    CSlots,
    declared,
    whole_blocks,
)
from regard.decoding.engines.eager import EagerSearch, SearchInputs
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
        size = sum(weight.numel() for weight in weights_of(model)) * BYTES[precision]
        shared = library, model.config, precision, blocks, BlockMemory(size)
        if model.encoder is not None:
            table = model.table("source").weight
            self.encoder = BlockedWeights(*shared, "encoder", model.encoder, table)
        if model.decoder is not None:
            generates = model.config.head == "language-model"
            output = (model.output_matrix(), model.head.bias) if generates else None
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
        return self.start_all(model, [SearchInputs(source, read, sentences, width, steps)])[0]

    def start_all(
        self, model: Transformer, inputs: Sequence[SearchInputs], hidden: Tensor | None = None
    ) -> list[Cache]:
        """`start` for several searches: one pass reads the inputs of all of them. hidden: a tensor
        [N, D] that receives the decoder's output for the tokens that it reads."""
        assert self.decoder is not None
        caches = [self._empty_cache(model, each) for each in inputs]
        sources = [each.source for each in inputs if each.source is not None]
        if sources:
            source = joined(sources)
            memory = self.hidden(source)
            where = CacheSentences(caches)
            stack = self.decoder.reach(0)
            for first, begin, offsets in groups(source):
                self.library.project_memory(
                    ctypes.byref(stack), memory[begin:].data_ptr(), offsets.data_ptr(),
                    len(offsets) - 1, where.after(first), torch.get_num_threads(),
                )  # fmt: skip
        pairs = zip(caches, inputs, strict=True)
        reading = [(cache, each.read) for cache, each in pairs if each.read is not None]
        if reading:
            row = joined([read for _, read in reading])
            where = CacheSentences([cache for cache, _ in reading])
            self._read(self.decoder, row, where, hidden)
            for cache, read in reading:
                cache.began(read.lengths)
        return caches

    def hidden_after(self, model: Transformer, source: Packed | None, read: Packed) -> Tensor:
        """`Transformer.hidden` of the decoder: [N, D] for a row that it reads."""
        hidden = torch.empty(len(read.tokens), self.config.d_model)
        self.start_all(model, [SearchInputs(source, read, len(read), 1, 0)], hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [N, V] of rows of the decoder's output [N, D]."""
        assert self.decoder is not None
        stack, rows = self.decoder.reach(0), hidden.contiguous()
        outputs = stack.output.outputs
        logits = torch.empty(len(rows), whole_blocks(self.library, outputs))
        self.library.project_output(
            ctypes.byref(stack), rows.data_ptr(), len(rows), logits.data_ptr(), logits.shape[1],
            torch.get_num_threads(),
        )  # fmt: skip
        return logits[:, :outputs]

    def _empty_cache(self, model: Transformer, inputs: SearchInputs) -> Cache:
        """A cache with memory for everything that will be read."""
        source, read, sentences, width, steps = inputs
        if read is not None:
            model.check_row(read, "target")
        slots = (0 if read is None else max(read.lengths)) + steps * width
        device = torch.device("cpu")
        cache = Cache(self.config, sentences, width, slots, torch.float32, device, masked=False)
        if source is not None:
            model.check_row(source, "source")
            heads, size = self.config.key_value_heads, self.config.head_size
            shape = (sentences, heads, max(source.lengths), size)
            cache.memory = [(torch.empty(shape), torch.empty(shape)) for _ in cache.keys]
            cache.memory_lengths = torch.tensor(source.lengths)
        return cache

    def _read(
        self, weights: BlockedWeights, row: Packed, where: CacheSentences | None = None,
        hidden: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Run one stack over a packed row: write the output to `hidden`, and keys and values to
        caches."""
        stack = weights.reach(max(row.lengths))
        for first, begin, offsets in groups(row):
            self.library.read_rows(
                ctypes.byref(stack), row.tokens[begin:].data_ptr(), offsets.data_ptr(),
                len(offsets) - 1, weights is self.decoder, self.config.window or 0,
                None if where is None else where.after(first),
                None if hidden is None else hidden[begin:].data_ptr(), torch.get_num_threads(),
            )  # fmt: skip


def joined(rows: Sequence[Packed]) -> Packed:
    """The sequences of several packed rows as one row."""
    if len(rows) == 1:
        return rows[0]
    lengths = [length for row in rows for length in row.lengths]
    return Packed(torch.cat([row.tokens for row in rows]), torch.tensor([0, *lengths]).cumsum(0))


def groups(row: Packed) -> Iterator[tuple[int, int, Tensor]]:
    """Split a row into groups of whole sequences of about GROUP tokens. Yields the index of the
    first sequence, its first token, and the offsets of the sequences from there."""
    first = begin = tokens = 0
    for b, length in enumerate([*row.lengths, GROUP]):
        if tokens and tokens + length > GROUP:
            yield first, begin, row.offsets[first : b + 1] - begin
            first, begin, tokens = b, begin + tokens, 0
        tokens += length


def slots_of(layers: Sequence[tuple[Tensor, Tensor]]) -> Any:
    """An array of CSlots: keys and values [B, G, T, K] of each layer; None if there is no layer."""
    if not layers:
        return None
    each = [
        CSlots(keys.data_ptr(), values.data_ptr(), *keys.stride()[:3]) for keys, values in layers
    ]
    return (CSlots * len(each))(*each)


def own_slots(cache: Cache) -> Any:
    """An array of CSlots: the keys and values of each layer, or the states of recurrent layers."""
    if not cache.states:
        return slots_of(list(zip(cache.keys, cache.values, strict=True)))
    each = [CSlots(state.data_ptr(), None, state.stride(0), 0, state.stride(1))
            for state in cache.states]  # fmt: skip
    return (CSlots * len(each))(*each)


def address(array: Any) -> int | None:
    """The address of a ctypes array, or None."""
    return None if array is None else ctypes.addressof(array)


class CacheSentences:
    """An array of CSentence with all sentences of the caches."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        self.slots = []  # keep the arrays alive
        sentences = []
        for cache in caches:
            own = own_slots(cache)
            memory = slots_of(cache.memory)
            self.slots.append((own, memory))
            count = len(cache.visible)
            lengths = [0] * count if memory is None else cache.memory_lengths.tolist()  # type: ignore[union-attr]
            pointers = address(own), address(memory)
            sentences += [CSentence(*pointers, b, length) for b, length in enumerate(lengths)]
        self.array = (CSentence * len(sentences))(*sentences)

    def after(self, first: int) -> Any:
        """A pointer to the sentence with this index."""
        return ctypes.byref(self.array, first * ctypes.sizeof(CSentence))


class SearchPointers:
    """The tensors of one search as C++ reads them."""

    def __init__(self, cache: Cache, beams: Beams) -> None:
        self.cache, self.beams = cache, beams
        self.c_search = CSearch()
        self.visible: Tensor | None = None  # the `visible` that the structure points to

    def update(self) -> None:
        """Point to the current tensors; Cache.keep and Beams.keep replace them."""
        cache, beams = self.cache, self.beams
        if cache.visible is self.visible:
            return
        self.visible = cache.visible
        self.own = own_slots(cache)
        self.memory = slots_of(cache.memory)
        lengths = cache.memory_lengths
        self.c_search.cache = CCache(
            len(cache.visible), cache.width, cache.slots, cache.used, cache.config.window or 0,
            cache.visible.data_ptr(), cache.positions.data_ptr(), cache.slot_positions.data_ptr(),
            cache.next.data_ptr(), address(self.own), address(self.memory),
            None if lengths is None else lengths.data_ptr(),
        )  # fmt: skip
        tensors = (beams.tokens, beams.parents, beams.finished, beams.limits, beams.min_steps,
                   beams.rows, beams.time, beams.scores, beams.records, beams.done)  # fmt: skip
        options, steps = beams.options, len(beams.records)
        self.c_search.beams = CBeams(
            beams.candidates, beams.eos, beams.records.shape[1], beams.reordering is not None,
            *(tensor.data_ptr() for tensor in tensors),
            options.no_repeat, beams.prefix, beams.prefix + steps, steps, options.top_k,
            options.temperature, options.top_p,
            None if beams.noise is None else beams.noise.data_ptr(),
            None if beams.sequences is None else beams.sequences.data_ptr(),
        )  # fmt: skip

    @property
    def unfinished(self) -> int:
        """The number of unfinished sentences after a step."""
        count: int = self.c_search.unfinished
        return count


class CpuStep:
    """Call it to run one step of the model and of all searches; it returns the number of unfinished
    sentences."""

    def __init__(self, model: CpuModel, searches: Sequence[SearchPointers] = ()) -> None:
        self.model, self.library = model, model.library
        self.buffer = torch.empty(0, 0)  # logits
        self.set_searches(searches)

    def set_searches(self, searches: Sequence[SearchPointers]) -> None:
        """Continue with these searches."""
        assert self.model.decoder is not None
        self.searches = searches
        pointers = [ctypes.addressof(search.c_search) for search in searches]
        self.pointers = (c_void_p * len(pointers))(*pointers)
        ends = [each.cache.used + len(each.beams.records) for each in searches]
        self.stack = self.model.decoder.reach(max(ends, default=0))
        rows = sum(search.beams.tokens.numel() for search in searches)
        if rows > len(self.buffer):
            padded = whole_blocks(self.library, self.stack.output.outputs)
            self.buffer = torch.empty(rows, padded)

    def __call__(self) -> int:
        for search in self.searches:
            search.update()
        remaining: int = self.library.step(
            ctypes.byref(self.stack), self.pointers, len(self.searches), self.buffer.data_ptr(),
            self.buffer.shape[1], torch.get_num_threads(),
        )  # fmt: skip
        for search in self.searches:
            search.cache.used += search.cache.width
        return remaining


class CpuSearch(EagerSearch):
    """The search loop of EagerSearch with the C++ start and step. cache: the inputs of the
    job, which `compiled` has read."""

    def __init__(self, model: Transformer, job: Job, compiled: CpuModel, cache: Cache) -> None:
        super().__init__(model, job, cache)
        self.compiled = compiled
        self.pointers = SearchPointers(cache, self.beams)
        self.cpu_step: CpuStep | None = None  # of this search alone
        self.all_records, self.time = self.beams.records.numpy(), self.beams.time.numpy()

    def _step(self) -> int:
        if self.cpu_step is None:
            self.cpu_step = CpuStep(self.compiled, [self.pointers])
        return self.cpu_step()

    def records(self) -> NDArray[Any]:
        return self.all_records[: self.time[0]]


def start_searches(model: Transformer, jobs: Sequence[Job], compiled: CpuModel) -> list[CpuSearch]:
    """Start a search for each job; one pass reads the inputs of all jobs."""
    device = torch.device("cpu")
    caches = compiled.start_all(model, [SearchInputs.of(job, device) for job in jobs])
    pairs = zip(jobs, caches, strict=True)
    return [CpuSearch(model, job, compiled, cache) for job, cache in pairs]


# ---- the CpuModel of a Transformer ----------------------------------------------------------

_models: WeakKeyDictionary[Transformer, tuple[Any, CpuModel]] = WeakKeyDictionary()
_converting = Lock()  # held while weights are converted; other threads wait for the result


def cpu_model(model: Transformer, blocks: dict[str, Tensor] | None = None) -> CpuModel | None:
    """The CpuModel with the current weights, from a cache if they have not changed. None if the C++
    code is not available or does not support the model.

    blocks: see `BlockedWeights`; they must match the current weights. None: compute them.
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
