"""Training on a GPU: one step of the trainer compared with peers on the same batches.

regard runs `Trainer.step`, as `regard train` does (batch, forward, loss, backward, clipping, Adam,
metrics). The peers run forward, loss, backward, clipping and fused Adam on padded batches, as their
users do. All have the same sizes, dropout, label smoothing, real tokens, and sentences of similar
lengths in a batch. No program waits for the GPU between two steps; a round is several passes over
all batches, and all programs wait at its end. Memory is the peak that the allocator reserved after
the first round, because memory in the pool of a CUDA graph does not count as allocated.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import ratios
from benchmarks.compare import Entrant, show
from benchmarks.decoder_programs import gpt2_config
from benchmarks.generators import gpt2_small
from benchmarks.limits import best_peak
from benchmarks.ratios import RatioLog
from benchmarks.sentences import batches
from benchmarks.step import SMOOTHING, Marian, PyTorch, padded_step
from regard import ModelConfig, Transformer
from regard.config.parameters import operations
from regard.tasks.batches import packed
from regard.tasks.configuration import make_config
from regard.tasks.sequences import arrange
from regard.text.tokenizer import Tokenizer
from regard.training.distributed import Processes
from regard.training.losses import Batch, Loss, token_loss
from regard.training.progress import Progress
from regard.training.trainer import Trainer

CONTEXT, SEQUENCES = 1024, 16  # for the shape of GPT-2
PASSES = 5  # over all batches in a round
Batches = list[tuple[list[Tensor], list[Tensor]]]  # batches of sources (or nothing) and targets
Round = Callable[[], None]
DEVICE = torch.device("cuda")


class Sentences:
    """A task for the trainer that provides the given batches."""

    name: ClassVar[str] = "translate"
    counted: ClassVar[int] = -1

    def __init__(self, samples: Batches) -> None:
        self.sources = [x.numpy() for sources, _ in samples for x in sources]
        self.targets = [x.numpy() for _, targets in samples for x in targets]
        self.tokenizers = (Tokenizer("byte"),) * 2  # only their special tokens are used

    def sizes(self, store: Any) -> list[NDArray[Any]]:
        sides = [side for side in (self.sources, self.targets) if side]
        return [np.array([len(x) for x in side], dtype=np.int32) for side in sides]

    def batch(
        self, store: Any, examples: NDArray[np.int64], device: torch.device, seed: int
    ) -> Batch:
        targets = [self.targets[i] for i in examples]
        if self.sources:
            sources = [self.sources[i] for i in examples]
            return arrange(self.tokenizers, "encoder-decoder", sources, targets, device)
        labels = torch.from_numpy(np.concatenate(targets)).to(device, non_blocking=True)
        return Batch(None, packed(targets, device), labels)

    @property
    def loss(self) -> Loss:
        return token_loss


class FixedBatches:
    """A batch sampler that repeats a list of batches."""

    def __init__(self, samples: Batches, budgets: list[int]) -> None:
        bounds = np.cumsum([0] + [len(targets) for _, targets in samples])
        self.rows = [np.arange(a, b) for a, b in pairwise(bounds)]
        self.budgets = budgets

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        return self.rows[row % len(self.rows)]

    def epoch_of(self, row: int) -> int:
        return row // len(self.rows)


def regard(config: ModelConfig, samples: Batches, dtype: str, run: Path) -> Round:
    """The trainer, without a corpus."""
    values = {"steps": 10**6, "dtype": dtype, "batch_tokens": 10**6, "label_smoothing": SMOOTHING}
    whole = replace(make_config("translate", "base", {"training": values}), model=config)
    task = Sentences(samples)
    progress = Progress(10**6, quiet=True)
    progress.pause()
    trainer = Trainer(
        whole, run, Transformer(config), task, SimpleNamespace(fingerprint=""),
        Processes("cuda"), progress, None,
    )  # fmt: skip
    largest = [max(sum(map(len, side)) for side in sides) for sides in zip(*samples, strict=True)]
    trainer.rows = FixedBatches(samples, [n for n in largest if n])  # type: ignore[assignment]
    trainer.graphs.budgets = trainer.rows.budgets

    def steps() -> None:
        for _ in samples:
            trainer.step()

    return steps


class GPT2(nn.Module):
    """Hugging Face's GPT2LMHeadModel with random weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        from transformers import GPT2LMHeadModel

        self.model = GPT2LMHeadModel(gpt2_config(config))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits


