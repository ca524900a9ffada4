"""The list of programs for a model, and what their processes have in common."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from benchmarks.compare import OURS, PEERS, Entrant
from benchmarks.processes import Make
from regard import ModelConfig, Transformer
from regard.device import keep_freed_memory
from regard.predictor.loading import check_int8

PAD, START, END = 0, 1, 2  # token ids in all programs; words follow


def entrants(
    config: ModelConfig,
    makers: dict[str, Make],
    peers: Sequence[str],
    folder: str,
    options: argparse.Namespace,
) -> list[Entrant]:
    """The programs for one model; `folder` contains the files of the peers."""
    device, threads = options.device, options.threads or torch.get_num_threads()
    in_torch = [dtype for dtype in options.dtype if dtype != "int8"]
    programs = [
        Entrant(OURS, dtype, makers[OURS], (config, dtype, device, threads, True))
        for dtype in options.dtype
    ]
    for peer in peers:
        name, make = PEERS[peer][0], makers[OURS if peer == "pytorch" else peer]
        if peer == "pytorch":
            programs += [
                Entrant(name, d, make, (config, d, device, threads, False)) for d in in_torch
            ]
        elif peer == "huggingface":
            programs += [Entrant(name, d, make, (config, d, device, threads)) for d in in_torch]
        else:
            programs += [
                Entrant(name, dtype, make, (folder, dtype, threads, workers), workers)
                for dtype, workers in (("float32", 1), ("int8", 1), ("int8", 2))
                if workers == 1 or (peer == "ctranslate2" and threads == 2)
            ]
    return programs


def begin(threads: int) -> None:
    """Set up a process that computes with PyTorch."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    keep_freed_memory()  # as in `regard translate`; the peers gain from it as well


def our_model(config: ModelConfig, dtype: str, device: str, native: bool) -> Transformer:
    """A model with random weights; native=False disables the C++ code."""
    if not native:
        os.environ["REGARD_NATIVE"] = "off"
    weights = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    model = Transformer(config).eval().to(device, weights)
    if dtype == "int8":
        model.precision = dtype
        check_int8(model)
    return model


def ctranslate2_model(kind: str, folder: str, dtype: str, threads: int, workers: int) -> Any:
    """A Translator, Encoder or Generator (Any, because CTranslate2 has no types)."""
    import ctranslate2

    def load() -> Any:
        return getattr(ctranslate2, kind)(
            folder, device="cpu", compute_type=dtype,
            inter_threads=workers, intra_threads=threads // workers,
        )  # fmt: skip

    # Loading int8 creates a thread pool in addition to that of the work, which would be too many
    # threads (see processes.py). The pool is removed when the loading thread ends.
    with ThreadPoolExecutor(1) as loader:
        return loader.submit(load).result()


def share(batch: int, workers: int) -> int:
    """The number of sentences of each worker."""
    return -(-batch // workers)
