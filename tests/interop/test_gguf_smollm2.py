"""SmolLM2-135M-Instruct imported from GGUF, compared with transformers that reads the same file.

`python -m tests.interop.parity_smollm2` compares more prompts, longer outputs and more lines.
"""

import pytest

from regard.interop.folder import make_model
from regard.interop.gguf import read as gguf_read
from regard.interop.proof import greedy
from tests.interop import parity_smollm2 as parity

pytestmark = pytest.mark.download


@pytest.fixture(scope="module")
def models():
    path = parity.file()
    imported = gguf_read.read(path)
    return imported, make_model(imported, path), gguf_read.oracle(path, imported)


def test_the_architecture_is_that_of_the_file(models):
    config = models[0].config
    assert (config.decoder_layers, config.d_model, config.heads) == (30, 576, 9)
    assert (config.key_value_heads, config.head_size, config.d_ff) == (3, 64, 1536)
    assert (config.position_base, config.norm_epsilon) == (100_000, 1e-5)
    assert config.tie_embeddings == "all"
    assert models[0].max_length == 8192
    assert models[0].options["types"] == "F32, Q4_1, Q8_0"


def test_greedy_tokens_and_logits_agree(models):
    _, own, oracle = models
    rows = parity.prompt_rows(oracle, 20)[-3:]
    assert 1 in rows[-1]  # <|im_start|>
    assert 2 in rows[-1]  # <|im_end|>
    assert greedy(own, rows, 16) == oracle.generate(rows, 16)
    assert parity.logit_difference(own, oracle, rows) < 1e-3


def test_the_tokenizers_agree(models):
    _, own, oracle = models
    lines = parity.difficult_lines(300)
    assert parity.different_texts(own, oracle, lines) == []
    tokenizer = own.tokenizer
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(lines)] == lines
    assert (tokenizer.bos, tokenizer.eos, tokenizer.unk) == (1, 2, 0)
    assert tokenizer.encode("<|im_end|>") != [2]
    assert tokenizer.decode([2]) == ""
    assert tokenizer.frame([5], "decoder") == [5]  # no token is added before a text


def test_conversations_are_written_as_in_transformers(models):
    imported, _, oracle = models
    assert parity.different_conversations(imported.chat_template, oracle) == []
