"""Import of GGUF models: the same logits as a plain implementation, and refused options."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from interop.gguf_files import BASE, CONTEXT, V, logits, random_tensors, write
from regard.errors import InputError
from regard.interop.folder import make_model
from regard.interop.formats import recognise
from regard.interop.gguf import file as gguf_file
from regard.interop.gguf import read as gguf_read
from regard.model.transformer import Transformer
from regard.text.batching import Packed

TOKENS = np.random.default_rng(5).integers(0, V, 40).tolist()


def own_logits(model, tokens):
    transformer = Transformer(model.config).double().eval()
    transformer.load_state_dict(model.tensors)
    with torch.no_grad():
        return transformer(target=Packed.of([tokens]))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_logits_are_those_of_a_plain_implementation(architecture, tied, tmp_path):
    tensors = random_tensors(architecture)
    if not tied:
        tensors["output.weight"] = random_tensors(architecture, seed=2)["token_embd.weight"]
    model = gguf_read.read(write(tmp_path / "m.gguf", architecture, tensors))
    expected = logits(tensors, TOKENS, architecture)
    assert (own_logits(model, TOKENS) - expected).abs().max() < 1e-9
    assert model.config.tie_embeddings == ("all" if tied else "none")
    assert (model.architecture, model.task, model.max_length) == (architecture, "generate", CONTEXT)
    assert model.config.norm_epsilon == 1e-5


def test_quantised_weights_are_the_dequantised_ones(tmp_path):
    tensors = random_tensors("llama")
    kinds = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.F16, Type.BF16]
    names = [name for name, x in tensors.items() if x.ndim == 2]
    types = {name: kinds[i % len(kinds)] for i, name in enumerate(names)}
    path = write(tmp_path / "m.gguf", "llama", tensors, types)
    stored = {
        t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors
    }
    model = gguf_read.read(path)
    assert (own_logits(model, TOKENS) - logits(stored, TOKENS, "llama")).abs().max() < 1e-9
    assert model.options["types"] == "BF16, F16, F32, Q4_0, Q4_1, Q8_0"


def test_a_sliding_window_counts_the_token_itself(tmp_path):
    path = write(tmp_path / "m.gguf", metadata={"llama.attention.sliding_window": 8})
    assert gguf_read.read(path).config.window == 7
    far = write(tmp_path / "n.gguf", metadata={"llama.attention.sliding_window": CONTEXT})
    assert gguf_read.read(far).config.window is None


def test_a_folder_with_one_file_is_a_model(tmp_path):
    write(tmp_path / "weights.bin")
    (tmp_path / "README.md").write_text("a model")
    assert recognise(tmp_path) == ("gguf", tmp_path / "weights.bin")
    model = gguf_read.read(tmp_path / "weights.bin")
    assert [path.name for path in model.files] == ["weights.bin"]
    assert model.config.position_base == BASE


def test_the_model_generates_and_has_its_template(tmp_path):
    path = write(tmp_path / "m.gguf")
    imported = gguf_read.read(path)
    assert imported.chat_template == "{{ messages }}"
    model = make_model(imported, path)
    assert model.config.task == "generate"
    assert model.config.data.max_length == CONTEXT


REFUSED = {
    "an architecture": (
        {"general.architecture": "falcon"},
        "the architecture 'falcon' is not supported; regard reads llama, qwen2",
    ),
    "rope scaling": ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type='yarn' is not"),
    "experts": ({"llama.expert_count": 8}, "llama.expert_count=8 is not supported"),
    "an unknown option": ({"llama.new_option": 1}, "llama.new_option=1 is not supported"),
    "partial rotation": ({"llama.rope.dimension_count": 4}, "dimension_count differs from the head"),
    "heads for each layer": ({"llama.attention.head_count_kv": [2, 2]}, "not an integer from 1"),
    "no heads": ({"llama.attention.head_count": 0}, "llama.attention.head_count is 0"),
    "many layers": ({"llama.block_count": 999}, "blk.2.attn_norm.weight is missing"),
    "absurd layers": ({"llama.block_count": 2**31 - 1}, "model.decoder_layers must be"),
    "absurd width": ({"llama.embedding_length": 2**30}, "model.d_model must be"),
    "another width": ({"llama.feed_forward_length": 65}, "but the metadata imply [65, 32]"),
    "another vocabulary": ({"llama.vocab_size": 5}, "llama.vocab_size is 5, but there are 264"),
    "a string as a number": ({"llama.block_count": "2"}, "llama.block_count is '2', not an integer from 1"),
    "a rotary base of 0": ({"llama.rope.freq_base": 0.0}, "freq_base is 0.0, not a positive number"),
    "an epsilon of NaN": (
        {"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan, not a positive",
    ),
    "a tokenizer": ({"tokenizer.ggml.model": "bert"}, "unknown tokenizer.ggml.model 'bert'"),
    "a pre-tokenizer": ({"tokenizer.ggml.pre": "tekken"}, "unknown tokenizer.ggml.pre 'tekken'"),
    "a duplicate token": ({"tokenizer.ggml.tokens": ["a"] * V}, "the token 'a' is duplicated"),
    "too many tokens": (
        {"tokenizer.ggml.tokens": [str(i) for i in range(V + 1)]}, "265 tokens, but the model has",
    ),
    "few token types": ({"tokenizer.ggml.token_type": [1]}, "must have one number for each token"),
    "an unknown merge": ({"tokenizer.ggml.merges": ["q z"]}, "the merge 'q z' contains or produces"),
    "a special token": ({"tokenizer.ggml.eos_token_id": V}, "eos_token_id is 264, which is not"),
    "a template": ({"tokenizer.chat_template": 5}, "tokenizer.chat_template is not a string"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_options_are_refused_by_name(name, tmp_path):
    metadata, message = REFUSED[name]
    path = write(tmp_path / "m.gguf", metadata=metadata, without={"general.architecture"})
    if "general.architecture" in metadata:
        content = path.read_bytes().replace(b"\5\0\0\0\0\0\0\0llama", b"\6\0\0\0\0\0\0\0falcon", 1)
        path.write_bytes(content)
    with pytest.raises(InputError) as error:
        gguf_read.read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_an_architecture_that_is_not_a_name(tmp_path):
    gguf_file.write_file(tmp_path / "m.gguf", {"general.architecture": ["llama"]}, {})
    with pytest.raises(InputError, match="the architecture .* is not supported"):
        gguf_read.read(tmp_path / "m.gguf")


def test_tensors_that_the_model_does_not_have_are_refused(tmp_path):
    tensors = random_tensors("llama") | {"rope_freqs.weight": np.ones(4, np.float32)}
    with pytest.raises(
        InputError, match="rope_freqs.weight .a scaling of rotary positions. is not"
    ):
        gguf_read.read(write(tmp_path / "m.gguf", tensors=tensors))
    tensors = random_tensors("qwen2")
    with pytest.raises(InputError, match=r"the tensor blk\.0\.attn_k\.bias is not supported"):
        gguf_read.read(write(tmp_path / "n.gguf", tensors=tensors))


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_transformers_reads_the_same_model(architecture, tmp_path):
    path = write(tmp_path / "m.gguf", architecture)
    model = gguf_read.read(path)
    oracle = gguf_read.oracle(path, model)
    texts = ["The theme: 12 000 items\n\n12", "it's  <think>", "<|im_start|>", "Größe 數"]
    tokenizer = model.tokenizers[0]
    rows = [tokenizer.frame(ids, "decoder") for ids in tokenizer.encode_batch(texts)]
    assert rows == oracle.tokenize(texts)
    transformer = Transformer(model.config).eval()
    transformer.load_state_dict(model.tensors)
    with torch.no_grad():
        for row, expected in zip(rows, oracle.outputs(rows), strict=True):
            own = transformer(target=Packed.of([row])).numpy()
            assert abs(own - expected).max() < 1e-4
