"""A model exported to Hugging Face computes the same logits and the same greedy tokens there, and
its import is the original, bit for bit."""

from dataclasses import fields
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers.models.esm.modeling_esm as esm
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.interop.folder import make_model
from regard.interop.hf.read import read
from regard.interop.hf.write import architecture_of, oracle
from regard.interop.hf.write_options import ARCHITECTURES, choose
from regard.interop.proof import Receipt, compare, default_texts, greedy
from regard.text.batching import Packed
from regard.text.external import as_tokenizer
from regard.text.imported import ImportedTokenizer, SpecialTokens
from tests.interop.hf_export_models import exported, learned, loaded, make

TOLERANCE = 1e-9  # float64
PRE = {"norm_first": True}
LLAMA = {**PRE, "norm": "rms", "activation": "swiglu", "positions": "rotary", "bias": False}
LEARNED, NORMED = {"positions": "learned"}, {"embedding_norm": True}

TRANSLATORS = [
    ("marian", {}),
    ("marian", {"activation": "silu", "scale_embeddings": False, "output_bias": True}),
    ("marian", {"tie_embeddings": "source-target", "bias": False}),
    ("marian", {"tie_embeddings": "none", "query_key_value_bias": False, "activation": "gelu"}),
    ("pegasus", {**PRE, "key_value_heads": 1, "output_bias": True}),
    ("pegasus", {**PRE, "tie_embeddings": "target-output", "activation": "gelu-tanh"}),
    ("bart", {**LEARNED, **NORMED, "activation": "gelu"}),
    ("bart", {**NORMED, "tie_embeddings": "none", "position_base": 500.0}),
    ("mbart", {**PRE, **LEARNED, **NORMED, "tie_embeddings": "source-target"}),
    ("blenderbot", {**PRE, **LEARNED, "scale_embeddings": False}),
]
READERS = [
    ("bert", {**LEARNED, **NORMED, "activation": "gelu", "norm_epsilon": 1e-12}),
    ("bert", {**NORMED, "activation": "gelu", "scale_embeddings": False}),
    ("bert", {**LEARNED, **NORMED, "head": "classifier", "classes": 2}),
    ("bert", {**LEARNED, **NORMED, "head": "pooling", "pooling": "cls", "bias": False}),
    (
        "distilbert",
        {
            **NORMED,
            "head": "classifier",
            "classes": 2,
            "norm_epsilon": 1e-12,
            "classifier_activation": "relu",
            "activation": "relu",
        },
    ),
    ("megatron-bert", {**PRE, "activation": "gelu", "tie_embeddings": "none"}),
    ("megatron-bert", {**PRE, **LEARNED, "head": "classifier", "classes": 2}),
    ("megatron-bert", {**PRE, "head": "pooling", "positions": "none", "key_value_heads": 1}),
    ("esm", {**PRE, "positions": "rotary", "activation": "gelu"}),
    (
        "esm",
        {
            **PRE,
            **NORMED,
            "positions": "rotary",
            "activation": "gelu",
            "head": "classifier",
            "classes": 2,
            "position_base": 300.0,
        },
    ),
    (
        "esm",
        {**PRE, "positions": "rotary", "activation": "gelu", "head": "pooling", "pooling": "last"},
    ),
]
WRITERS = [
    ("gpt2", {**PRE, **LEARNED, "activation": "gelu-tanh", "scale_embeddings": False}),
    ("gpt2", {**PRE, "activation": "silu", "tie_embeddings": "none", "bias": False}),
    ("opt", {"activation": "relu"}),
    ("opt", {**LEARNED, "scale_embeddings": False, "head": "pooling"}),
    ("llama", {**LLAMA, "key_value_heads": 1, "head_size": 6, "norm_epsilon": 1e-6}),
    ("llama", {**LLAMA, "scale_embeddings": False, "query_key_value_bias": True}),
    ("llama", {**LLAMA, "bias": True, "position_base": 700.0, "tie_embeddings": "none"}),
    ("mistral", {**LLAMA, "window": 3}),
    ("starcoder2", {**PRE, "positions": "rotary", "activation": "gelu", "window": 4}),
    ("starcoder2", {**PRE, "positions": "rotary", "activation": "relu", "bias": False,
                    "key_value_heads": 1, "scale_embeddings": False, "head": "pooling"}),
]  # fmt: skip
CASES = [
    (style, name, options)
    for style, cases in (
        ("encoder-decoder", TRANSLATORS),
        ("encoder", READERS),
        ("decoder", WRITERS),
    )
    for name, options in cases
]


