"""Language models compared with peers: the shape of GPT-2 small, random weights, greedy search.

A call reads prompts of 32 tokens and generates exactly 128 new ones. The end token is disabled, and
a program that returns anything else ends the benchmark. Speed is new tokens per second, including
the prompt. The limit is that of `python -m benchmarks decode`: the steps only.
"""

from __future__ import annotations

import argparse

from benchmarks.compare import add_options
from benchmarks.decode import write
from benchmarks.decoder_programs import GENERATORS
from benchmarks.ratios import RatioLog
from regard import ModelConfig

PROMPT, NEW = 32, 128  # tokens


def gpt2_small(dropout: float = 0.0) -> ModelConfig:
    return ModelConfig(
        style="decoder", vocabulary_size=50_257, decoder_layers=12, d_model=768, heads=12,
        d_ff=3072, activation="gelu", positions="learned", max_length=1024, norm_first=True,
        scale_embeddings=False, dropout=dropout,
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks generators", description=__doc__)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="prompts")
    add_options(parser, ("huggingface", "ctranslate2", "pytorch"), repeats=3)
    options = parser.parse_args(arguments)
    options.beams = [1]
    log = RatioLog("generators", arguments, options, options.device)
    write("GPT-2 small", gpt2_small(), GENERATORS, (PROMPT, NEW), options, log)
    return log.close()
