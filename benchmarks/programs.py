"""What all programs have in common: which there are, and how their processes make them."""

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
from regard.predictor import check_int8

PAD, START, END = 0, 1, 2  # the ids of all programs; words begin after them


def entrants(
    config: ModelConfig,
    makers: dict[str, Make],
    peers: Sequence[str],
    folder: str,
    options: argparse.Namespace,
) -> list[Entrant]:
    """The programs of one model; `folder` has the peers' files."""
    device, threads = options.device, options.threads or torch.get_num_threads()
    in_torch = [dtype for dtype in options.dtype if dtype != "int8"]
    found = [
        Entrant(OURS, dtype, makers[OURS], (config, dtype, device, threads, True))
        for dtype in options.dtype
    ]
    for peer in peers:
        name, make = PEERS[peer][0], makers[OURS if peer == "pytorch" else peer]
        if peer == "pytorch":
            found += [Entrant(name, d, make, (config, d, device, threads, False)) for d in in_torch]
        elif peer == "huggingface":
            found += [Entrant(name, d, make, (config, d, device, threads)) for d in in_torch]
        else:
            found += [
                Entrant(name, dtype, make, (folder, dtype, threads, workers), workers)
                for dtype, workers in (("float32", 1), ("int8", 1), ("int8", 2))
                if workers == 1 or (peer == "ctranslate2" and threads == 2)
            ]
    return found


def begin(threads: int) -> None:
    """In the process of a program that computes with PyTorch."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    keep_freed_memory()  # as `regard translate` does; it helps the peers, too


def our_model(config: ModelConfig, dtype: str, device: str, native: bool) -> Transformer:
    """With random weights; native=False: all of it by PyTorch."""
    if not native:
        os.environ["REGARD_NATIVE"] = "off"
    weights = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    model = Transformer(config).eval().to(device, weights)
    if dtype == "int8":
        model.precision = dtype
        check_int8(model)
    return model


def ctranslate2_model(kind: str, folder: str, dtype: str, threads: int, workers: int) -> Any:
    """A Translator, Encoder or Generator. It is Any: CTranslate2 has no types."""
    import ctranslate2

    def load() -> Any:
        return getattr(ctranslate2, kind)(
            folder, device="cpu", compute_type=dtype,
            inter_threads=workers, intra_threads=threads // workers,
        )  # fmt: skip

    # What loads int8 is left with a thread pool, and the work itself has another: too many threads
    # (see processes.py). The pool of a thread that ends is no more.
    with ThreadPoolExecutor(1) as loader:
        return loader.submit(load).result()


def share(batch: int, workers: int) -> int:
    """The sentences of each worker."""
    return -(-batch // workers)
