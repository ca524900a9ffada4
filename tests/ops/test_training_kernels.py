"""The Triton kernels of a training step, in Triton's interpreter on a CPU and in float32.

Skipped where Triton is not installed, as in CI; tests/gpu tests them compiled.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from regard.ops.cuda import training
from regard.ops.heads import SplitHeads
from regard.ops import attention_layout

torch.manual_seed(0)
N, D = 37, 48
CPU = torch.device("cpu")


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def same(ours, theirs, inputs):
    upstream = torch.randn_like(ours)
    ours = ours, *torch.autograd.grad(ours, inputs, upstream)
    theirs = theirs, *torch.autograd.grad(theirs, inputs, upstream)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


# Parts of one product, and cross-attention.
for queries, keys in (([2, 1, 27, 30, 5],) * 2, ([2, 1, 27, 30, 5], [5, 4, 170, 3, 1])):
    x, y = leaf(sum(queries), 16), leaf(sum(keys), 32)
    parts = *SplitHeads.apply(x, 1, 2), *SplitHeads.apply(y, 2, 2)
    if queries is keys:
        x = leaf(sum(keys), 48)
        parts = SplitHeads.apply(x, 3, 2)
    ours, theirs = (
        attention_layout(queries, keys, False, None, backend=name, device=CPU).attend(*parts)
        for name in ("cuda", "reference")
    )
    same(ours, theirs, [x] if queries is keys else [x, y])

for norm in (None, nn.LayerNorm(D), nn.RMSNorm(D, eps=1e-5)):
    x, y = leaf(N, D), leaf(N, D)
    torch.manual_seed(3)
    ours = training.add_norm(x, y, norm, 0.3)
    torch.manual_seed(3)
    mask = training.add_norm(torch.zeros(N, D), torch.ones(N, D), None, 0.3)
    total = x + y * mask
    inputs = [x, y, *([] if norm is None else norm.parameters())]
    same(ours, total if norm is None else norm(total), inputs)

# The seed that is added changes the mask and is used in the backward pass as well.
x, y = torch.zeros(N, D), torch.ones(N, D, requires_grad=True)
masks = []
for seed in (0, 5, 5):
    torch.manual_seed(3)
    with training.seeded_dropout(torch.tensor([seed])):
        out = training.add_norm(x, y, None, 0.3)
    assert torch.equal(torch.autograd.grad(out, y, torch.ones_like(out))[0], out)
    masks.append(out)
torch.manual_seed(3)
assert torch.equal(training.add_norm(x, y, None, 0.3), masks[0])
assert torch.equal(masks[1], masks[2]) and not torch.equal(masks[0], masks[1])

for name, function in (("none", lambda x: 1 * x), ("relu", F.relu), ("gelu", F.gelu)):
    x, gradient = leaf(300, 270), torch.randn(300, 270)
    out = function(x)
    expected, = torch.autograd.grad(out, x, gradient)
    seen = (out if name == "relu" else x).detach()
    result, bias = training.through_bias(gradient, seen, training.ACTIVATION_CODES[name])
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(bias, expected.sum(0), rtol=1e-4, atol=1e-4)

table, rows = nn.Embedding(30, D), leaf(20, D)
tokens, positions = torch.randint(30, (N,)), torch.randint(20, (N,))
torch.manual_seed(3)
ours = training.embed(table, tokens, 3.0, rows, positions, 0.4)
torch.manual_seed(3)
ones = nn.Embedding.from_pretrained(torch.ones(30, D))
mask = training.embed(ones, tokens, 1.0, None, positions, 0.4)
plain = (table.weight[tokens] * 3.0 + rows[positions]) * mask
same(ours, plain, [table.weight, rows])
print("all equal")
"""
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu tests them compiled")


def interpreted(*command):
    return subprocess.run(
        [sys.executable, *command], env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@needs_triton
@needs_no_gpu
def test_dropout_masks_parts_of_products_and_bias_gradients():
    run = interpreted("-c", SCRIPT)
    assert run.stdout == "all equal\n", run.stderr


@needs_triton
@needs_no_gpu
def test_every_operation_equals_the_reference():
    file = Path(__file__).with_name("test_backends.py")
    run = interpreted("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(file), "-k", "cuda")
    assert run.returncode == 0, run.stdout
