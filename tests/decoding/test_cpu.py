"""The CPU engine computes what the Transformer and the eager engine compute."""

import math

import pytest
import torch

from regard.config.model import ModelConfig
from regard.config.sections import DecodingConfig
from regard.decoding import engines
from regard.decoding.beams import Beams
from regard.decoding.engines.cpu import CpuSearch, CpuStep, SearchPointers, cpu_model
from regard.decoding.engines.eager import EagerSearch
from regard.decoding.generate import generate
from regard.decoding.requests import Request
from regard.decoding.search import Details, Search, decode
from regard.model.transformer import Transformer
from regard.ops.cpu import build as native

EOS = 2
OPTIONS = [
    {},
    {"norm_first": True, "norm": "rms", "activation": "swiglu"},
    {"positions": "learned", "activation": "gelu", "bias": False, "heads": 1},
    {"positions": "none", "window": 3, "tie_embeddings": "none", "head_size": 20},
    {"positions": "rotary", "embedding_norm": True, "scale_embeddings": False},
]
STYLES = ["encoder-decoder", "decoder"]
# Largest difference between logits, whose values are about 1 to 3.
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.1, "int8": 0.2}
VARIANTS = [name for name, (_, needed) in native.VARIANTS.items() if needed <= native.features()]

pytestmark = pytest.mark.skipif(native.library("inference") is None, reason="needs a C++ compiler")


def built(model, precision="float32", **options):
    net = model(dtype=torch.float32, d_model=40, d_ff=52, vocabulary_size=75, **options)
    net.precision = precision
    return net


def began(net, row, sentences, width):
    """The same search before its first step, with PyTorch and with the CPU engine."""
    source = row([1 + i % 5 for i in range(sentences)]) if net.config.has_encoder else None
    read = row([1 + i % 3 for i in range(sentences)])
    ours = cpu_model(net)
    cache = ours.start(net, source, read, sentences, width, 4)
    beams = Beams(DecodingConfig(beam=width), sentences, 4, 0, EOS, torch.device("cpu"))
    beams.load([3] * sentences, [4] * sentences, [[]] * sentences, [b"x"] * sentences)
    pointers = SearchPointers(cache, beams)
    return net.start(source, read, width=width, steps=4), cache, beams, CpuStep(ours, [pointers])


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize(("sentences", "width"), [(1, 1), (1, 3), (2, 20), (30, 3)])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_step_equals_transformer_step(style, options, sentences, width, precision, model, row):
    net = built(model, precision, style=style, **options)
    plain, cache, beams, step = began(net, row, sentences, width)
    for number in range(4):
        tokens = torch.randint(75, (sentences, width))
        parents = torch.randint(width, (sentences, width)) if number else torch.zeros_like(tokens)
        beams.tokens.copy_(tokens)
        beams.parents.copy_(parents)
        expected = net.step(tokens, parents, plain)
        step()
        logits = step.buffer[:, :75].unflatten(0, (sentences, width))
        torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE[precision])
        assert (cache.used, cache.visible.equal(plain.visible)) == (plain.used, True)
        assert cache.positions.equal(plain.positions)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("style", ["encoder", *STYLES])
def test_full_pass_equals_transformer_forward(
    style, options, precision, variant, model, row, monkeypatch
):
    monkeypatch.setenv("REGARD_NATIVE", variant)
    net = built(model, precision, style=style, **options)
    packed = row([5, 1, 9, 130, 2], vocabulary=75)
    with torch.no_grad():
        expected = net.encode(packed) if net.config.has_encoder else net.decode(packed)
    # A few of thousands of numbers can differ by several rounding errors.
    tolerance = 2 * TOLERANCE[precision]
    torch.testing.assert_close(cpu_model(net).hidden(packed), expected, rtol=0, atol=tolerance)


def test_lower_precision_error_of_encoder_is_bounded(model, row):
    net, packed = built(model, style="encoder"), row([9] * 20)
    exact = cpu_model(net).hidden(packed)
    errors = []
    for precision in ("bfloat16", "int8"):
        net.precision = precision
        errors.append(float((cpu_model(net).hidden(packed) - exact).norm() / exact.norm()))
    assert 0 < errors[0] < 0.01
    assert 0 < errors[1] < 0.03


@pytest.mark.parametrize("precision", TOLERANCE)
def test_row_is_bit_identical_in_any_batch(precision, model, row):
    net = built(model, precision, style="encoder")
    packed = row([7, 3, 11, 4] * 9, vocabulary=75)
    together = packed.split(cpu_model(net).hidden(packed))
    for tokens, results in zip(packed.split(packed.tokens), together, strict=True):
        alone = cpu_model(net).hidden(type(packed).of([tokens]))
        assert alone.equal(results)


SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "n_best": 4},
    "power of the length": {"beam": 4, "length_penalty": 0.5, "length_offset": 0.0},
    "wide beam": {"beam": 9, "n_best": 3},
    "minimum length": {"beam": 2, "min_length": 5},
    "no repeat": {"beam": 3, "no_repeat": 2, "n_best": 2},
    "samples": {"beam": 1, "temperature": 1.3, "n_best": 3},
}
REQUESTS = [Request([3 + (5 * i + j) % 9 for j in range(1 + i % 7)] + [EOS]) for i in range(20)]


