"""Every available backend equals ops/reference.py, forward and backward.

`cuda` runs compiled on a GPU, or interpreted by Triton on a CPU if TRITON_INTERPRET is set
(test_training_kernels.py does so in a subprocess).
"""

import os
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from regard.ops import attention_layout, reference
from regard.ops.cpu import build, few_rows
from regard.ops.cpu import training as cpu
from regard.ops.cuda import training as cuda
from regard.ops.losses import CrossEntropy

GPU = torch.cuda.is_available()
INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
NO_TRITON = find_spec("triton") is None or not (GPU or INTERPRETED)
BACKENDS = [
    *(
        pytest.param(("cpu", variant), marks=pytest.mark.skipif(
            build.library("training") is None, reason="no native code here"))
        for variant in build.possible()
    ),
    pytest.param(("cuda", ""), marks=pytest.mark.skipif(NO_TRITON, reason="needs Triton")),
]  # fmt: skip
N, D = 70, 40


@pytest.fixture(params=BACKENDS, ids=lambda param: "-".join(filter(None, param)))
def backend(request, monkeypatch):
    """(module, device)"""
    name, variant = request.param
    if variant:
        monkeypatch.setenv("REGARD_NATIVE", variant)
    if GPU:
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    return (cpu, "cpu") if name == "cpu" else (cuda, "cuda" if GPU else "cpu")


def compare(ours, exact, inputs, device, tolerance=1e-5, shared=()):
    """Values and gradients of `ours` in float32 beside those of `exact` in float64.

    inputs: float tensors, which get gradients; shared: further arguments of both.
    """
    results = []
    for function, dtype, place in ((ours, torch.float32, device), (exact, torch.float64, "cpu")):
        leaves = [x.detach().to(place, dtype, copy=True).requires_grad_() for x in inputs]
        out = function(*leaves, *(x.to(place) for x in shared))
        torch.manual_seed(1)
        upstream = torch.randn(out.shape).to(out.device, out.dtype)
        gradients = torch.autograd.grad(out, leaves, upstream)
        results.append([x.detach().cpu().double() for x in (out, *gradients)])
    for a, b in zip(*results, strict=True):
        assert float((a - b).norm()) <= tolerance * max(1.0, float(b.norm()))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_linear(backend, activation, biased):
    module, device = backend
    if INTERPRETED and not GPU and module is cuda:
        pytest.skip("torch.mm(out_dtype=) needs a GPU")
    weights = [torch.randn(24, D) / 5, *([torch.randn(24)] if biased else [])]
    x = (torch.randn(N, D)).bfloat16()

    def ours(x, weight, bias=None):
        with torch.autocast(x.device.type, torch.bfloat16):
            out = module.linear(x, weight, bias, activation)
        assert out.dtype == torch.bfloat16
        return out

    def exact(x, weight, bias=None):
        # A sum that is rounded to the other side of 0 would count as an error of ReLU's gradient.
        if activation != "relu":
            return reference.linear(x, weight, bias, activation)
        with torch.no_grad():
            positive = ours(x.float(), weight.float(), None if bias is None else bias.float()) > 0
        return reference.linear(x, weight, bias, "none") * positive

    compare(ours, exact, [x, *weights], device, 2e-2)


@pytest.mark.parametrize("rows", [1, 2, 16, 17])
@pytest.mark.parametrize("outputs", [7, 24])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_linear_of_few_rows(rows, outputs, biased, activation):
    x, weight = torch.randn(rows, D), torch.randn(outputs, D)
    bias = torch.randn(outputs) if biased else None
    with torch.no_grad():
        ours = few_rows.linear(x, weight, bias, activation)
    assert ours.is_contiguous()
    torch.testing.assert_close(ours, reference.linear(x, weight, bias, activation))


@pytest.mark.parametrize("width", [3, 16, D, 128])
@pytest.mark.parametrize("norm", ["layer", "rms", None])
@pytest.mark.parametrize("adds", [True, False])
def test_add_norm(backend, width, norm, adds):
    module, device = backend
    if norm is None and not adds:
        return  # no operation
    inputs = [torch.randn(N, width) for _ in range(1 + adds)]
    inputs += [torch.randn(width) for _ in range({"layer": 2, "rms": 1, None: 0}[norm])]

    def function(add_norm, x, *others):
        y, weights = (others[0], others[1:]) if adds else (None, others)
        module = None
        if norm is not None:
            module = nn.LayerNorm(width) if norm == "layer" else nn.RMSNorm(width, eps=1e-5)
            for name, weight in zip(("weight", "bias"), weights, strict=False):
                del module._parameters[name]  # so that gradients reach the test's own tensors
                setattr(module, name, weight)
        return add_norm(x, y, module, 0.0)

    both = (partial(function, m.add_norm) for m in (module, reference))
    compare(*both, inputs, device)


