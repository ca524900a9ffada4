"""Translation compared with peers: the same sizes, sources and lengths, random weights.

A call reads 28 source tokens per sentence (including the end token) and generates exactly 28 target
tokens. The end token is disabled, and a program that returns anything else ends the benchmark.
Speed is the number of target tokens of the best hypotheses per second, including the encoder. Each
program runs in its own process; calls alternate between them.

The limit is the time of the decoding steps if they only read each weight once or multiplied with it
(whichever is longer), at the measured speed of this machine in the precision of the program.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.compare import Cell, add_options, all_started, available, compare, precisions
from benchmarks.decoder_programs import TRANSLATORS, convert, wrong
from benchmarks.limits import Limit, decoding_limit, weights_of_a_step
from benchmarks.processes import Make
from benchmarks.programs import END, entrants
from benchmarks.ratios import RatioLog
from regard import ModelConfig

LENGTH = 28  # tokens of a source and of a target
VOCABULARIES = {"tiny": 10_000, "small": 10_000}
USUAL_VOCABULARY = 37_000


def write(
    name: str,
    config: ModelConfig,
    makers: dict[str, Make],
    shape: tuple[int, int],
    options: argparse.Namespace,
    log: RatioLog,
) -> None:
    """Measure one model with all batches and beams.

    Args:
        shape: the number of source tokens and of target tokens.
    """
    read, written = shape
    device = torch.device(options.device)
    weights = weights_of_a_step(config)
    limits = {dtype: Limit.measure(weights, device, dtype) for dtype in precisions(options)}
    print(f"{name}, vocabulary {config.vocabulary_size:,}, {log.hardware}; limits of a step:")
    for dtype, limit in limits.items():
        print(f"  {dtype:10}{limit}")
    peers = available(options.peers, options.device)
    with tempfile.TemporaryDirectory() as folder:
        if "ctranslate2" in peers:
            convert(config, Path(folder))
        with all_started(entrants(config, makers, peers, folder, options)) as programs:
            for batch in options.batches:
                sources = random_sources(batch, read, config, end=config.has_encoder)
                for beam in options.beams:
                    cell = Cell(
                        f"{name}, batch {batch}, {'greedy' if beam == 1 else f'beam {beam}'}",
                        (sources, beam, written), batch * written,
                        partial(wrong, batch=batch, length=written),
                        {d: decoding_limit(lim, batch, beam, written) for d, lim in limits.items()},
                        workers=min(2, batch),
                    )  # fmt: skip
                    compare(cell, programs, options.repeats, log)


def random_sources(batch: int, length: int, config: ModelConfig, end: bool) -> list[list[int]]:
    """Random sources, the same for every program; with the end token for an encoder."""
    random = torch.Generator().manual_seed(batch)
    shape = (batch, length - end)
    words = torch.randint(END + 1, config.vocabulary_size, shape, generator=random)
    return [[*sentence, END] if end else sentence for sentence in words.tolist()]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks decode", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["tiny", "small", "base"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32], help="sentences")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--vocabulary", type=int, help="(default: 10000; 37000 for base)")
    add_options(parser, ("huggingface", "ctranslate2", "pytorch"), repeats=5)
    options = parser.parse_args(arguments)
    log = RatioLog("decode", arguments, options, options.device)
    for preset in options.presets:
        vocabulary = options.vocabulary or VOCABULARIES.get(preset, USUAL_VOCABULARY)
        config = ModelConfig.preset(preset, vocabulary_size=vocabulary, dropout=0.0)
        write(preset, config, TRANSLATORS, (LENGTH, LENGTH), options, log)
    return log.close()
