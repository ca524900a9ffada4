"""Encoders compared with peers: the shapes of BERT-base and BERT-mini, random weights.

A call reads 32 sentences of at most 64 tokens, 39% of that rectangle, and returns a vector for each
real token; a program that returns anything else ends the benchmark. Speed is real tokens per
second. The limit is the time to read each weight once or to do the operations of the real tokens.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks import encoder_programs, onnx_encoder
from benchmarks.compare import Cell, add_options, all_started, available, compare, precisions
from benchmarks.limits import Limit
from benchmarks.programs import END, entrants
from benchmarks.ratios import RatioLog
from regard import ModelConfig
from regard.config.parameters import closed_form, operations

SHAPES = {"BERT-base": (12, 768, 12, 3072), "BERT-mini": (4, 256, 4, 1024)}  # layers, D, H, F
BATCH, LONGEST, REAL = 32, 64, 0.39  # sentences, tokens, and the filled fraction of the rectangle


def encoder_config(shape: str, vocabulary: int = 30_522) -> ModelConfig:
    layers, d_model, heads, d_ff = SHAPES[shape]
    return ModelConfig(
        style="encoder", head="pooling", vocabulary_size=vocabulary, encoder_layers=layers,
        d_model=d_model, heads=heads, d_ff=d_ff, activation="gelu", positions="learned",
        max_length=512, embedding_norm=True, scale_embeddings=False, dropout=0.0,
    )  # fmt: skip


def sentences(vocabulary: int, batch: int = BATCH, longest: int = LONGEST) -> list[list[int]]:
    """Random sentences of log-normal length: the first draw whose longest sentence has the maximum
    length and that fills the given fraction of the rectangle."""
    random = torch.Generator().manual_seed(0)
    while True:
        drawn = torch.empty(batch).log_normal_(3.0, 0.65, generator=random).round().long()
        lengths = drawn.clamp(3, longest).tolist()
        if max(lengths) == longest and round(sum(lengths) / (batch * longest), 2) == REAL:
            break
    return [torch.randint(END + 1, vocabulary, (n,), generator=random).tolist() for n in lengths]


def run(shape: str, options: argparse.Namespace, log: RatioLog) -> None:
    """Measure one shape."""
    config = encoder_config(shape)
    device = torch.device(options.device)
    texts = sentences(config.vocabulary_size)
    lengths = [len(text) for text in texts]
    # A training step does the operations of the forward pass three times.
    work = operations(config, lengths, []) / 3
    parts = closed_form(config)
    weights = parts["self-attention"].parameters + parts["feed-forward"].parameters
    limits = {}
    print(f"{shape}, {sum(lengths)} real tokens of {BATCH} x {LONGEST}, {log.hardware}")
    for dtype in precisions(options):
        limit = Limit.measure(weights, device, dtype)
        print(f"  {dtype:10}{limit}")
        limits[dtype] = sum(lengths) / limit.seconds(0, work)
    peers = available(options.peers, options.device)
    with tempfile.TemporaryDirectory() as folder:
        if "ctranslate2" in peers:
            encoder_programs.convert(config, Path(folder))
        if "onnxruntime" in peers:
            onnx_encoder.export(config, Path(folder))
        with all_started(
            entrants(config, encoder_programs.ENCODERS, peers, folder, options)
        ) as programs:
            check = partial(encoder_programs.wrong, lengths=lengths, width=config.d_model)
            cell = Cell(shape, (texts,), sum(lengths), check, limits, workers=1)
            compare(cell, programs, options.repeats, log)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks encoders", description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    add_options(parser, ("huggingface", "ctranslate2", "onnxruntime", "pytorch"), repeats=5)
    options = parser.parse_args(arguments)
    log = RatioLog("encoders", arguments, options, options.device)
    for shape in options.shapes:
        run(shape, options, log)
    return log.close()
