"""The engine for a GPU: a step of the model and of the search is captured once, then replayed.

A decoding step is about a hundred small kernels, and launching them from Python takes much longer
than running them. A captured graph launches all of them at once, but it is a recording: the same
memory, the same shapes. So everything lives in buffers of fixed size (`Program`), a batch is
filled up with sentences that are done before they begin, and the host only says which graph comes
next. It never waits for a result: it reads the flags of the step before the last while the GPU
works on the next one.

The buffers of a program belong to one search at a time, so concurrent searches in several threads
use separate programs. A lock protects choosing and capturing a program; the GPU runs the steps of
all searches in the order in which they are launched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
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
from regard.decoding.engines.eager import Job, attention_backend
from regard.model.cache import Cache, to_add
from regard.model.transformer import Stack, Transformer
from regard.ops.padded import attend_rectangles
from regard.text.batching import Packed
from regard.text.tokenizer import Tokenizer

STEPS = 32  # the unit in which lengths are rounded up; a graph looks at multiples of so many slots
PROGRAMS = 24  # kept for a model: each is memory and a moment of capturing
AHEAD = 2  # steps that the host may be ahead of the GPU
DATA = ("seed", "length_penalty", "max_length")  # options that a program need not know
LEAVE = 3 / 4  # of a batch: so many sentences must be done before the others move to a smaller one

_programs: WeakKeyDictionary[Transformer, OrderedDict[Any, Program]] = WeakKeyDictionary()
_parameters: WeakKeyDictionary[Transformer, list[dict[str, Any]]] = WeakKeyDictionary()
_choosing = RLock()  # held while a program is chosen or captured


class Captured:
    """Iterating over it searches, one turn a step (or a few, when the host is ahead)."""

    def __init__(self, model: Transformer, job: Job) -> None:
        self.model, self.job, self.time = model, job, 0
        sentences = len(job.limits)
        self.rows = np.arange(sentences)  # of the job, one for each sentence in the program
        # What programs left behind have recorded: from which step on, for which rows.
        self.past: list[tuple[int, NDArray[Any], NDArray[Any]]] = []
        self.since = 0  # the first step that the present program has recorded
        self.program = self._open(sentences)
        try:
            self.program.begin(model, job)
        except BaseException:  # out of memory, say: the program is free for the next search
            self.program.busy = False
            raise

    def _open(self, sentences: int) -> Program:
        job = self.job
        source = max(map(len, job.sources)) if job.sources else 0
        read, before = max(map(len, job.read)), job.before
        sizes = [-(-size // STEPS) * STEPS for size in (source, read, before, max(job.limits))]
        return find_program(self.model, job.options, rounded(sentences), *sizes)

    def __iter__(self) -> Iterator[None]:
        last = max(self.job.limits)
        try:
            while self.time < last:
                self.program.step()
                self.time += 1
                done = self.program.flags()[: len(self.rows)]
                yield
                going = int((~done).sum())
                if not going:
                    return
                if going <= (1 - LEAVE) * self.program.sentences:
                    self._leave()
        finally:  # also when nobody wants the rest: the next search may have the program
            self._keep_records()
            self.program.busy = False

    def _leave(self) -> None:
        """Go on in a smaller program with the sentences that are not done."""
        old = self.program
        torch.cuda.current_stream().synchronize()
        going = (~old.done[: len(self.rows)]).numpy().nonzero()[0]
        if not len(going):
            return
        self._keep_records()
        self.program = self._open(len(going))
        self.program.take(old, torch.from_numpy(going).to(old.beams.rows))
        self.rows = self.rows[going]
        old.busy = False

    def _keep_records(self) -> None:
        if self.since < self.time:
            self.past.append((self.since, self.rows, self._recorded().copy("K")))
            self.since = self.time

    def _recorded(self) -> NDArray[Any]:
        return self.program.fetch(slice(self.since, self.time), len(self.rows))

    def records(self) -> NDArray[Any]:
        """What has happened so far: [steps, B, C, 4]."""
        now = [(self.since, self.rows, self._recorded())] if self.since < self.time else []
        pieces = [*self.past, *now]
        if len(pieces) == 1:
            return pieces[0][2]
        shape = self.time, len(self.job.limits), candidates_of(self.job.options), 4
        records = np.zeros(shape)
        for since, rows, piece in pieces:
            records[since : since + len(piece), rows] = piece
        return records


def rounded(size: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, ...: few programs, and at most a third of one is idle."""
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if power >= 4 and size <= power * 3 // 4 else power


