"""Decoding engines: implementations of the search loop, and the functions that choose one.

eager.py is the definition, in PyTorch; cpu.py runs C++ code on a CPU; cuda_graph.py replays CUDA
graphs on a GPU. All of them give the same predictions up to rounding. Iterating over a search
runs it and yields after each step; its `records()` are the candidates of all steps so far.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.decoding.engines.cpu import cpu_model, start_searches
from regard.decoding.engines.cuda_graph import GraphSearch
from regard.decoding.engines.eager import EagerSearch
from regard.decoding.engines.graph_groups import GraphRow
from regard.decoding.requests import Job
from regard.model.overrides import is_overridden
from regard.model.transformer import Transformer
from regard.text.batching import Packed

Engine = EagerSearch | GraphSearch | GraphRow  # CpuSearch is an EagerSearch


def choose_engine(model: Transformer, job: Job) -> EagerSearch | GraphSearch:
    """Return a search for the job on the fastest engine that supports the model: the eager engine,
    which calls every module, if a user has changed a module (model/overrides.py)."""
    if is_overridden(model):
        return EagerSearch(model, job)
    if has_graphs(model, job):
        return GraphSearch(model, job)
    if (compiled := cpu_model(model)) is not None:
        return start_searches(model, [job], compiled)[0]
    return EagerSearch(model, job)


def has_graphs(model: Transformer, job: Job) -> bool:
    """Whether CUDA graphs support the search of a model without changed modules."""
    # CUDA graphs encode a padded rectangle, and only attention can ignore the padding. They support
    # the built-in parts of a model only.
    config = model.config
    mixers = {config.mixer, config.decoder_mixer}
    built_in = mixers == {"attention"} and not config.custom_parts
    return model.output_matrix().is_cuda and built_in and job.eos >= 0


@torch.no_grad()
def hidden(model: Transformer, row: Packed) -> Tensor:
    """`Transformer.hidden` for inference with a model that has one stack: row -> [N, D]."""
    compiled = None if is_overridden(model) else cpu_model(model)
    if compiled is None:
        return model.hidden(row) if model.encoder is not None else model.hidden(None, row)
    model.check_row(row, "target")
    return compiled.hidden(row).to(model.output_matrix().dtype)
