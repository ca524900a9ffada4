"""Decoding beside its peers: the same sizes, sources and lengths, random weights.

A call takes 28 source tokens a sentence (the end token among them) and gives exactly 28 target
tokens: no program may write the end token, and one that returns anything else ends the benchmark.
Speed is target tokens of the best hypotheses a second, the encoder's time included. Calls
alternate between the programs, so that whatever else the machine does hits them all.

The limit is what the decoder's steps would take if they did nothing but read each weight once, or
multiply with it (whichever is longer), as fast as this machine was seen to read and multiply.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.step import marian_config
from benchmarks.translators import Translator, translators
from regard import ModelConfig, Transformer
from regard.config import DecodingConfig
from regard.decoding.requests import Request
from regard.decoding.search import decode
from regard.training.machine import keep_freed_memory, peak, synchronise

LENGTH = 28  # tokens of a source and of a target
LENGTH_PENALTY = 0.6
PAD, START, END = 0, 1, 2  # the ids of all programs; words begin after them
VOCABULARIES = {"tiny": 10_000, "small": 10_000}
USUAL_VOCABULARY = 37_000
PEERS = {"huggingface": "Hugging Face", "ctranslate2": "CTranslate2"}
PACKAGES = {"huggingface": ["transformers"], "ctranslate2": ["transformers", "ctranslate2"]}
# A thread pool spins for some milliseconds after its last work, and CTranslate2 has its own: no
# program shall be timed while the threads of the one before still hold the cores.
PAUSE = 0.03
UNEVEN = 2.0  # slowest call to fastest: more is not the program but the machine

Answers = Sequence[Sequence[int | str]]  # the best of each sentence
Call = Callable[[], tuple[Answers, float]]  # and the seconds it took
Program = Callable[[list[list[int]], int], Call]  # sources, beam -> what is measured


# ---- the programs ---------------------------------------------------------------------------
# The peers are Any: the types of transformers refuse `generate` of its own models, and CTranslate2
# has none.


def regard_program(model: Transformer) -> Program:
    def prepare(sources: list[list[int]], beam: int) -> Call:
        requests = [Request(source=source, limit=LENGTH) for source in sources]
        options = DecodingConfig(beam=beam, length_penalty=LENGTH_PENALTY, min_length=LENGTH)

        def call() -> Answers:
            return [answer.tokens for answer in decode(model, requests, options)]

        return timed(model.output_matrix().device, call)

    return prepare


def hugging_face_program(model: Any) -> Program:
    from transformers import GenerationConfig

    def prepare(sources: list[list[int]], beam: int) -> Call:
        options = GenerationConfig(
            num_beams=beam, do_sample=False, use_cache=True,
            # the least length keeps the end token out of all 28 steps
            min_new_tokens=LENGTH, max_new_tokens=LENGTH,
            pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD,
            # it warns of these where there is no beam
            **({"length_penalty": LENGTH_PENALTY, "early_stopping": False} if beam > 1 else {}),
        )  # fmt: skip

        @torch.inference_mode()
        def call() -> Answers:
            tokens = torch.tensor(sources, device=model.device)
            mask = torch.ones_like(tokens)
            answers = model.generate(tokens, attention_mask=mask, generation_config=options)
            assert isinstance(answers, torch.Tensor)
            return answers[:, 1:].tolist()  # the start token comes back, too

        return timed(model.device, call)

    return prepare


def ctranslate2_program(translator: Translator) -> Program:
    def prepare(sources: list[list[int]], beam: int) -> Call:
        words = [[str(token) for token in source] for source in sources]

        def call() -> tuple[Answers, float]:
            return translator(
                words, beam_size=beam, length_penalty=LENGTH_PENALTY,
                # the least length keeps the end token out of all 28 steps
                min_decoding_length=LENGTH, max_decoding_length=LENGTH,
            )  # fmt: skip

        return call

    return prepare


def timed(device: torch.device, call: Callable[[], Answers]) -> Call:
    def timed_call() -> tuple[Answers, float]:
        synchronise(device)
        start = time.perf_counter()
        answers = call()
        synchronise(device)
        return answers, time.perf_counter() - start

    return timed_call


# ---- the limit ------------------------------------------------------------------------------


@dataclass
class Machine:
    """What reads and multiplies the weights of a step."""

    weights: int
    size: int  # bytes
    bandwidth: float  # bytes a second
    peak: float  # operations a second

    @classmethod
    def measure(cls, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Machine:
        weights = weights_of_a_step(config)
        size = weights * dtype.itemsize
        # The weights of a small model stay in the cache, which is faster than memory. Starting the
        # sum takes time, too: what can be read of more is possible for less, so the best counts.
        sizes = (size, 2 * size, 4 * size, 2**28)
        speed = max(bandwidth(n, device) for n in sizes if n >= size)
        # several times: something else may run at one of them
        return cls(weights, size, speed, max(peak(device, dtype) for _ in range(5)))

    def step(self, rows: int) -> float:
        """The least seconds of a step that extends so many hypotheses."""
        return max(self.size / self.bandwidth, 2 * self.weights * rows / self.peak)

    def limit(self, batch: int, beam: int) -> float:
        """Target tokens a second. In the first step a sentence has but one hypothesis."""
        seconds = self.step(batch) + (LENGTH - 1) * self.step(batch * beam)
        return batch * LENGTH / seconds


def weights_of_a_step(config: ModelConfig) -> int:
    """Those that each step needs: not those of the memory's keys and values, which are made once
    for a sentence, nor biases and norms, which are few."""
    d, width = config.d_model, config.heads * config.head_size
    layer = 4 * d * width + 2 * d * width + 2 * d * config.d_ff
    return config.decoder_layers * layer + config.vocabulary_size * d


def bandwidth(size: int, device: torch.device) -> float:
    """Bytes a second that a sum over so many reads."""
    values = torch.ones(size // 4, device=device)
    calls, best = 10, 0.0
    for _ in range(5):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(calls):
            values.sum()
        synchronise(device)
        best = max(best, calls * values.nbytes / (time.perf_counter() - start))
    return best


# ---- measuring ------------------------------------------------------------------------------


def check(name: str, answers: Answers, batch: int) -> None:
    """Refuse to compare different work."""
    lengths = [len(answer) for answer in answers]
    ends = sum(int(token) == END for answer in answers for token in answer)
    if lengths != [LENGTH] * batch or ends:
        raise SystemExit(
            f"{name} did other work than {batch} sentences of {LENGTH} tokens: lengths {lengths}, "
            f"{ends} end tokens"
        )


def measure(calls: dict[str, Call], batch: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each program's calls; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            time.sleep(PAUSE)
            answers, seconds = call()
            check(name, answers, batch)
            if repeat:
                times[name].append(seconds)
    return times


def show(times: dict[str, list[float]], batch: int, limit: float, dtype: str) -> None:
    speeds = {name: batch * LENGTH / statistics.median(t) for name, t in times.items()}
    for name, speed in speeds.items():
        line = f"  {name:20}{speed:10,.0f} tokens/s"
        # a program that computes in another type than this cell's has another limit
        other = name.startswith(PEERS["ctranslate2"]) and not name.endswith(dtype)
        line += " " * 20 if other else f" {speed / limit:6.1%} of the limit"
        if name != "regard":
            ratios = [p / o for o, p in zip(times["regard"], times[name], strict=True)]
            line += (
                f"  regard is {speeds['regard'] / speed:.2f}x as fast "
                f"(single calls {min(ratios):.2f} to {max(ratios):.2f})"
            )
        print(line.rstrip(), flush=True)
    uneven = max(max(t) / min(t) for t in times.values())
    if uneven > UNEVEN:
        print(f"  NOT QUIET: calls of one program differ by {uneven:.1f}x; do not quote this cell")


def run(preset: str, peers: list[str], options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    device = torch.device(options.device)
    vocabulary = options.vocabulary or VOCABULARIES.get(preset, USUAL_VOCABULARY)
    config = ModelConfig.preset(preset, vocabulary_size=vocabulary, dropout=0.0)
    model = Transformer(config).eval()
    marian: Any = None
    others: dict[str, Program] = {}
    with ExitStack() as stack:
        if peers:
            from transformers import MarianMTModel

            marian = MarianMTModel(marian_config(config, end=END, use_cache=True)).eval()
        if "ctranslate2" in peers:
            started = translators(marian, (PAD, START, END), torch.get_num_threads())
            for kind, translator in stack.enter_context(started).items():
                others[f"{PEERS['ctranslate2']} {kind}"] = ctranslate2_program(translator)
        for name in options.dtype:
            dtype = getattr(torch, name)
            programs = {"regard": regard_program(model.to(device, dtype))}
            if "huggingface" in peers:
                programs[PEERS["huggingface"]] = hugging_face_program(marian.to(device, dtype))
            machine = Machine.measure(config, device, dtype)
            print(
                f"{preset}, vocabulary {vocabulary:,}, {options.device} {name}: a step reads "
                f"{machine.size / 1e6:,.1f} MB at {machine.bandwidth / 1e9:,.0f} GB/s and "
                f"multiplies at {machine.peak / 1e9:,.0f} Gflop/s"
            )
            compare(programs | others, machine, vocabulary, name, options)


def compare(
    programs: dict[str, Program],
    machine: Machine,
    vocabulary: int,
    dtype: str,
    options: argparse.Namespace,
) -> None:
    """One model in all batches and beams."""
    for batch in options.batches:
        random = torch.Generator().manual_seed(batch)
        words = torch.randint(END + 1, vocabulary, (batch, LENGTH - 1), generator=random)
        sources = [[*sentence, END] for sentence in words.tolist()]
        for beam in options.beams:
            limit = machine.limit(batch, beam)
            print(f" batch {batch}, beam {beam} (limit: {limit:,.0f} tokens/s)")
            calls = {name: make(sources, beam) for name, make in programs.items()}
            show(measure(calls, batch, options.repeats), batch, limit, dtype)


def available(wanted: list[str], device: str) -> list[str]:
    """The peers that can be measured here; a line for each that cannot."""
    peers = []
    for peer in wanted:
        missing = [name for name in PACKAGES[peer] if find_spec(name) is None]
        if missing:
            print(f"{PEERS[peer]} is skipped: {missing[0]} is missing (pip install -e '.[bench]')")
        elif peer == "ctranslate2" and device != "cpu":
            print(f"{PEERS[peer]} is skipped: it is measured on the CPU only")
        else:
            peers.append(peer)
    return peers


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks decode", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["tiny", "small", "base"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32], help="sentences")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--dtype", nargs="+", default=["float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--vocabulary", type=int, help="(default: 10000; 37000 for base)")
    parser.add_argument("--repeats", type=int, default=5, help="calls, after one that warms up")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--threads", type=int, help="of all programs (default: PyTorch's)")
    options = parser.parse_args(arguments)
    keep_freed_memory()  # as `regard translate` does; it helps the peers, too
    if options.threads:
        torch.set_num_threads(options.threads)
    peers = available(options.peers, options.device)
    for preset in options.presets:
        run(preset, peers, options)
