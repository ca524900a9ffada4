"""The engine that runs anywhere: one call of the model and one of the search for each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config.sections import DecodingConfig
from regard.decoding.beams import Beams
from regard.decoding.engines.cpu import NativeStep, engine_of
from regard.model.transformer import Transformer
from regard.text.batching import Packed
from regard.text.tokenizer import Tokenizer

LEAVE = 1 / 8  # of a batch: so many sentences must be done before it is worth moving the others


@dataclass(frozen=True)
class Job:
    """A batch of sentences to search answers for; every list has an entry for each."""

    options: DecodingConfig
    limits: Sequence[int]  # steps each may take
    given: Sequence[Sequence[int]]  # tokens of its answer that are there already
    names: Sequence[bytes]  # what its random numbers hang on, where some are needed
    sources: Sequence[Sequence[int]] | None  # what is encoded
    read: Sequence[Sequence[int]]  # what the decoder reads before the first step: all or none
    newest: Sequence[int]  # what the first step reads

    @property
    def before(self) -> int:
        """Tokens of the longest answer that is there already."""
        return max(len(tokens) for tokens in self.given)


def attention_backend(model: Transformer) -> str:
    """The attention backend for inference: that of the model or, with "auto", the one that needs
    neither a compiler nor gradients."""
    return "padded" if model.backend == "auto" else model.backend


class Eager:
    """Iterating over it searches, one turn a step."""

    def __init__(self, model: Transformer, job: Job) -> None:
        self.model = model
        device = model.output_matrix().device
        sentences, steps = len(job.limits), max(job.limits)
        self.beams = Beams(job.options, sentences, steps, job.before, Tokenizer.eos, device)
        self.beams.load(job.newest, job.limits, job.given, job.names)
        self.beams.restart()
        source = None if job.sources is None else Packed.of(job.sources).to(device)
        read = Packed.of(job.read).to(device) if job.read[0] else None
        self.native = engine_of(model)
        if self.native is None:
            start = partial(model.start, backend=attention_backend(model))
        else:
            start = partial(self.native.start, model)
        self.cache = start(source, read, sentences=sentences, width=self.beams.width, steps=steps)

    def __iter__(self) -> Iterator[None]:
        beams, cache = self.beams, self.cache
        native = None if self.native is None else NativeStep(self.native, cache, beams)
        while True:
            going = self._step() if native is None else native()
            yield
            if not going:
                return
            if going <= (1 - LEAVE) * len(beams.done):
                rows = (~beams.done).nonzero()[:, 0]
                beams.keep(rows)
                cache.keep(rows)

    def _step(self) -> int:
        """One step of the model and of the search: how many sentences go on."""
        beams = self.beams
        beams.advance(self.model.step(beams.tokens, beams.moved, self.cache))
        return int((~beams.done).sum())

    def records(self) -> NDArray[Any]:
        """What has happened so far: [steps, B, C, 4]."""
        records: NDArray[np.float64] = self.beams.records[: int(self.beams.time)].cpu().numpy()
        return records
