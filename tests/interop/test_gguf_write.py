"""Export to GGUF: bit for bit through a file, the same logits in transformers, refused options."""

from dataclasses import fields, replace

import gguf
import pytest
import torch

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.interop.gguf import read as gguf_read
from regard.interop.gguf import write as gguf_write
from regard.model.transformer import Transformer
from regard.predictor.model import Model
from regard.tasks.configuration import make_config
from regard.tasks.registry import find_task
from regard.text.batching import Packed
from regard.text.chat import ChatTemplate
from regard.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.learn(["the theme of these themes"] * 3, "bpe", 270, quiet=True)
SIZES = {
    "style": "decoder", "vocabulary_size": TOKENIZER.size, "decoder_layers": 2, "d_model": 32,
    "heads": 4, "d_ff": 128, "max_length": 64, "norm_first": True, "dropout": 0.0,
}  # fmt: skip
LLAMA = {
    "positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False,
    "scale_embeddings": False, "key_value_heads": 2, "norm_epsilon": 1e-6,
    "position_base": 5_000.0,
}  # fmt: skip
GPT2 = {"positions": "learned", "activation": "gelu-tanh", "scale_embeddings": False}
CONFIGS = {
    "llama": LLAMA,
    "llama untied": LLAMA | {"tie_embeddings": "none"},
    "llama scaled": LLAMA | {"scale_embeddings": True},
    "qwen2": LLAMA | {"query_key_value_bias": True, "d_ff": 48, "head_size": 12},
    "gpt2": GPT2,
    "gpt2 untied": GPT2 | {"tie_embeddings": "none"},
    "gpt2 sinusoidal": GPT2 | {"positions": "sinusoidal", "scale_embeddings": True},
    "gpt2 without biases": GPT2 | {"bias": False, "positions": "none"},
}
SAME = ("llama", "llama untied", "qwen2", "gpt2", "gpt2 untied")  # the file has these options


def make(options):
    torch.manual_seed(1)
    architecture = ModelConfig(**{**SIZES, **options})
    transformer = Transformer(architecture).eval()
    for parameter in transformer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    config = make_config("generate", values={"data": {"max_length": 64}})
    config = replace(config, model=architecture)
    task = find_task("generate").make(config, (TOKENIZER, TOKENIZER))
    return Model(config, transformer, task)


def output(transformer, row):
    with torch.no_grad():
        return transformer(target=Packed.of([row]))


@pytest.mark.parametrize("name", SAME)
def test_a_round_trip_is_bit_for_bit(name, tmp_path):
    model = make(CONFIGS[name])
    gguf_write.write(model, tmp_path)
    copy = gguf_read.read(tmp_path / "model.gguf")
    state = model.transformer.state_dict()
    assert copy.tensors.keys() == state.keys()
    assert all(torch.equal(copy.tensors[key], x) for key, x in state.items())
    assert replace(copy.config, max_length=64) == model.config.model  # rotary positions have none
    assert copy.architecture == name.split()[0]
    assert copy.max_length == 64
    assert copy.tokenizers[0].encode("the theme") == TOKENIZER.encode("the theme")
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_computes_the_same_logits(name, tmp_path):
    model = make(CONFIGS[name])
    gguf_write.write(model, tmp_path)
    oracle = gguf_write.oracle(tmp_path, model)
    rows = oracle.tokenize(["the theme of <eos>", "12 x", ""])
    texts = TOKENIZER.encode_batch(["the theme of <eos>", "12 x", ""])
    assert rows == [TOKENIZER.frame(ids, "decoder") for ids in texts]
    for row, expected in zip(rows, oracle.outputs(rows), strict=True):
        difference = abs(output(model.transformer, row).numpy() - expected).max()
        assert difference < 2e-5 * abs(expected).max()


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - set(SAME)))
def test_rewritten_options_compute_the_same_logits(name, tmp_path):
    model = make(CONFIGS[name])
    gguf_write.write(model, tmp_path)
    copy = gguf_read.read(tmp_path / "model.gguf")
    transformer = Transformer(copy.config).double().eval()
    transformer.load_state_dict(copy.tensors)
    row = [1, *range(6, 66)]
    expected = output(model.transformer.double(), row)
    # Tables that regard computes in float64 are float32 numbers in the file.
    assert (output(transformer, row) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_the_package_reads_the_metadata(tmp_path):
    model = make(LLAMA | {"head_size": 10})
    model.folder = tmp_path / "source"
    model.folder.mkdir()
    model.task.template = ChatTemplate("{{ messages[0]['content'] }} ä")
    target = tmp_path / "out"
    target.mkdir()
    gguf_write.write(model, target)
    reader = gguf.GGUFReader(target / "model.gguf")
    values = {key: field.contents() for key, field in reader.fields.items()}
    assert values["general.architecture"] == "llama"
    assert values["general.name"] == "source"
    assert values["llama.attention.key_length"] == values["llama.rope.dimension_count"] == 10
    assert values["llama.attention.head_count_kv"] == 2
    assert values["tokenizer.chat_template"] == "{{ messages[0]['content'] }} ä"
    assert values["tokenizer.ggml.tokens"][:3] == ["<unk>", "<bos>", "<eos>"]
    assert gguf_read.read(target / "model.gguf").chat_template == "{{ messages[0]['content'] }} ä"
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F32"}


def test_every_option_has_a_rule():
    names = {field.name for field in fields(ModelConfig)}
    for architecture, rules in gguf_write.RULES.items():
        assert rules.keys() == names, architecture


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LLAMA | {"norm_first": False}, "model.norm_first=false: the nearest architecture, llama, "),
        (LLAMA | {"window": 5}, "model.window=5: the nearest architecture, llama, needs model.window=null"),
        (LLAMA | {"output_bias": True}, "model.output_bias=true"),
        (LLAMA | {"bias": True, "query_key_value_bias": False}, "model.bias=true"),
        (LLAMA | {"embedding_norm": True}, "model.embedding_norm=true"),
        (GPT2 | {"activation": "gelu"}, "model.activation=gelu: the nearest architecture, gpt2, needs model.activation=gelu-tanh"),
        (GPT2 | {"key_value_heads": 2}, "model.key_value_heads=2: the nearest architecture, gpt2, needs model.key_value_heads=4"),
        (GPT2 | {"head_size": 16}, "model.head_size=16"),
        (LLAMA | {"head": "pooling"}, "model.head=pooling"),
        (LLAMA | {"position_base": 1e50}, "cannot express model.position_base=1e+50"),
        (LLAMA | {"norm_epsilon": 1.23456789012e-5}, "model.norm_epsilon=1.23456789012e-05"),
    ],
)  # fmt: skip
def test_options_that_gguf_cannot_express_are_refused(options, message, tmp_path):
    if options.get("head") == "pooling":
        with pytest.raises(InputError) as error:
            gguf_write.choose(ModelConfig(**{**SIZES, **options}))
    else:
        with pytest.raises(InputError) as error:
            gguf_write.write(make(options), tmp_path)
    assert message in str(error.value)
    assert not list(tmp_path.iterdir())


def test_an_encoder_is_refused():
    config = ModelConfig(vocabulary_size=10, d_model=8, heads=2, d_ff=8)
    with pytest.raises(InputError, match="GGUF cannot express model.style=encoder-decoder"):
        gguf_write.choose(config)


def test_a_changed_module_is_refused(tmp_path):
    model = make(CONFIGS["llama"])
    model.transformer.decoder.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="cannot be exported"):
        gguf_write.write(model, tmp_path)
