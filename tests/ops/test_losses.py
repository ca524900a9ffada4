"""The loss in chunks equals PyTorch's loss; `divergence` is symmetric and can be masked."""

import pytest
import torch
from torch.nn import functional as F

from regard.ops import cross_entropy, divergence, reference


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("piece", [7, 1 << 22])
def test_loss_in_chunks_and_its_gradients_equal_pytorch(smoothing, piece, monkeypatch):
    monkeypatch.setattr(reference, "PIECE", piece * 11)
    hidden = torch.randn(23, 6, dtype=torch.float64, requires_grad=True)
    matrix = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(11, (23,))
    ours, likelihood = cross_entropy(hidden, matrix, labels, smoothing)
    logits = hidden @ matrix.T
    theirs = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(likelihood, F.cross_entropy(logits, labels, reduction="sum"))
    for a, b in zip(
        torch.autograd.grad(0.3 * ours, (hidden, matrix)),
        torch.autograd.grad(0.3 * theirs, (hidden, matrix)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_gradcheck_through_the_loss():
    hidden = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    matrix = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(7, (5,))
    assert torch.autograd.gradcheck(
        lambda h, m: cross_entropy(h, m, labels, 0.1)[0], (hidden, matrix)
    )


def test_bfloat16_loss_is_close_to_exact_loss():
    hidden, matrix = torch.randn(40, 16), torch.randn(30, 16, requires_grad=True)
    labels = torch.randint(30, (40,))
    exact, _ = cross_entropy(hidden, matrix, labels, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        rough, _ = cross_entropy(hidden, matrix, labels, 0.1)
    assert rough != exact
    torch.testing.assert_close(rough, exact, rtol=2e-2, atol=0)
    rough.backward()
    assert matrix.grad.dtype == torch.float32


def test_divergence_is_symmetric_zero_for_equal_passes_and_masked():
    first, second, matrix = torch.randn(6, 4), torch.randn(6, 4), torch.randn(9, 4)
    every = torch.arange(6)

    def distance(hidden_p, hidden_q, labels=every):
        return divergence(hidden_p, hidden_q, matrix, None, labels)

    assert float(distance(first, first)) == 0
    torch.testing.assert_close(distance(first, second), distance(second, first))
    p, q = (F.linear(x, matrix).log_softmax(-1) for x in (first, second))
    theirs = F.kl_div(p, q, log_target=True, reduction="sum")
    theirs = 0.5 * (theirs + F.kl_div(q, p, log_target=True, reduction="sum"))
    torch.testing.assert_close(distance(first, second).float(), theirs)
    some = torch.tensor([3, -1, 0, -1, 1, 2])
    torch.testing.assert_close(
        distance(first, second, some), distance(first[some >= 0], second[some >= 0], every[:4])
    )