@pytest.fixture
def torch_decode(monkeypatch):
    """`decode` with the eager engine."""

    def run(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(engines, "cpu_model", lambda model: None)
            return decode(*arguments)

    return run


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("style", STYLES)
def test_search_equals_eager_engine(style, search, net, same, torch_decode):
    options = DecodingConfig(max_length=8, **SEARCHES[search])
    transformer = net(style=style, dtype=torch.float32)
    results = decode(transformer, REQUESTS, options)
    same(results, torch_decode(transformer, REQUESTS, options))
    assert len({len(answer.token_ids) for answer in results}) > 1


@pytest.mark.parametrize("mode", [{"beam": 3}, {"beam": 1, "temperature": 1.3, "n_best": 3}])
def test_minimum_length_without_an_end_token(mode, net, model, row, same, torch_decode):
    """Then nothing is forbidden, and no memory outside a row of logits is written."""
    options = DecodingConfig(max_length=6, min_length=4, **mode)
    transformer = net(dtype=torch.float32)
    requests = [Request(request.source, eos=-1) for request in REQUESTS]
    results = decode(transformer, requests, options)
    same(results, torch_decode(transformer, requests, options))
    assert {answer.stopped for answer in results} == {"length"}
    wide = model(dtype=torch.float32, vocabulary_size=128)  # rows of logits without padding
    compiled = cpu_model(wide)
    cache = compiled.start(wide, row([3, 2]), row([1, 1]), 2, options.width, 4)
    beams = Beams(options, 2, 4, 0, -1, torch.device("cpu"))
    beams.load([3, 3], [4, 4], [[], []], [b"x", b"y"])
    beams.restart()
    step = CpuStep(compiled, [SearchPointers(cache, beams)])
    step()
    assert step.buffer.shape == (2 * options.width, 128)
    assert step.buffer.isfinite().all()


def test_history_equals_eager_engine(net, torch_decode):
    options, details = DecodingConfig(beam=3, max_length=5), Details(history=True)
    transformer = net(dtype=torch.float32)
    histories = [
        [
            [(c.token, c.parent, c.fate) for step in answer.history for c in step]
            for answer in results
        ]
        for results in (f(transformer, REQUESTS, options, details) for f in (decode, torch_decode))
    ]
    assert histories[0] == histories[1]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lower_precision_prediction_does_not_depend_on_batch(
    precision, variant, net, same, monkeypatch
):
    monkeypatch.setenv("REGARD_NATIVE", variant)
    transformer = net(seed=5, dtype=torch.float32, d_model=32)
    transformer.precision = precision
    options = DecodingConfig(beam=2, max_length=8)
    same(
        decode(transformer, REQUESTS, options),
        [decode(transformer, [r], options)[0] for r in REQUESTS],
        atol=0,
    )


@pytest.mark.parametrize("update", ["load", "in place", "through .data", "type"])
def test_changed_weights_are_used(update, model, same, torch_decode):
    net, source = (model(dtype=torch.float32, d_model=32) for _ in range(2))
    options = DecodingConfig(beam=2, max_length=6)
    before = decode(net, REQUESTS, options)
    if update == "load":
        net.load_state_dict(source.state_dict())
    elif update == "in place":
        with torch.no_grad():
            net.decoder.layers[0].feed_forward.outer.bias[3] += 5
    elif update == "through .data":
        for target, parameter in zip(net.parameters(), source.parameters(), strict=True):
            target.data[...] = parameter.data
    else:
        net.load_state_dict(source.state_dict())
        net.double().float()
    after = decode(net, REQUESTS, options)
    assert [a.token_ids for a in after] != [a.token_ids for a in before]
    same(after, torch_decode(net, REQUESTS, options))


def engine_of(net):
    search = Search(net, REQUESTS[:1], DecodingConfig())
    next(iter(search))
    return type(search.engine)


def test_unsupported_models_use_the_eager_engine(model, monkeypatch):
    assert engine_of(model(dtype=torch.float32)) is CpuSearch
    assert engine_of(model(dtype=torch.float64)) is EagerSearch
    assert engine_of(model(dtype=torch.float32, mixer="gru")) is EagerSearch
    assert cpu_model(model(dtype=torch.float32).train()) is None
    monkeypatch.setenv("REGARD_NATIVE", "off")
    assert engine_of(model(dtype=torch.float32)) is EagerSearch


def test_number_of_threads_does_not_change_predictions(net, same):
    transformer, options = net(dtype=torch.float32), DecodingConfig(beam=3, max_length=6)
    expected = decode(transformer, REQUESTS, options)
    torch.set_num_threads(2)
    try:
        same(decode(transformer, REQUESTS, options), expected, atol=0)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.9}, {"top_k": 3, "top_p": 0.5}, {}])
def test_sampling_from_nan_returns_tokens_of_the_vocabulary(options):
    config = ModelConfig.preset("tiny", style="decoder", vocabulary_size=50, dropout=0.0)
    model = Transformer(config).eval()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    [tokens] = generate(model, prompt=[[1, 5]], temperature=1.0, max_length=6, **options)
    assert all(0 <= token < 50 for token in tokens)