@pytest.mark.parametrize("learned", [True, False])
def test_embed(backend, learned):
    module, device = backend
    inputs = [torch.randn(30, D), *([torch.randn(20, D)] if learned else [])]
    tokens, positions = torch.randint(30, (N,)), torch.randint(20, (N,))

    def function(embed, table, *others):
        *rows, tokens, positions = others
        module = nn.Embedding(1, 1)
        del module._parameters["weight"]
        module.weight = table
        return embed(module, tokens, 3.0, rows[0] if learned else None, positions, 0.0)

    both = (partial(function, m.embed) for m in (module, reference))
    compare(*both, inputs, device, shared=(tokens, positions))


@pytest.mark.parametrize("vocabulary", [48, 53, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("pieces", [1, 3])
def test_cross_entropy(backend, vocabulary, smoothing, biased, pieces, monkeypatch):
    module, device = backend
    for known in (module, reference):
        monkeypatch.setattr(known, "PIECE", vocabulary * -(-N // pieces))
    inputs = [torch.randn(N, D), torch.randn(vocabulary, D)]
    inputs += [torch.randn(vocabulary)] if biased else []
    labels = torch.randint(vocabulary, (N,))

    def ours(module, hidden, matrix, *others):
        bias = others[0] if biased else None
        loss, likelihood = CrossEntropy.apply(module, hidden, matrix, others[-1], smoothing, bias)
        assert not likelihood.requires_grad
        likelihoods.append(float(likelihood))
        return loss

    def exact(hidden, matrix, *others):
        bias = others[0] if biased else None
        loss, likelihood = reference.cross_entropy(hidden, matrix, others[-1], smoothing, bias)
        likelihoods.append(float(likelihood))
        return loss

    for tested in (module, reference):
        likelihoods = []
        compare(partial(ours, tested), exact, inputs, device, shared=(labels,))
        assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-5)


def test_tokens_with_label_minus_1_are_ignored_on_a_gpu(backend):
    module, device = backend
    if module is not cuda:
        return
    labels = torch.randint(20, (N,)).where(torch.arange(N) % 3 > 0, -1)

    def ours(hidden, matrix, labels):
        return CrossEntropy.apply(module, hidden, matrix, labels, 0.1, None)[0]

    def exact(hidden, matrix, labels):
        counted = labels >= 0
        return reference.cross_entropy(hidden[counted], matrix, labels[counted], 0.1, None)[0]

    compare(ours, exact, [torch.randn(N, D), torch.randn(20, D)], device, shared=(labels,))


@pytest.mark.parametrize("vocabulary", [48, 5000])
def test_disagreement(backend, vocabulary):
    module, device = backend
    if not hasattr(module, "disagreement"):
        return  # it uses the reference
    counted = torch.arange(9) % 4 > 0
    inputs = [torch.randn(9, vocabulary) for _ in range(2)]

    def ours(first, second, counted):
        return module.disagreement(1 * first, 1 * second, counted)  # which overwrites logits

    compare(ours, reference.disagreement, inputs, device, shared=(counted,))


@pytest.mark.parametrize("window", [None, 5, 50])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [[1], [2, 1, 27, 30, 5], [200, 40, 1]], ids=str)
@pytest.mark.parametrize("name", ["backend", "padded"])
def test_attention(backend, name, lengths, causal, window):
    module, device = backend
    name = name if name == "padded" else ("cpu" if module is cpu else "cuda")

    def attend(name, query, key, value):
        device = torch.device(query.device)
        layout = attention_layout(lengths, lengths, causal, window, backend=name, device=device)
        return layout.attend(query, key, value)

    inputs = [torch.randn(sum(lengths), 2, 8) for _ in "qkv"]
    both = (partial(attend, name) for name in (name, "reference"))
    compare(*both, inputs, device, 1e-4)