def rotate(q, k, cos, sin, unsqueeze_dim=1):
    """ESM's rotation, which its module computes in float32."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + esm.rotate_half(q) * sin, k * cos + esm.rotate_half(k) * sin


def check_return(model, imported):
    """An import returns the configuration, the weights and the tokenizer, bit for bit."""
    assert imported.config == model.config.model
    state = model.transformer.state_dict()
    assert imported.tensors.keys() == state.keys()
    assert all(torch.equal(imported.tensors[key], state[key]) for key in state)
    assert imported.task == model.task.name
    assert imported.tokenizers[1].fingerprint == model.target_tokenizer.fingerprint
    again = make_model(imported, Path())
    assert again.config.decoding == model.config.decoding
    assert again.config.longest_input == model.config.longest_input


@pytest.mark.parametrize(
    ("style", "name", "options"), CASES, ids=[f"{i}-{case[1]}" for i, case in enumerate(CASES)]
)
def test_logits_and_greedy_tokens(style, name, options, tmp_path, monkeypatch):
    monkeypatch.setattr(esm, "apply_rotary_pos_emb", rotate)
    model = make(style, **options)
    config = model.config.model
    assert architecture_of(model).name == name
    folder = exported(model, tmp_path)
    hf, unmatched = loaded(folder, config)
    assert not unmatched
    check_return(model, read(folder))
    model.transformer.double()
    rows = [torch.randint(6, config.vocabulary_size, (length,)) for length in (1, 9)]
    for row in rows:
        packed, tokens = Packed.of([row]), row[None]
        with torch.no_grad():
            if style == "encoder-decoder":
                output = torch.randint(6, config.vocabulary_size, (7,))
                ours = model.transformer(packed, Packed.of([output]))
                theirs = hf(tokens, decoder_input_ids=output[None]).logits[0]
            else:
                stacks = (packed,) if style == "encoder" else (None, packed)
                ours = model.transformer(*stacks)
                result = hf(tokens)
                theirs = result[0][0]
                if config.head == "classifier":
                    theirs = result.logits
                elif config.head == "pooling":
                    at = {"cls": theirs[:1], "last": theirs[-1:]}
                    theirs = at.get(config.pooling, theirs.mean(0, keepdim=True))
        assert (ours - theirs).abs().max() < TOLERANCE
    if config.head == "language-model":
        ids = [row.tolist() for row in rows]
        assert greedy(model, ids, 12) == [generated(hf, row) for row in rows]


def generated(hf, row):
    """The tokens of greedy decoding, with the options of generation_config.json."""
    output = hf.generate(row[None], attention_mask=torch.ones(1, len(row)), max_new_tokens=12)[0]
    tokens = output[1 if hf.config.is_encoder_decoder else len(row) :].tolist()
    return tokens[: tokens.index(2)] if 2 in tokens else tokens


def qwen_tokenizer():
    """A tokenizer that splits text as that of Qwen2."""
    words = learned()
    tokens = [sign for sign, _ in sorted(words._ids.items(), key=lambda item: item[1])]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(entry.split(" ")) for entry in words._entries]
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    library.normalizer = tokenizers.normalizers.NFC()
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PRETOKENIZE_REGEX), "isolated")
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, level])
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    end = library.token_to_id("<|endoftext|>")
    return ImportedTokenizer(library, SpecialTokens(eos=end, bos=end), end + 3)


@pytest.mark.parametrize("window", [None, 4])
def test_qwen2_with_its_tokenizer(window, tmp_path):
    own = qwen_tokenizer()
    options = {**LLAMA, "query_key_value_bias": True, "window": window, "key_value_heads": 1}
    model = make("decoder", tokenizers=(own, own), scale_embeddings=False, **options)
    assert architecture_of(model).name == "qwen2"
    folder = exported(model, tmp_path)
    imported = read(folder)
    assert imported.config == model.config.model
    assert imported.tokenizers[0].fingerprint == own.fingerprint
    receipt = compare(model, oracle(folder, model), default_texts(12), Receipt("test", {}))
    assert not receipt.failures
    assert receipt.largest_difference < 1e-4
    assert receipt.same_greedy_tokens == 1


def test_every_option_has_a_rule():
    options = {field.name for field in fields(ModelConfig)}
    for architecture in ARCHITECTURES:
        assert set(architecture.rules) == options, architecture.name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"style": "encoder"}, "model.embedding_norm=false"),
        ({"positions": "rotary"}, "model.positions=rotary"),
        ({"norm": "rms", "norm_first": True}, "model.norm=rms"),
        ({"head_size": 5}, "model.head_size=5"),
        ({"norm_epsilon": 1e-6}, "model.norm_epsilon=1e-06: .* model.norm_epsilon=1e-05"),
        ({"mixer": "gru"}, "model.mixer=gru"),
        ({"window": 5}, "model.window=5: .* model.window=null"),
        ({"decoder_mixer": "ssru"}, "model.decoder_mixer=ssru"),
        ({"style": "decoder", "norm_first": True, "output_bias": True}, "model.output_bias=true"),
    ],
)  # fmt: skip
def test_refusals_name_the_options(options, words):
    values = {"vocabulary_size": 20, "d_model": 16, "heads": 2, **options}
    with pytest.raises(InputError, match=words):
        choose(ModelConfig(**values))


def test_a_registered_part_is_refused(monkeypatch):
    monkeypatch.setattr(ModelConfig, "custom_parts", ("positions=mine",))
    with pytest.raises(InputError, match="model.positions=mine: .* registered part"):
        choose(ModelConfig(vocabulary_size=20, d_model=16, heads=2))


def test_an_external_tokenizer_is_refused(tmp_path):
    own = as_tokenizer(qwen_tokenizer().fast)
    with pytest.raises(InputError, match="shifted by 6"):
        exported(make("decoder", tokenizers=(own, own), **PRE), tmp_path)


def test_two_vocabularies(tmp_path):
    pair = learned(), learned("byte")
    model = make("encoder-decoder", tokenizers=pair, tie_embeddings="target-output")
    folder = exported(model, tmp_path)
    engine = oracle(folder, model)
    text = "Ein <eos> Hund."
    assert engine.tokenize([text]) == [pair[0].frame(pair[0].encode(text), "encoder-decoder")]
    rows = engine.tokenize([text, "Zwei."])
    assert engine.generate(rows, 8) == greedy(model, rows, 8)


def test_the_export_is_reproducible(tmp_path):
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        folder = exported(make("decoder", norm_first=True), tmp_path / name)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]


def test_nan_weights_are_refused(tmp_path):
    model = make("decoder", norm_first=True)
    with torch.no_grad():
        model.transformer.table("target").weight[3, 3] = float("nan")
    with pytest.raises(InputError, match="NaN"):
        exported(model, tmp_path)
