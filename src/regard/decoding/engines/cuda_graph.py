"""The GPU engine: one step of the model and of the search as a CUDA graph that is replayed.

A decoding step consists of about a hundred small kernels, and launching them from Python takes much
longer than running them. A CUDA graph launches all of them at once, but with the same memory and
shapes each time. So all tensors are buffers of fixed size (`GraphBuffers`), a batch is padded with
sentences that are done before the first step, and the host only chooses the graph to launch. The
host does not wait for the result of a step: it reads the flags of an earlier step while the GPU
works on the next one.

Buffers belong to one search at a time, so concurrent searches in several threads use separate
buffers. A lock protects choosing and creating buffers; the GPU runs the steps of all searches in
the order in which they are launched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from itertools import chain, count
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.config.sections import DecodingConfig
from regard.decoding.beams import Beams, candidates_of
from regard.decoding.engines.eager import attention_backend
from regard.decoding.requests import Job
from regard.device import current_device, no_collection
from regard.model.cache import Cache, to_add
from regard.model.overrides import weights_of
from regard.model.padded_encoder import Rectangle, self_mask, split
from regard.model.stack import Stack
from regard.model.transformer import Transformer
from regard.text.batching import Packed

LENGTH_UNIT = 32  # lengths are rounded up to a multiple of this
MAX_BUFFERS = 24  # kept for a model; each needs memory, and time to create its graphs
MAX_STEPS_AHEAD = 2  # of the host before the GPU
FIXED_ROWS = 16  # sentences of buffers with fixed shapes
SHRINK_AT = 3 / 4  # sentences that must be done before the others move to smaller buffers
# Options that no graph depends on.
NOT_IN_GRAPHS = ("seed", "length_penalty", "length_offset", "max_length")

_buffers: WeakKeyDictionary[Transformer, OrderedDict[Any, GraphBuffers]] = WeakKeyDictionary()
_lock = RLock()  # held while buffers are chosen or created


class GraphSearch:
    """A search by CUDA graphs, one iteration per step. The host may be some steps ahead.

    fixed: whether the shapes in which a sentence is computed depend on that sentence alone
    (graph_groups.py). There must be at most FIXED_ROWS sentences with the same `buffer_sizes`.
    """

    def __init__(self, model: Transformer, job: Job, fixed: bool = False) -> None:
        self.model, self.job, self.fixed, self.time = model, job, fixed, 0
        sentences = len(job.limits)
        self.rows = np.arange(sentences)  # the sentence of the job in each row of the buffers
        # Records copied from the buffers: the first step, the sentences, and their records.
        self.past: list[tuple[int, NDArray[Any], NDArray[Any]]] = []
        self.since = 0  # the first step whose records are still in the buffers
        self.buffers = self._acquire(sentences)
        try:
            with self.buffers.on_device:
                self.buffers.load(model, job, fixed)
        except BaseException:  # for example out of memory: the next search can use the buffers
            self.buffers.busy = False
            raise

    def _acquire(self, sentences: int) -> GraphBuffers:
        rows = FIXED_ROWS if self.fixed else rounded_batch(sentences)
        job = self.job
        return acquire_buffers(self.model, job.options, job.eos, rows, *buffer_sizes(job))

    def __iter__(self) -> Generator[None, None, None]:
        last = max(self.job.limits)
        try:
            while self.time < last:
                with self.buffers.on_device:
                    self.buffers.step()
                self.time += 1
                done = self.buffers.done_flags()[: len(self.rows)]
                yield
                remaining = int((~done).sum())
                if not remaining:
                    return
                if not self.fixed and remaining <= (1 - SHRINK_AT) * self.buffers.sentences:
                    with self.buffers.on_device:
                        self._shrink()
        finally:  # also if the caller stops early: the next search can use the buffers
            self._save_records()
            self.buffers.busy = False

    def _shrink(self) -> None:
        """Move the sentences that are not done to smaller buffers."""
        old = self.buffers
        torch.cuda.current_stream().synchronize()
        remaining = (~old.done[: len(self.rows)]).numpy().nonzero()[0]
        if not len(remaining):
            return
        self._save_records()
        self.buffers = self._acquire(len(remaining))
        self.buffers.move_from(old, torch.from_numpy(remaining).to(old.beams.rows))
        self.rows = self.rows[remaining]
        old.busy = False

    def _save_records(self) -> None:
        if self.since < self.time:
            self.past.append((self.since, self.rows, self._new_records().copy("K")))
            self.since = self.time

    def _new_records(self) -> NDArray[Any]:
        with self.buffers.on_device:
            return self.buffers.fetch_records(slice(self.since, self.time), len(self.rows))

    def records(self) -> NDArray[Any]:
        """The candidates of all steps so far: [steps, B, C, 4]."""
        now = [(self.since, self.rows, self._new_records())] if self.since < self.time else []
        pieces = [*self.past, *now]
        if len(pieces) == 1:
            return pieces[0][2]
        shape = self.time, len(self.job.limits), candidates_of(self.job.options), 4
        records = np.zeros(shape)
        for since, rows, piece in pieces:
            records[since : since + len(piece), rows] = piece
        return records


def buffer_sizes(job: Job) -> list[int]:
    """The lengths of the buffers for a job: of sources, of what the decoder reads before the first
    step, of prefixes, and of the search."""
    source = max(map(len, job.sources)) if job.sources else 0
    lengths = source, max(map(len, job.read)), job.longest_prefix, max(job.limits)
    return [-(-length // LENGTH_UNIT) * LENGTH_UNIT for length in lengths]


def rounded_batch(size: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, ...: few sizes, and at most a third is padding."""
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if power >= 4 and size <= power * 3 // 4 else power


