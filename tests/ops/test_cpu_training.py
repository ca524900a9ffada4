"""Training steps in C++: dropout, threads, and whole steps (test_backends.py has each operation)."""

import math

import pytest
import torch
from torch import nn

from regard import ModelConfig, Packed, Transformer
from regard.device import choose_dtype
from regard.ops import cross_entropy
from regard.ops.cpu import build as native
from regard.ops.cpu import training
from regard.training.trainer import fast_bfloat16

pytestmark = pytest.mark.skipif(native.library("training") is None, reason="no native code here")


@pytest.fixture(params=native.possible(), autouse=True)
def variant(request, monkeypatch):
    monkeypatch.setenv("REGARD_NATIVE", request.param)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request):
    return request.param


def test_a_label_outside_the_vocabulary_is_refused():
    for label in (-1, 5):
        with pytest.raises(IndexError, match="outside the vocabulary of 5"):
            training.token_losses(torch.randn(2, 5), torch.tensor([0, label]), 0.1, True, 5)


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_dropout_fraction_and_backward_mask(fraction, dtype):
    x, y = torch.zeros(400, 128, dtype=dtype), torch.ones(400, 128, dtype=dtype, requires_grad=True)
    torch.manual_seed(1)
    out = training.add_norm(x, y, None, fraction)
    nonzero = out != 0
    assert set(out.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - fraction), dtype=dtype))}
    bound = 4 * math.sqrt(fraction * (1 - fraction) / out.numel())
    assert abs(float(nonzero.float().mean()) - (1 - fraction)) < bound
    # rows, columns and neighbours are independent
    for mean in (nonzero.float().mean(0), nonzero.float().mean(1)):
        assert float((mean - (1 - fraction)).abs().max()) < 6 * math.sqrt(0.25 / 128)
    pairs = (nonzero[:, 1:] & nonzero[:, :-1]).float().mean()
    assert abs(float(pairs) - (1 - fraction) ** 2) < 3 * bound
    (gradient,) = torch.autograd.grad(out, y, torch.ones_like(out))
    assert torch.equal(gradient, out)
    again = training.add_norm(x, y, None, fraction)
    assert not torch.equal(out, again)
    torch.manual_seed(1)
    assert torch.equal(out, training.add_norm(x, y, None, fraction))


def test_norm_and_embedding_use_same_dropout_mask_backward():
    """Compare with a finite difference at a fixed seed."""
    table = torch.randn(9, 32, requires_grad=True)
    tokens, positions = torch.randint(9, (50,)), torch.zeros(50, dtype=torch.long)
    y, upstream = torch.randn(50, 32, requires_grad=True), torch.randn(50, 32)
    norm = nn.LayerNorm(32)

    def value(table, y):
        torch.manual_seed(3)
        x = training.Embed.apply(table, tokens, 1.0, None, positions, 0.3)
        return (training.add_norm(x, y, norm, 0.3) * upstream).sum()

    gradients = torch.autograd.grad(value(table, y), (table, y))
    for which, gradient in enumerate(gradients):
        direction = gradient / gradient.norm()
        step = 1e-2
        moved = [
            value(*(x + sign * step * direction if i == which else x
                    for i, x in enumerate((table, y))))
            for sign in (1, -1)
        ]  # fmt: skip
        difference = float(moved[0] - moved[1]) / (2 * step)
        assert math.isclose(difference, float(gradient.norm()), rel_tol=1e-2)


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
def test_training_step_equals_pytorch_loss_and_gradients(changes, dtype, monkeypatch):
    model = small_model(**changes)
    ours = step(model, dtype)
    monkeypatch.setenv("REGARD_NATIVE", "off")
    exact = step(model.double(), torch.float64)
    nearly = 1e-6 if dtype == torch.float32 else 2e-3
    assert float(ours[0]) == pytest.approx(float(exact[0]), rel=nearly)
    size = torch.cat([x.flatten() for x in exact[1:]]).norm()
    error = torch.cat([(a - b).flatten() for a, b in zip(ours[1:], exact[1:], strict=True)]).norm()
    assert float(error / size) < (1e-5 if dtype == torch.float32 else 6e-2)


def test_result_is_bit_identical_for_any_number_of_threads(dtype):
    inputs = [torch.randn(300, 32).to(dtype) for _ in range(2)]
    leaves = [x.requires_grad_() for x in (*inputs, torch.randn(32), torch.randn(32))]
    tokens, table = torch.randint(40, (300,)), torch.randn(40, 32, requires_grad=True)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            torch.manual_seed(7)
            out = training.AddNorm.apply(*leaves, 1, 1e-5, 0.2)
            rows = training.Embed.apply(table, tokens, 2.0, None, tokens, 0.2)
            results.append((
                out, *torch.autograd.grad(out, leaves, torch.ones_like(out)),
                rows, *torch.autograd.grad(rows, table, torch.ones_like(rows)),
            ))  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    for repeated in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], repeated, strict=True))


def test_training_uses_bfloat16_only_if_processor_supports_it(monkeypatch):
    cpu = torch.device("cpu")
    for known, expected in (({"avx2"}, torch.float32), ({"avx512_bf16"}, torch.bfloat16)):
        monkeypatch.setattr(native, "features", lambda known=known: frozenset(known))
        monkeypatch.setattr(native, "library", lambda name: object())
        assert choose_dtype("auto", cpu, fast_bfloat16) == expected
    monkeypatch.setattr(native, "library", lambda name: None)
    assert choose_dtype("auto", cpu, fast_bfloat16) == torch.float32
    assert choose_dtype("bfloat16", cpu, fast_bfloat16) == torch.bfloat16