def square_step(model: nn.Module) -> Callable[[list[Tensor], list[Tensor]], Tensor]:
    """A step on sequences of equal length."""

    def step(_: list[Tensor], targets: list[Tensor]) -> Tensor:
        tokens = torch.stack(targets).to(DEVICE, non_blocking=True)
        return F.cross_entropy(
            model(tokens).flatten(0, 1), tokens.flatten(), label_smoothing=SMOOTHING
        )

    return step


def peer(model: nn.Module, samples: Batches, dtype: str, compiled: bool) -> Round:
    model.to(DEVICE).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-5, betas=(0.9, 0.98), fused=True)
    called: Any = torch.compile(model) if compiled else model
    step = square_step(called) if isinstance(model, GPT2) else padded_step(called, DEVICE)
    kind = getattr(torch, dtype)

    def steps() -> None:
        for sources, targets in samples:
            with torch.autocast("cuda", kind, enabled=kind != torch.float32):
                loss = step(sources, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return steps


def measure(steps: Round, repeats: int) -> tuple[list[float], float, float]:
    """Seconds of a pass over all batches in each round, seconds of the first pass, and the peak
    memory in GiB."""
    start = time.perf_counter()
    steps()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    steps()  # some programs compile again when a size changes
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    rounds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(PASSES):
            steps()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) / PASSES)
    return rounds, first, torch.cuda.max_memory_reserved() / 2**30


def shape_of(name: str, options: argparse.Namespace) -> tuple[ModelConfig, Batches]:
    if name == "gpt2":
        random = torch.Generator().manual_seed(0)
        config = gpt2_small(dropout=0.1)
        rows = [
            torch.randint(config.vocabulary_size, (SEQUENCES, CONTEXT), generator=random)
            for _ in range(options.batches)
        ]
        return config, [([], list(row)) for row in rows]
    vocabulary = options.vocabulary
    config = ModelConfig.preset(name, vocabulary_size=vocabulary, dropout=0.1)
    return config, batches(config, options.tokens, options.batches, sort=True)


def run(name: str, options: argparse.Namespace, log: RatioLog) -> None:
    config, samples = shape_of(name, options)
    real = sum(len(x) for _, targets in samples for x in targets)
    work = sum(
        operations(config, [len(x) for x in (sources or targets)], [len(x) for x in targets])
        for sources, targets in samples
    )
    kinds: Sequence[type[nn.Module]] = [GPT2] if name == "gpt2" else [PyTorch, Marian]
    times: dict[Entrant, list[float]] = {}
    peak: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        makers: list[tuple[str, Callable[[], Round]]] = [
            ("regard", lambda: regard(config, samples, options.dtype, Path(folder)))
        ]
        for kind in kinds if options.peers else []:
            for compiled in (False, True) if options.compile_peers else (False,):
                label = {"PyTorch": "nn.Transformer", "GPT2": "HF GPT2"}.get(
                    kind.__name__, "HF Marian"
                ) + (", compiled" if compiled else "")

                def make(kind: type[nn.Module] = kind, compiled: bool = compiled) -> Round:
                    return peer(kind(config), samples, options.dtype, compiled)

                makers.append((label, make))
        for label, maker in makers:
            rounds, first, peak[label] = measure(maker(), options.repeats)
            times[Entrant(label, options.dtype)] = [t / len(samples) for t in rounds]
            print(
                f"  {label:25} {min(rounds) / len(samples) * 1e3:7.2f} ms per step, peak memory "
                f"{peak[label]:.1f} GiB, first round {first:.1f} s",
                flush=True,
            )
            gc.collect()
            torch.cuda.empty_cache()
            torch._dynamo.reset()
    print(f"{name}, {log.hardware}, {real // len(samples):,} real target tokens per step")
    limits = {options.dtype: real / (work / best_peak(DEVICE, options.dtype))}
    tokens = f"{SEQUENCES} x {CONTEXT:,}" if name == "gpt2" else f"{options.tokens:,}"
    show(f"{name}, {tokens} tokens", times, real / len(samples), limits, log)
    ours = peak.pop("regard")
    for label, theirs in peak.items():
        log.add(f"{name}, {tokens} tokens: memory", options.dtype, ours, "GiB", label, theirs, None)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks train", description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["base", "gpt2"])
    parser.add_argument("--tokens", type=int, default=25_000, help="real target tokens per step")
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--compile-peers", action="store_true", help="as well: takes minutes")
    ratios.add_options(parser)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("there is no GPU here; for a CPU: python -m benchmarks step")
    log = RatioLog("train", arguments, options, "cuda")
    for name in options.shapes:
        run(name, options, log)
    return log.close()
