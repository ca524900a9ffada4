"""The loss in pieces is the loss, and its gradient does not care how a batch is split."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from regard import ModelConfig, Transformer
from regard.files import cache_folder
from regard.ops import cross_entropy as loss_module
from regard.ops.cross_entropy import cross_entropy, divergence
from regard.tasks.registry import find_task


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("piece", [7, 1 << 22])
def test_the_loss_in_pieces_equals_pytorchs_with_its_gradients(smoothing, piece, monkeypatch):
    monkeypatch.setattr(loss_module, "PIECE", piece * 11)
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


def test_in_bfloat16_the_loss_is_near_the_exact_one():
    hidden, matrix = torch.randn(40, 16), torch.randn(30, 16, requires_grad=True)
    labels = torch.randint(30, (40,))
    exact, _ = cross_entropy(hidden, matrix, labels, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        rough, _ = cross_entropy(hidden, matrix, labels, 0.1)
    assert rough != exact
    torch.testing.assert_close(rough, exact, rtol=2e-2, atol=0)
    rough.backward()
    assert matrix.grad.dtype == torch.float32


def test_divergence_is_zero_for_equal_passes_symmetric_and_of_tokens_that_are_asked():
    first, second, matrix = torch.randn(6, 4), torch.randn(6, 4), torch.randn(9, 4)
    every = torch.arange(6)

    def apart(one, other, labels=every):
        return divergence(one, other, matrix, None, labels)

    assert float(apart(first, first)) == 0
    torch.testing.assert_close(apart(first, second), apart(second, first))
    p, q = (F.linear(x, matrix).log_softmax(-1) for x in (first, second))
    theirs = F.kl_div(p, q, log_target=True, reduction="sum")
    theirs = 0.5 * (theirs + F.kl_div(q, p, log_target=True, reduction="sum"))
    torch.testing.assert_close(apart(first, second).float(), theirs)
    some = torch.tensor([3, -1, 0, -1, 1, 2])
    torch.testing.assert_close(
        apart(first, second, some), apart(first[some >= 0], second[some >= 0], every[:4])
    )


def test_splitting_a_batch_in_any_way_gives_the_same_gradient(configure):
    """The loss is divided by the tokens of the whole step, not by those of each part."""
    config = configure()
    task = find_task(config.task).learn(config, None, print, quiet=True)
    files = [Path(file) for file in config.data.train]
    store, _ = task.build(files, cache_folder(), config, True)
    values = {**config.model.to_dict(), "vocabulary_size": task.target.size,
              "source_vocabulary_size": task.source.size}  # fmt: skip
    model = Transformer(ModelConfig.from_dict(values)).double().eval()
    examples = np.arange(20)
    tokens = int(store.lengths[1][examples].sum())

    def gradients(parts):
        model.zero_grad()
        for part in parts:
            batch = task.batch(store, part, torch.device("cpu"))
            (task.loss(model, batch, 0.1)[0] / tokens).backward()
        return [p.grad.clone() for p in model.parameters()]

    whole = gradients([examples])

    @given(cuts=st.lists(st.integers(1, 19), unique=True, max_size=6))
    def check(cuts):
        for a, b in zip(gradients(np.split(examples, sorted(cuts))), whole, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)

    check()
