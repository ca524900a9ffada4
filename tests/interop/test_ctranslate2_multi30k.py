"""The shipped translator in CTranslate2: the same greedy tokens on the test set of Multi30k."""

import lzma
import os
from pathlib import Path

import pytest

import regard
from regard.interop.ctranslate2 import oracle, write
from regard.interop.proof import greedy

STEPS = 64


@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="REGARD_DATA is not set")
def test_the_shipped_translator_writes_the_same_tokens_for_1000_sentences(tmp_path):
    path = Path(os.environ["REGARD_DATA"]) / "multi30k/test_2016_flickr.en.xz"
    with lzma.open(path, "rt", encoding="utf-8") as file:
        sentences = file.read().splitlines()
    model = regard.load("box:translate", "cpu", "float32")
    write(model, tmp_path)
    engine = oracle(tmp_path, model)
    style = model.config.model.style
    rows = [
        model.source_tokenizer.frame(ids, style)
        for ids in model.source_tokenizer.encode_batch(sentences)
    ]
    assert len(rows) == 1_000
    assert engine.tokenize(sentences) == rows
    assert engine.generate(rows, STEPS) == greedy(model, rows, STEPS)
