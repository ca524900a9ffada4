"""The eager engine: the search loop in PyTorch, for every model and device.

This is the definition of a search. Each step calls the model (`Transformer.step`) and then the
search (`Beams.advance`); the other engines compute the same with fewer calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from regard.decoding.beams import Beams
from regard.decoding.requests import Job
from regard.device import search_device
from regard.model.cache import Cache
from regard.model.transformer import Transformer
from regard.text.batching import Packed

SHRINK_AT = 1 / 8  # sentences of a batch that must be done before the others move together


def attention_backend(model: Transformer) -> str:
    """The attention backend for inference: that of the model or, with "auto", the one that needs
    neither a compiler nor gradients."""
    return "padded" if model.backend == "auto" else model.backend


class SearchInputs(NamedTuple):
    """What a search reads before its first step, and its sizes: the arguments of
    `Transformer.start`."""

    source: Packed | None
    read: Packed | None
    sentences: int
    width: int
    steps: int

    @classmethod
    def of(cls, job: Job, device: torch.device) -> SearchInputs:
        """The inputs of a job on a device."""
        source = None if job.sources is None else Packed.of(job.sources).to(device)
        read = Packed.of(job.read).to(device) if job.read[0] else None
        return cls(source, read, len(job.limits), job.options.width, max(job.limits))


class EagerSearch:
    """A search by PyTorch, one iteration per step. cache: has the inputs of the job; None: they
    are read here."""

    def __init__(self, model: Transformer, job: Job, cache: Cache | None = None) -> None:
        self.model = model
        device = model.output_matrix().device
        sentences, steps, prefix = len(job.limits), max(job.limits), job.longest_prefix
        self.beams = Beams(job.options, sentences, steps, prefix, job.eos, search_device(device))
        self.beams.load(job.newest, job.limits, job.prefixes, job.noise_keys)
        self.beams.restart()
        if cache is None:
            inputs = SearchInputs.of(job, device)._asdict()
            cache = model.start(**inputs, backend=attention_backend(model))
        self.cache = cache

    def __iter__(self) -> Iterator[None]:
        beams = self.beams
        while True:
            remaining = self._step()
            yield
            if not remaining:
                return
            if remaining <= (1 - SHRINK_AT) * len(beams.done):
                rows = (~beams.done).nonzero()[:, 0]
                beams.keep(rows)
                self.cache.keep(rows.to(self.cache.visible.device))

    def _step(self) -> int:
        """Run one step of the model and the search; return the number of unfinished sentences."""
        beams = self.beams
        device, parents = self.cache.visible.device, beams.reordering
        parents = None if parents is None else parents.to(device)
        logits = self.model.step(beams.tokens.to(device), parents, self.cache)  # [B, W, V]
        beams.advance(logits.to(beams.tokens.device))
        return int((~beams.done).sum())

    def records(self) -> NDArray[Any]:
        """The candidates of all steps so far (see `Beams.records`): [steps, B, C, 4]."""
        return self.beams.records[: int(self.beams.time)].cpu().numpy()