def find_program(
    model: Transformer, options: DecodingConfig, sentences: int, *sizes: int
) -> Program:
    """A program of this shape that no other search works with; the least recently used one goes if
    there are too many."""
    with _choosing:
        return _choose_program(model, options, sentences, *sizes)


def _choose_program(
    model: Transformer, options: DecodingConfig, sentences: int, *sizes: int
) -> Program:
    # Weights that moved to other memory are not those that were captured.
    if model not in _parameters:  # the modules' own tables: to find them takes longer than a step
        _parameters[model] = [module._parameters for module in model.modules()]
    tables = _parameters[model]
    where = tuple(p.data_ptr() for table in tables for p in table.values() if p is not None)
    plain = tuple(item for item in vars(options).items() if item[0] not in DATA)
    programs = _programs.setdefault(model, OrderedDict())
    for copy in count():
        key = (where, plain, sentences, *sizes, copy)
        if key not in programs:
            programs[key] = Program(model, options, sentences, *sizes)
            if len(programs) > PROGRAMS:
                programs.popitem(last=False)
        if not programs[key].busy:
            break
    programs.move_to_end(key)
    program = programs[key]
    program.beams.options, program.busy = options, True
    return program


def forget(model: Transformer) -> None:
    """Free the memory of all its programs: training needs it."""
    with _choosing:
        _programs.pop(model, None)


