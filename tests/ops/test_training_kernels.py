"""The kernels of a training step compute what PyTorch computes: here in Triton's interpreter, on a
CPU and in float32. Skipped where Triton is not installed, as in CI; tests/gpu tests them compiled.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F
from regard.ops.cuda import training as fused
from regard.model.attention import Plan, Visibility
from regard.ops.cuda.attention import Parts, TiledLayout
from regard.ops import cross_entropy as loss

N, D = 37, 48
torch.manual_seed(0)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def same(ours, theirs, inputs):
    upstream = torch.randn_like(ours)
    ours = ours, *torch.autograd.grad(ours, inputs, upstream)
    theirs = theirs, *torch.autograd.grad(theirs, inputs, upstream)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def attention(queries, keys, visibility):
    heads, size = 2, 8
    x = leaf(sum(queries), heads * size)
    y = leaf(sum(keys), 2 * heads * size)
    parts = *Parts.apply(x, 1, heads), *Parts.apply(y, 2, heads)
    if queries is keys:  # the parts of one product
        x, y = leaf(sum(keys), 3 * heads * size), x
        parts = Parts.apply(x, 3, heads)
    ours = TiledLayout(queries, keys, visibility, torch.device("cpu")).attend(*parts, 0.0)
    theirs = Plan(queries, keys, visibility, engine="reference").attend(*parts)
    same(ours, theirs, [x] if queries is keys else [x, y])


for visibility in (Visibility(), Visibility(True), Visibility(True, 5), Visibility(False, 50)):
    for lengths in ([1], [2, 1, 27, 30, 5], [200, 40, 1]):
        attention(lengths, lengths, visibility)
attention([2, 1, 27, 30, 5], [5, 4, 170, 3, 1], Visibility())

for norm in (None, nn.LayerNorm(D), nn.RMSNorm(D, eps=1e-5)):
    for dropout in (0.0, 0.3):
        x, y = leaf(N, D), leaf(N, D)
        torch.manual_seed(3)
        ours = fused.add_and_norm(x, y, norm, dropout)
        torch.manual_seed(3)
        mask = fused.add_and_norm(torch.zeros(N, D), torch.ones(N, D), None, dropout)
        total = x + y * mask
        inputs = [x, y, *([] if norm is None else norm.parameters())]
        same(ours, total if norm is None else norm(total), inputs)

for name, function in (("none", lambda x: 1 * x), ("relu", F.relu), ("gelu", F.gelu)):
    x, slope = leaf(300, 270), torch.randn(300, 270)
    out = function(x)
    expected, = torch.autograd.grad(out, x, slope)
    seen = (out if name == "relu" else x).detach()
    found, bias = fused.through_bias(slope, seen, fused.ACTIVATIONS[name])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(bias, expected.sum(0), rtol=1e-4, atol=1e-4)

table, add = leaf(30, D), leaf(20, D)
tokens, positions = torch.randint(30, (N,)), torch.randint(20, (N,))
torch.manual_seed(3)
ours = fused.embed(table, tokens, 3.0, add, positions, 0.4)
torch.manual_seed(3)
mask = fused.embed(torch.ones(30, D), tokens, 1.0, None, positions, 0.4)
same(ours, (table[tokens] * 3.0 + add[positions]) * mask, [table, add])

fused.can_ever = lambda x: True
loss.ALIGNED, loss.FUSED_PIECE = 16, 24 * 60  # several pieces
for vocabulary in (48, 53):
    for smoothing in (0.0, 0.1):
        hidden, matrix, bias = leaf(70, 16), leaf(vocabulary, 16), leaf(vocabulary)
        labels = torch.randint(vocabulary, (70,))
        asked = torch.arange(70) < 60  # of the others nothing is asked
        ours, _ = loss.cross_entropy(hidden, matrix, labels.where(asked, -1), smoothing, bias)
        logits = F.linear(hidden, matrix, bias)[asked]
        theirs = F.cross_entropy(
            logits, labels[asked], label_smoothing=smoothing, reduction="sum"
        )
        same(ours, theirs.double(), [hidden, matrix, bias])

for vocabulary in (48, 5000):
    first, second, matrix = leaf(9, 16), leaf(9, 16), leaf(vocabulary, 16)
    labels = torch.tensor([3, 1, -1, 0, 2, -1, 1, 1, 9])
    ours = loss.divergence(first, second, matrix, None, labels)
    fused.can_ever = lambda x: False
    theirs = loss.divergence(first, second, matrix, None, labels)
    fused.can_ever = lambda x: True
    same(ours, theirs, [first, second, matrix])
print("all equal")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu tests them compiled")
def test_kernels_equal_pytorchs_forward_and_backward():
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert run.stdout == "all equal\n", run.stderr
