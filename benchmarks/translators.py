"""CTranslate2 for the benchmark of decoding: the weights of a Marian, in processes of their own.

Each number format has its own process, for the threads' sake. Where a process has more OpenMP
threads than there are cores, idle ones included, GNU OpenMP hardly spins before it puts a waiting
thread to sleep. A second pool in the process (another translator's, PyTorch's) is enough for that:
int8 with a beam of 4 wrote 190 tokens/s on 2 cores, and 2,800 with one pool.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

KINDS = ("float32", "int8")


class Translator:
    """What a process answers."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection

    def __call__(self, words: list[list[str]], **options: Any) -> tuple[list[list[str]], float]:
        """The best answer to each sentence, and how many seconds they took over there."""
        self.connection.send((words, options))
        answers, seconds = self.connection.recv()
        return answers, seconds


@contextmanager
def translators(
    model: Any, special: tuple[int, int, int], threads: int
) -> Iterator[dict[str, Translator]]:
    """A translator of each kind with the weights of a MarianMTModel; special: see `convert`."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        convert(model, Path(folder), special)
        yield {kind: stack.enter_context(started(folder, kind, threads)) for kind in KINDS}


@contextmanager
def started(folder: str, kind: str, threads: int) -> Iterator[Translator]:
    context = get_context("spawn")  # nothing of this process's threads
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, folder, kind, threads), daemon=True)
    process.start()
    there.close()  # so that its end over there is an end here
    here.recv()  # it is ready
    try:
        yield Translator(here)
    finally:
        here.close()
        process.join()


def serve(connection: Connection[Any, Any], folder: str, kind: str, threads: int) -> None:
    import ctranslate2

    def load() -> Any:
        return ctranslate2.Translator(
            folder, device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads
        )

    # What loads int8 is left with a thread pool, and the translations have another: too many
    # threads (see above). The pool of a thread that ends is no more.
    with ThreadPoolExecutor(1) as loader:
        translator = loader.submit(load).result()
    connection.send("ready")
    while True:
        try:
            words, options = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        start = time.perf_counter()
        results = translator.translate_batch(words, **options)
        answers = [result.hypotheses[0] for result in results]
        seconds = time.perf_counter() - start
        connection.send((answers, seconds))


def convert(model: Any, folder: Path, special: tuple[int, int, int]) -> None:
    """Write a MarianMTModel for CTranslate2, with the ids themselves as words; special: those of
    padding, start and end. (CTranslate2's own command needs a tokenizer: random weights have none.)
    """
    import torch
    from ctranslate2.converters.transformers import MarianMTLoader

    loader = MarianMTLoader()
    # A real Marian ends its vocabulary with the padding, which the loader cuts off; ours does
    # not, and a vocabulary that is smaller by one would be less work.
    loader._remove_pad_weights = lambda spec: None
    with torch.no_grad():
        spec = loader.get_model_spec(model)
    words = [str(i) for i in range(model.config.vocab_size)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    # The decoder starts from a zero vector whatever its start token, as Marian does: its padding.
    pad, start, end = map(str, special)
    spec.config.unk_token, spec.config.bos_token = pad, start
    spec.config.eos_token = spec.config.decoder_start_token = end
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
