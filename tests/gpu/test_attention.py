"""Backends on a CUDA device equal the reference, forward and backward.

They are skipped without a GPU, as in CI. Run them with `pytest tests/gpu`.
"""

import pytest
import torch

from attend import attend
from regard.config.model import STYLES
from regard.errors import InputError
from regard.model.visibility import Visibility

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
VISIBILITIES = [Visibility(causal, window) for causal in (False, True) for window in (None, 1, 50)]


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    """Compute float32 products in float32, not in TF32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def offsets(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def relative_error(ours, expected):
    return float((ours.detach().double() - expected.detach()).norm() / expected.detach().norm())


@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
@pytest.mark.parametrize("backend", ["padded", "cuda"])
def test_attention_and_its_gradients_equal_the_reference_in_float64(backend, visibility):
    packings = [[1], [2, 1, 127], [128, 128], [129, 300, 1, 1, 40], [7] * 60]
    for lengths in packings:
        for heads, size in ((2, 8), (3, 32), (2, 64)):
            exact = [
                torch.randn(sum(lengths), heads, size, dtype=torch.float64, requires_grad=True)
                for _ in "qkv"
            ]
            upstream = torch.randn_like(exact[0])
            bounds = offsets(lengths), offsets(lengths)
            reference = attend(*exact, *bounds, visibility, backend="reference")
            expected = reference, *torch.autograd.grad(reference, exact, upstream)
            for dtype, tolerance in ((torch.float32, 2e-3), (torch.bfloat16, 2e-2)):
                inputs = [x.detach().to("cuda", dtype).requires_grad_() for x in exact]
                output = attend(*inputs, *bounds, visibility, backend=backend)
                ours = output, *torch.autograd.grad(output, inputs, upstream.to("cuda", dtype))
                for a, b in zip(ours, expected, strict=True):
                    assert a.isfinite().all()
                    if sum(lengths) > 1:  # one query, one key: query and key have no gradient
                        assert relative_error(a.cpu(), b) < tolerance


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("window", [None, 30])
def test_the_whole_model_equals_the_reference_on_the_cpu(style, window, model, row, run):
    source, target = row([200, 1, 130, 40]), row([150, 2, 128, 90])
    results = {}
    for backend, device in (("reference", "cpu"), ("cuda", "cuda"), ("padded", "cuda")):
        torch.manual_seed(1)
        net = model(backend, torch.float32, style=style, d_model=64, window=window).to(device)
        logits = run(net, source.to(device), target.to(device))
        weights = torch.linspace(-1, 1, logits.numel()).view_as(logits).to(device)
        gradients = torch.autograd.grad((logits * weights).sum(), net.parameters())
        results[backend] = [x.cpu() for x in (logits, *gradients)]
    for backend in ("cuda", "padded"):
        for ours, expected in zip(results[backend], results["reference"], strict=True):
            assert relative_error(ours, expected.double()) < 3e-3


def test_training_on_a_gpu_uses_cuda_and_with_attention_dropout_padded():
    from regard.ops import attention_backend

    cuda = torch.device("cuda")
    assert attention_backend("auto", cuda, 0.0) == "cuda"
    assert attention_backend("auto", cuda, 0.1) == "padded"
    assert attention_backend("auto", torch.device("cpu"), 0.0) in ("cpu", "padded")
    with torch.no_grad():
        assert attention_backend("auto", cuda, 0.0) == "padded"


def test_auto_uses_padded_for_what_cuda_does_not_support():
    bounds = offsets([5, 3]), offsets([5, 3])
    for size, dtype in ((8, torch.float64), (256, torch.float32)):
        tensors = [torch.randn(8, 2, size, dtype=dtype, device="cuda") for _ in "qkv"]
        ours = attend(*tensors, *bounds, Visibility(causal=True))
        expected = attend(*tensors, *bounds, Visibility(causal=True), backend="reference")
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
        with pytest.raises(InputError, match="backend=cuda takes float32 and bfloat16"):
            attend(*tensors, *bounds, Visibility(causal=True), backend="cuda")


def test_stepping_with_the_cache_equals_the_full_pass(model, row):
    net = model("padded", torch.float32, d_model=64).to("cuda")
    source, target = row([30, 4]).to("cuda"), row([20, 20]).to("cuda")
    cache = net.start(source, steps=20)
    tokens = target.tokens.view(2, 20, 1)
    steps = [net.step(tokens[:, i], None, cache)[:, 0] for i in range(20)]
    stepped = torch.stack(steps, 1).flatten(0, 1)  # [2 * 20, V]
    torch.testing.assert_close(stepped, net(source, target), rtol=0, atol=1e-3)