class Program:
    """Buffers for so many sentences of so many tokens, and the graphs that work on them."""

    def __init__(
        self,
        model: Transformer,
        options: DecodingConfig,
        sentences: int,
        source: int,
        read: int,
        before: int,
        steps: int,
    ) -> None:
        # The model is not kept: programs live as long as it does, and must not be the reason.
        self.sentences, self.reads = sentences, read
        self.busy = False  # a search is under way in these buffers
        weight = model.output_matrix()
        self.device, width = weight.device, options.width
        self.beams = Beams(options, sentences, steps, before, Tokenizer.eos, self.device)
        self.cache = model.empty_cache(sentences, width, read, steps)
        self.cache.uneven = True
        slots = self.cache.slots
        if source:
            self.sources = torch.ones(sentences * (1 + source), dtype=torch.long).to(self.device)
            self.length, self.source = self._lengths_and_sources(self.sources)
            self.cache.memory_lengths = self.length
        pinned = weight.is_cuda  # memory that a GPU can write to without the host's help
        self.done = torch.zeros(sentences, dtype=torch.bool, pin_memory=pinned)
        size = self.beams.records.numel()
        self.kept_records = torch.empty(size, dtype=torch.float64, pin_memory=pinned)
        self.events: list[torch.cuda.Event] = []
        self.used = 0
        pool = torch.cuda.graph_pool_handle()
        self.fused = fused_step(model, self.beams, self.cache, self.done)
        self.start = capture(lambda: self._start(model), pool)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        unit = slots if self.fused is not None else STEPS * width  # its kernels see for themselves
        for seen in range(slots, read, -unit):

            def one_step(seen: int = seen) -> None:
                self._step(model, seen)

            self._restart()
            self.graphs[seen] = capture(one_step, pool)

    # ---- what is captured ---------------------------------------------------------------

    def _restart(self) -> None:
        self.beams.restart()
        self.cache.restart()

    def _start(self, model: Transformer) -> None:
        self._restart()
        if model.encoder is not None:
            self._encode(model, model.encoder)

    def _encode(self, model: Transformer, encoder: Stack) -> None:
        """The encoder on a rectangle; its padding is seen by no one."""
        size = self.source.shape[1]
        place = torch.arange(size, device=self.device)
        real = (place < self.length[:, None])[:, None, None]  # [B, 1, 1, M]
        visible = real
        if model.config.window is not None:
            visible = real & ((place[:, None] - place).abs() <= model.config.window)
        dtype = model.output_matrix().dtype
        plan = Rectangle(to_add(visible, dtype))
        positions = place.expand_as(self.source).flatten()
        rows = encoder.rows_until(size, self.device)
        x = encoder.embed(model.table("source"), self.source.flatten(), positions, rows)
        if self.fused is not None:
            memory = self.fused.encode(encoder, x, plan.attend)
        else:
            memory = encoder(x, positions, [plan] * len(encoder.layers))
        self.cache.memory_mask = to_add(real, dtype)
        self.cache.memory = [
            (split(key, size), split(value, size)) for key, value in model.project(memory)
        ]

    def _step(self, model: Transformer, seen: int) -> None:
        beams = self.beams
        if self.fused is not None:
            self.fused(model)  # it writes to self.done by itself
        else:
            beams.advance(model.step(beams.tokens, beams.moved, self.cache, seen))
            self.done.copy_(beams.done, non_blocking=True)

    # ---- what the host does -------------------------------------------------------------

    def _lengths_and_sources(self, row: Any) -> tuple[Any, Any]:
        """[B] and [B, longest], one after the other in one row that is copied in one piece."""
        return row[: self.sentences], row[self.sentences :].reshape(self.sentences, -1)

    def begin(self, model: Transformer, job: Job) -> None:
        torch.cuda.current_stream().synchronize()  # nothing old writes into what follows
        self.done.fill_(False)
        if job.sources is not None:
            sources = np.ones(len(self.sources), np.int64)
            lengths, rows = self._lengths_and_sources(sources)
            lengths[: len(job.sources)] = [len(tokens) for tokens in job.sources]
            real = np.arange(rows.shape[1]) < lengths[: len(job.sources), None]
            tokens = np.fromiter(chain.from_iterable(job.sources), np.int64, int(real.sum()))
            rows[: len(job.sources)][real] = tokens
            self.sources.copy_(torch.from_numpy(sources))
        self.beams.load(job.newest, job.limits, job.given, job.names)
        self.start.replay()
        self.used = 0
        self.events.clear()
        if self.reads:
            self._read(model, job)

    @torch.no_grad()
    def _read(self, model: Transformer, job: Job) -> None:
        """What the decoder reads before the first step; it is read once, so nothing is captured."""
        fill = [[Tokenizer.bos]] * (self.sentences - len(job.read))
        read = Packed.of([*job.read, *fill]).to(self.device)
        source, memory, backend = None, None, attention_backend(model)
        if job.sources is not None:
            source = Packed.of([*job.sources, *fill]).to(self.device)
            memory = model.encode(source, backend=backend)
        model.decode(read, memory, source, cache=self.cache, backend=backend)
        self.cache.began(read.lengths)
        self.used = max(read.lengths)

    def step(self) -> None:
        self.used += self.beams.width
        seen = min(size for size in self.graphs if size >= self.used)
        self.graphs[seen].replay()
        event = torch.cuda.Event()
        event.record()
        self.events.append(event)

    def fetch(self, steps: slice, sentences: int) -> NDArray[Any]:
        """The records of these steps, [steps, B, C, 4], through memory that the GPU can write to.
        They come in the order in which they will be read: candidates first."""
        records = self.beams.records[steps, :sentences].permute(3, 2, 0, 1).contiguous()
        kept = self.kept_records[: records.numel()].view(records.shape)
        kept.copy_(records, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return kept.numpy().transpose(2, 3, 1, 0)

    def flags(self) -> Tensor:
        """Which sentences were done when the host last knew; waits if it is too far ahead."""
        if len(self.events) > AHEAD:
            self.events.pop(0).synchronize()
        return self.done

    def take(self, other: Program, rows: Tensor) -> None:
        """Go on with these sentences of another program."""
        here = len(rows)
        for mine, theirs in ((self.beams, other.beams), (self.cache, other.cache)):
            old = theirs.per_sentence()
            for name, tensor in mine.per_sentence().items():
                if name != "rows":
                    tensor[:here] = old[name][rows]
        self.beams.done[here:] = True
        self.beams.limits[here:] = 0
        self.beams.time.copy_(other.beams.time)
        self.cache.next.copy_(other.cache.next)
        self.done.fill_(False)
        self.used = other.used
        self.events.clear()


class Rectangle:
    """Attention among the rows of each sentence, all sentences being of one size."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        size = len(query) // len(self.mask)
        query, key, value = (split(x, size) for x in (query, key, value))
        output = attend_rectangles(query, key, value, self.mask)
        return output.transpose(1, 2).flatten(0, 1)


def fused_step(model: Transformer, beams: Beams, cache: Cache, done: Tensor) -> Any:
    """The step out of our own kernels, where there is one for this search."""
    if find_spec("triton") is None:
        return None
    from regard.decoding.engines.cuda_step import FusedStep

    return FusedStep(model, beams, cache, done) if FusedStep.can(model, beams) else None


def split(x: Tensor, size: int) -> Tensor:
    """[B*size, H, K] -> [B, H, size, K]."""
    return x.unflatten(0, (-1, size)).transpose(1, 2)


def capture(body: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Capture `body` as a CUDA graph. It runs once before, so that libraries can allocate their
    memory. Other threads can use the GPU at the same time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        body()
    return graph