def acquire_buffers(
    model: Transformer, options: DecodingConfig, eos: int, sentences: int, *sizes: int
) -> GraphBuffers:
    """Buffers of this shape that no other search uses, marked as busy. They are created if there
    are none; beyond MAX_BUFFERS the least recently used ones are dropped."""
    with _lock:
        # The addresses of the weights are part of the key, because graphs contain them.
        where = tuple(weight.data_ptr() for weight in weights_of(model))
        in_graphs = tuple(item for item in vars(options).items() if item[0] not in NOT_IN_GRAPHS)
        known = _buffers.setdefault(model, OrderedDict())
        for copy in count():
            key = (where, in_graphs, eos, sentences, *sizes, copy)
            if key not in known:
                with current_device(model.output_matrix().device):
                    known[key] = GraphBuffers(model, options, eos, sentences, *sizes)
                if len(known) > MAX_BUFFERS:
                    known.popitem(last=False)
            if not known[key].busy:
                break
        known.move_to_end(key)
        buffers = known[key]
        buffers.beams.options, buffers.busy = options, True
        return buffers


def release_graphs(model: Transformer) -> None:
    """Free the memory of all CUDA graphs and buffers of a model, for example before training."""
    with _lock:
        _buffers.pop(model, None)


class GraphBuffers:
    """The tensors of a search with fixed sizes, and the CUDA graphs that use them.

    eos: the token that ends an output.
    sentences, source, read, prefix, steps: the number of sentences, and the largest lengths of
    their sources, of what the decoder reads before the first step, of their prefixes, and of the
    search.
    """

    def __init__(
        self, model: Transformer, options: DecodingConfig, eos: int, sentences: int, source: int,
        read: int, prefix: int, steps: int,
    ) -> None:  # fmt: skip
        # There is no reference to the model here: buffers must not keep it alive.
        self.sentences, self.reads = sentences, read
        self.busy = False  # whether a search uses these buffers
        weight = model.output_matrix()
        self.device, width = weight.device, options.width
        self.beams = Beams(options, sentences, steps, prefix, eos, self.device)
        self.cache = model.empty_cache(sentences, width, read, steps)
        self.cache.uneven = True
        slots = self.cache.slots
        if source:
            self.sources = torch.ones(sentences * (1 + source), dtype=torch.long).to(self.device)
            self.lengths, self.source = self._lengths_and_sources(self.sources)
            self.cache.memory_lengths = self.lengths
        pinned = weight.is_cuda  # the GPU writes to pinned memory directly
        self.done = torch.zeros(sentences, dtype=torch.bool, pin_memory=pinned)
        size = self.beams.records.numel()
        self.host_records = torch.empty(size, dtype=torch.float64, pin_memory=pinned)
        self.events: list[torch.cuda.Event] = []
        self.used = 0
        pool = torch.cuda.graph_pool_handle()
        self.fused = fused_step(model, self.beams, self.cache, self.done)
        self.start = make_graph(lambda: self._start(model), pool)
        # Graphs by the number of slots that attention reads. The fused kernels need only one graph:
        # they stop at the slots in use.
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        unit = slots if self.fused is not None else LENGTH_UNIT * width
        for seen in range(slots, read, -unit):

            def one_step(seen: int = seen) -> None:
                self._step(model, seen)

            self._restart()
            self.graphs[seen] = make_graph(one_step, pool)

    @property
    def on_device(self) -> AbstractContextManager[object]:
        """A context for everything that the host does with these buffers."""
        return current_device(self.device)

    # ---- what the graphs contain --------------------------------------------------------

    def _restart(self) -> None:
        self.beams.restart()
        self.cache.restart()

    def _start(self, model: Transformer) -> None:
        self._restart()
        if model.encoder is not None:
            self._encode(model, model.encoder)

    def _encode(self, model: Transformer, encoder: Stack) -> None:
        """Run the encoder on a padded rectangle; a mask hides the padding."""
        size = self.source.shape[1]
        place = torch.arange(size, device=self.device)
        real = place < self.lengths[:, None]  # [B, M]
        dtype = model.output_matrix().dtype
        plan = Rectangle(self_mask(real, model.config.window, dtype))
        positions = place.expand_as(self.source).flatten()
        rows = encoder.rows_until(size, self.device)
        x = encoder.embed(model.table("source"), self.source.flatten(), positions, rows)
        if self.fused is not None:
            memory = self.fused.encode(encoder, x, plan.attend)
        else:
            memory = encoder(x, positions, [plan] * len(encoder.layers))
        self.cache.memory_mask = to_add(real[:, None, None], dtype)
        self.cache.memory = [(split(k, size), split(v, size)) for k, v in model.project(memory)]

    def _step(self, model: Transformer, seen: int) -> None:
        beams = self.beams
        if self.fused is not None:
            self.fused(model)  # it also writes to self.done
        else:
            beams.advance(model.step(beams.tokens, beams.reordering, self.cache, seen))
            self.done.copy_(beams.done, non_blocking=True)

    # ---- what the host does -------------------------------------------------------------

    def _lengths_and_sources(self, row: Any) -> tuple[Any, Any]:
        """Views of one row that is copied in one piece: lengths[B] and sources[B, longest]."""
        return row[: self.sentences], row[self.sentences :].reshape(self.sentences, -1)

    @torch.no_grad()
    def load(self, model: Transformer, job: Job, fixed: bool = False) -> None:
        """Copy the job to the buffers, encode the sources and read the prompts. fixed: see
        `GraphSearch`."""
        torch.cuda.current_stream().synchronize()  # the search before must not write any more
        self.done.fill_(False)
        if model.config.positions == "learned":  # graphs read a copy of these weights
            rows: Any = self.cache.position_rows
            stack: Any = model.decoder
            rows.copy_(stack.rows_until(len(rows), self.device))
        if job.sources is not None:
            sources = np.ones(len(self.sources), np.int64)
            lengths, rows = self._lengths_and_sources(sources)
            lengths[: len(job.sources)] = [len(tokens) for tokens in job.sources]
            real = np.arange(rows.shape[1]) < lengths[: len(job.sources), None]
            tokens = np.fromiter(chain.from_iterable(job.sources), np.int64, int(real.sum()))
            rows[: len(job.sources)][real] = tokens
            self.sources.copy_(torch.from_numpy(sources))
        self.beams.load(job.newest, job.limits, job.prefixes, job.noise_keys)
        self.start.replay()
        self.used = 0
        self.events.clear()
        if self.reads and fixed:
            for b in range(len(job.read)):
                source = None if job.sources is None else [job.sources[b]]
                self._read(model, [job.read[b]], source, self.cache.sentence(b))
            self._began([len(tokens) for tokens in job.read], self.reads)
        elif self.reads:
            self._read(model, job.read, job.sources, self.cache)
            self._began([len(tokens) for tokens in job.read])

    def _read(
        self, model: Transformer, rows: Sequence[Sequence[int]],
        sources: Sequence[Sequence[int]] | None, cache: Cache,
    ) -> None:  # fmt: skip
        """Read what comes before the first step. This happens once, so it needs no graph."""
        read = Packed.of(rows).to(self.device)
        source = memory = None
        if sources is not None:
            source = Packed.of(sources).to(self.device)
        plans = model.plans(source, read, attention_backend(model))
        if source is not None:
            memory = model.encode(source, plans=plans)
        model.decode(read, memory, source, cache=cache, plans=plans)

    def _began(self, lengths: Sequence[int], slots: int = 0) -> None:
        """The sentences have been read; the first step writes to the next slots after `slots`."""
        self.cache.began([*lengths, *[1] * (self.sentences - len(lengths))])
        self.used = max(self.cache.used, slots)
        self.cache.next += self.used - self.cache.used

    def step(self) -> None:
        """Launch one step; do not wait for it."""
        self.used += self.beams.width
        seen = min(size for size in self.graphs if size >= self.used)
        self.graphs[seen].replay()
        event = torch.cuda.Event()
        event.record()
        self.events.append(event)

    def fetch_records(self, steps: slice, sentences: int) -> NDArray[Any]:
        """The records of these steps, [steps, B, C, 4], in pinned memory that the next call
        overwrites. Their order in memory is the one in which predictions.py reads them."""
        records = self.beams.records[steps, :sentences].permute(3, 2, 0, 1).contiguous()
        fetched = self.host_records[: records.numel()].view(records.shape)
        fetched.copy_(records, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return fetched.numpy().transpose(2, 3, 1, 0)

    def done_flags(self) -> Tensor:
        """Which sentences were done in a recent step; waits if the host is too far ahead."""
        if len(self.events) > MAX_STEPS_AHEAD:
            self.events.pop(0).synchronize()
        return self.done

    def move_from(self, other: GraphBuffers, rows: Tensor) -> None:
        """Continue with these sentences of other buffers."""
        moved = len(rows)
        for mine, theirs in ((self.beams, other.beams), (self.cache, other.cache)):
            old = theirs.per_sentence()
            for name, tensor in mine.per_sentence().items():
                if name != "rows":
                    tensor[:moved] = old[name][rows]
        self.beams.done[moved:] = True
        self.beams.limits[moved:] = 0
        self.beams.time.copy_(other.beams.time)
        self.cache.next.copy_(other.cache.next)
        self.done.fill_(False)
        self.used = other.used
        self.events.clear()


def fused_step(model: Transformer, beams: Beams, cache: Cache, done: Tensor) -> Any:
    """The step by Triton kernels; None if there is no Triton or it does not support the search."""
    if find_spec("triton") is None:
        return None
    from regard.decoding.engines.cuda_step import FusedStep

    return FusedStep(model, beams, cache, done) if FusedStep.supports(model, beams) else None


def make_graph(body: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `body`. It runs once before, so that libraries can allocate their memory.
    Other threads can use the GPU at the same time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    mode = "thread_local"
    with torch.no_grad(), no_collection(), torch.cuda.graph(graph, pool, capture_error_mode=mode):
        body()
    return graph
