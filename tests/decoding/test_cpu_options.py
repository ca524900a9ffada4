"""The CPU engine with the options that imported models need: grouped key and value heads, more
activations and biases, another epsilon, SSRU layers. The results equal those of the Transformer and
the eager engine."""

import pytest
import torch

from regard.config.sections import DecodingConfig
from regard.decoding import engines
from regard.decoding.beams import Beams
from regard.decoding.continuous import ContinuousBatch
from regard.decoding.engines.cpu import CpuSearch, CpuStep, SearchPointers, cpu_model
from regard.decoding.requests import Request
from regard.decoding.score import score
from regard.decoding.search import decode
from regard.ops.cpu import build as native

EOS = 2
VOCABULARY = 75
OPTIONS = {
    "qwen2": {
        "heads": 6, "head_size": 8, "key_value_heads": 2, "positions": "rotary", "bias": False,
        "query_key_value_bias": True, "norm_first": True, "norm": "rms", "activation": "swiglu",
        "norm_epsilon": 1e-3,
    },
    "one key head": {"heads": 4, "head_size": 20, "key_value_heads": 1, "window": 3},
    "marian": {"activation": "silu", "output_bias": True},
    "gpt2": {
        "activation": "gelu-tanh", "norm_first": True, "positions": "learned", "bias": False,
        "output_bias": True, "tie_embeddings": "none",
    },
    "bergamot": {"decoder_mixer": "ssru", "output_bias": True, "heads": 4, "head_size": 20},
}  # fmt: skip
STYLES = ["encoder-decoder", "decoder"]
# Largest difference between logits, whose values are about 1 to 3.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.1, "int8": 0.2}
MODES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "n_best": 4},
    "no repeat": {"beam": 3, "no_repeat": 2, "min_length": 3},
    "samples": {"beam": 1, "temperature": 1.3, "top_k": 9, "n_best": 3},
}
REQUESTS = [Request([3 + (5 * i + j) % 9 for j in range(1 + i % 7)] + [EOS]) for i in range(9)]

pytestmark = pytest.mark.skipif(native.library("inference") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def built(model):
    """built(name, style, precision): a model with these options, whose biases are not zero."""

    def make(name, style, precision="float32"):
        options = dict(OPTIONS[name], style=style)
        if style == "encoder":
            for name in ("output_bias", "decoder_mixer"):  # a decoder has these
                options.pop(name, None)
        torch.manual_seed(1)
        net = model(dtype=torch.float32, d_model=40, d_ff=52, vocabulary_size=VOCABULARY, **options)
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.dim() == 1:
                    parameter += 0.3 * torch.randn_like(parameter)
            for table in net.embeddings.values():
                table.weight *= 2
        net.precision = precision
        assert cpu_model(net) is not None
        return net

    return make


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("style", STYLES)
@torch.no_grad()
def test_step_equals_transformer_step(style, options, precision, built, row):
    net, sentences, width = built(options, style, precision), 3, 3
    source = row([1, 5, 3]) if net.config.has_encoder else None
    read = row([2, 1, 3])
    plain = net.start(source, read, width=width, steps=3)
    compiled = cpu_model(net)
    beams = Beams(DecodingConfig(beam=width), sentences, 3, 0, EOS, torch.device("cpu"))
    beams.load([3] * sentences, [4] * sentences, [[]] * sentences, [b"x"] * sentences)
    cache = compiled.start(net, source, read, sentences, width, 3)
    step = CpuStep(compiled, [SearchPointers(cache, beams)])
    for number in range(3):
        tokens = torch.randint(VOCABULARY, (sentences, width))
        parents = torch.randint(width, (sentences, width)) if number else torch.zeros_like(tokens)
        beams.tokens.copy_(tokens)
        beams.parents.copy_(parents)
        expected = net.step(tokens, parents, plain)
        step()
        logits = step.buffer[:, :VOCABULARY].unflatten(0, (sentences, width))
        torch.testing.assert_close(logits, expected, rtol=0, atol=2 * TOLERANCE[precision])


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("style", ["encoder", "decoder"])
@torch.no_grad()
def test_full_pass_equals_transformer_forward(style, options, precision, built, row):
    net = built(options, style, precision)
    packed = row([5, 1, 230, 40], vocabulary=VOCABULARY)  # few rows, and attention in blocks
    hidden = cpu_model(net).hidden(packed)
    expected = net.encode(packed) if style == "encoder" else net.decode(packed)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=3 * TOLERANCE[precision])
    for tokens, results in zip(packed.split(packed.tokens), packed.split(hidden), strict=True):
        assert cpu_model(net).hidden(type(packed).of([tokens])).equal(results)
    if style == "decoder":
        torch.testing.assert_close(
            cpu_model(net).logits(hidden), net.head(hidden, None, net.output_matrix()),
            rtol=0, atol=TOLERANCE[precision],
        )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", ["qwen2", "marian", "bergamot"])
@pytest.mark.parametrize("style", STYLES)
def test_search_equals_eager_engine(style, options, mode, built, same, monkeypatch):
    net, search = built(options, style), DecodingConfig(max_length=8, **MODES[mode])
    results = decode(net, REQUESTS, search)
    with monkeypatch.context() as patch:
        patch.setattr(engines, "cpu_model", lambda model: None)
        same(results, decode(net, REQUESTS, search), atol=2e-5)
    assert len({tuple(answer.token_ids) for answer in results}) > 1


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("options", OPTIONS)
def test_continuous_batch_equals_each_request_alone(options, precision, built, same):
    net = built(options, "decoder", precision)
    searches = [DecodingConfig(max_length=6, **MODES[mode]) for mode in MODES]
    pairs = [(request, searches[i % len(searches)]) for i, request in enumerate(REQUESTS)]
    batch = ContinuousBatch(net)
    running = batch.add(pairs[:4])
    assert all(isinstance(each.engine, CpuSearch) for each in running)
    batch.step()
    running += batch.add(pairs[4:])
    while batch.running:
        batch.step()
    alone = [decode(net, [request], search)[0] for request, search in pairs]
    same([each.prediction() for each in running], alone, atol=0)


def test_scores_of_prefixes_include_the_output_bias(built):
    net = built("marian", "encoder-decoder")
    [ours] = score(net, REQUESTS[3:4], [[5, 9, 4]], alone=True)
    [expected] = score(net.double(), REQUESTS[3:4], [[5, 9, 4]], alone=True)
    torch.testing.assert_close(
        torch.tensor(ours.logprobs), torch.tensor(expected.logprobs), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    "parameter", ["head.bias", "decoder.layers.0.self_attention_norm.norm.bias"]
)
def test_changed_biases_are_used(parameter, built, row):
    net = built("marian", "decoder")
    packed = row([4, 3], vocabulary=VOCABULARY)
    before = cpu_model(net)
    logits = before.logits(before.hidden(packed))
    net.get_parameter(parameter).data += 1
    after = cpu_model(net)
    assert not after.logits(after.hidden(packed)).equal(logits)
