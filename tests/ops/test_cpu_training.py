"""What a CPU does in C++ between the products of a training step is what PyTorch would do."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard import ModelConfig, Packed, Transformer
from regard.device import choose_dtype
from regard.ops.cpu import build as native
from regard.ops.cpu import training
from regard.ops.cross_entropy import cross_entropy, losses
from regard.training.trainer import fast_bfloat16

pytestmark = pytest.mark.skipif(native.library("training") is None, reason="no native code here")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


@pytest.fixture(params=native.possible(), autouse=True)
def variant(request, monkeypatch):
    monkeypatch.setenv("REGARD_NATIVE", request.param)


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request):
    return request.param


def near(ours, exact, dtype):
    exact = torch.as_tensor(exact)
    tolerance = TOLERANCE[dtype] * max(1.0, float(exact.abs().max()))
    torch.testing.assert_close(ours.double(), exact.double(), rtol=0, atol=tolerance)


def compare(function, plain, tensors, dtype):
    """Values and gradients of a function of tensors in `dtype`, beside those of plain float64."""
    results = []
    for f, kind in ((function, dtype), (plain, torch.float64)):
        inputs = [x.to(kind if x.dim() > 1 else torch.promote_types(kind, torch.float32),
                       copy=True).requires_grad_() for x in tensors]  # fmt: skip
        out = f(*inputs)
        torch.manual_seed(5)
        upstream = torch.randn(out.shape).to(dtype).to(out.dtype)
        results.append((out, *torch.autograd.grad(out, inputs, upstream)))
    for ours, exact in zip(*results, strict=True):
        near(ours, exact, dtype)


@pytest.mark.parametrize("width", [3, 16, 40, 128])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("added", [True, False])
def test_add_and_norm_is_pytorchs(width, kind, added, dtype):
    norm = nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width, eps=1e-5)
    tensors = [torch.randn(150, width).to(dtype) for _ in range(1 + added)]

    def function(x, *others):
        y, weights = (others[0], others[1:]) if added else (None, others)
        norm.weight = nn.Parameter(weights[0])
        if kind == "layer":
            norm.bias = nn.Parameter(weights[1])
        return training.AddAndNorm.apply(
            x, y, weights[0], weights[1] if kind == "layer" else None, 1e-5, kind == "layer", 0.0
        )

    def plain(x, *others):
        y, weights = (others[0], others[1:]) if added else (0, others)
        if kind == "layer":
            return F.layer_norm(x + y, (width,), *weights)
        return F.rms_norm(x + y, (width,), *weights, eps=1e-5)

    weights = [torch.randn(width) for _ in range(1 + (kind == "layer"))]
    compare(function, plain, [*tensors, *weights], dtype)


def test_add_without_dropout_is_a_sum(dtype):
    tensors = [torch.randn(70, 33).to(dtype) for _ in range(2)]
    compare(lambda x, y: training.add_and_norm(x, y, None, 0.0), torch.add, tensors, dtype)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_in_bfloat16_is_near_the_exact_one(relu, biased):
    tensors = [torch.randn(130, 24).bfloat16(), torch.randn(40, 24).bfloat16() / 5]

    def plain(x, weight, bias=None):
        product = F.linear(x, weight, bias)
        return F.relu(product) if relu else product

    def function(x, weight, bias=None):
        with torch.autocast("cpu", torch.bfloat16):
            return training.product(x, weight.float(), bias, relu)

    compare(function, plain, [*tensors, *([torch.randn(40)] if biased else [])], torch.bfloat16)


def test_the_embedding_is_scaled_rows_plus_places(dtype):
    tokens, positions = torch.randint(11, (90,)), torch.randint(7, (90,))
    table, places = torch.randn(11, 20, requires_grad=True), torch.randn(7, 20, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        ours = training.embed(table, tokens, 4.0, places, positions, 0.0)
    theirs = F.embedding(tokens, table) * 4 + F.embedding(positions, places)
    assert ours.dtype == dtype
    near(ours, theirs, dtype)
    upstream = torch.randn(90, 20).to(dtype)
    for a, b in zip(
        torch.autograd.grad(ours, (table, places), upstream),
        torch.autograd.grad(theirs, (table, places), upstream.float()),
        strict=True,
    ):
        near(a, b, dtype)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocabulary", [1, 5, 64, 1000])
def test_losses_and_their_slope_are_pytorchs(smoothing, vocabulary, dtype):
    logits, labels = 3 * torch.randn(40, vocabulary).to(dtype), torch.randint(vocabulary, (40,))
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, labels, label_smoothing=smoothing, reduction="sum")
    likelihood, loss = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    slope = losses(logits, labels, smoothing, True, loss, likelihood)
    assert slope.data_ptr() == logits.data_ptr()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(
        likelihood, F.cross_entropy(exact, labels, reduction="sum"), rtol=1e-6, atol=1e-4
    )
    near(slope, *torch.autograd.grad(expected, exact), dtype)


def test_a_label_outside_the_vocabulary_is_refused():
    for label in (-1, 5):
        with pytest.raises(IndexError, match="outside the vocabulary of 5"):
            training.losses(torch.randn(2, 5), torch.tensor([0, label]), 0.1, True)


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_dropout_drops_its_fraction_and_the_way_back_drops_the_same(fraction, dtype):
    x, y = torch.zeros(400, 128, dtype=dtype), torch.ones(400, 128, dtype=dtype, requires_grad=True)
    torch.manual_seed(1)
    out = training.add_and_norm(x, y, None, fraction)
    kept = out != 0
    assert set(out.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - fraction), dtype=dtype))}
    bound = 4 * math.sqrt(fraction * (1 - fraction) / out.numel())
    assert abs(float(kept.float().mean()) - (1 - fraction)) < bound
    # neither rows nor columns nor neighbours are alike
    for mean in (kept.float().mean(0), kept.float().mean(1)):
        assert float((mean - (1 - fraction)).abs().max()) < 6 * math.sqrt(0.25 / 128)
    pairs = (kept[:, 1:] & kept[:, :-1]).float().mean()
    assert abs(float(pairs) - (1 - fraction) ** 2) < 3 * bound
    (slope,) = torch.autograd.grad(out, y, torch.ones_like(out))
    assert torch.equal(slope, out)
    again = training.add_and_norm(x, y, None, fraction)
    assert not torch.equal(out, again)
    torch.manual_seed(1)
    assert torch.equal(out, training.add_and_norm(x, y, None, fraction))


def test_norm_and_embedding_drop_the_same_forward_and_backward():
    """A finite difference of the whole, with the seed held."""
    table = torch.randn(9, 32, requires_grad=True)
    tokens, positions = torch.randint(9, (50,)), torch.zeros(50, dtype=torch.long)
    y, upstream = torch.randn(50, 32, requires_grad=True), torch.randn(50, 32)
    norm = nn.LayerNorm(32)

    def value(table, y):
        torch.manual_seed(3)
        x = training.embed(table, tokens, 1.0, None, positions, 0.3)
        return (training.add_and_norm(x, y, norm, 0.3) * upstream).sum()

    slopes = torch.autograd.grad(value(table, y), (table, y))
    for which, slope in enumerate(slopes):
        direction = slope / slope.norm()
        step = 1e-2
        moved = [
            value(*(x + sign * step * direction if i == which else x
                    for i, x in enumerate((table, y))))
            for sign in (1, -1)
        ]  # fmt: skip
        difference = float(moved[0] - moved[1]) / (2 * step)
        assert math.isclose(difference, float(slope.norm()), rel_tol=1e-2)


def small_model(**changes):
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 50, "d_model": 32, "heads": 2, "d_ff": 48, "encoder_layers": 2,
             "decoder_layers": 2}  # fmt: skip
    return Transformer(ModelConfig(**{**sizes, "dropout": 0.0, **changes}))


def step(model, dtype):
    """The loss of three pairs of sentences, and all gradients."""
    source = Packed.of([[i % 50 for i in range(n)] for n in (9, 4, 17)])
    target = Packed.of([[3 * i % 50 for i in range(n)] for n in (7, 6, 20)])
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        hidden = model.hidden(source, target)
        loss, _ = cross_entropy(hidden, model.output_matrix(), target.tokens, 0.1)
    return loss, *torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_first": True, "positions": "rotary"}, {"positions": "learned", "norm": "rms"},
     {"activation": "gelu", "window": 3}, {"activation": "swiglu", "bias": False}],
    ids=str,
)  # fmt: skip
def test_a_whole_step_has_pytorchs_loss_and_gradients(changes, dtype, monkeypatch):
    model = small_model(**changes)
    ours = step(model, dtype)
    monkeypatch.setenv("REGARD_NATIVE", "off")
    exact = step(model.double(), torch.float64)
    nearly = 1e-6 if dtype == torch.float32 else 2e-3
    assert float(ours[0]) == pytest.approx(float(exact[0]), rel=nearly)
    size = torch.cat([x.flatten() for x in exact[1:]]).norm()
    error = torch.cat([(a - b).flatten() for a, b in zip(ours[1:], exact[1:], strict=True)]).norm()
    assert float(error / size) < (1e-5 if dtype == torch.float32 else 6e-2)


def test_the_number_of_threads_changes_no_bit(dtype):
    inputs = [torch.randn(300, 32).to(dtype) for _ in range(2)]
    leaves = [x.requires_grad_() for x in (*inputs, torch.randn(32), torch.randn(32))]
    tokens, table = torch.randint(40, (300,)), torch.randn(40, 32, requires_grad=True)
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            torch.manual_seed(7)
            out = training.AddAndNorm.apply(*leaves, 1e-5, True, 0.2)
            rows = training.embed(table, tokens, 2.0, None, tokens, 0.2)
            found.append((
                out, *torch.autograd.grad(out, leaves, torch.ones_like(out)),
                rows, *torch.autograd.grad(rows, table, torch.ones_like(rows)),
            ))  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_training_is_in_bfloat16_only_where_the_processor_multiplies_it(monkeypatch):
    cpu = torch.device("cpu")
    for known, expected in (({"avx2"}, torch.float32), ({"avx512_bf16"}, torch.bfloat16)):
        monkeypatch.setattr(native, "features", lambda known=known: frozenset(known))
        monkeypatch.setattr(native, "library", lambda name: object())
        assert choose_dtype("auto", cpu, fast_bfloat16) == expected
    monkeypatch.setattr(native, "library", lambda name: None)
    assert choose_dtype("auto", cpu, fast_bfloat16) == torch.float32
    assert choose_dtype("bfloat16", cpu, fast_bfloat16) == torch.bfloat16
