"""The losses of the tasks: sums over predictions, and R-Drop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError, ModelConfig, Packed, Transformer
from regard.files import cache_folder
from regard.tasks.registry import find_task
from regard.training.losses import Batch, Pairs, classification_loss, similarity_loss, token_loss


def test_gradient_does_not_depend_on_how_a_batch_is_split(configure):
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


def classifier(**options):
    torch.manual_seed(1)
    return Transformer(
        ModelConfig.preset(
            "tiny", vocabulary_size=20, style="encoder", head="classifier", classes=3, **options
        )
    )


def texts():
    return Batch(Packed.of([[5, 6, 7], [8, 9]]), None, torch.tensor([2, 0]))


@pytest.mark.parametrize("loss", [token_loss, classification_loss])
def test_r_drop_without_dropout_is_the_plain_loss(loss):
    if loss is token_loss:
        torch.manual_seed(1)
        model = Transformer(ModelConfig.preset("tiny", vocabulary_size=20, dropout=0.0))
        rows = [Packed.of([[5, 6, 7], [8, 9]]), Packed.of([[1, 4], [1, 2]])]
        batch = Batch(*rows, torch.tensor([4, 2, 2, 3]))
    else:
        model, batch = classifier(dropout=0.0), texts()
    plain, twice = loss(model, batch, 0.1), loss(model, batch, 0.1, 5.0)
    torch.testing.assert_close(twice[0].double(), plain[0].double())
    torch.testing.assert_close(twice[1], plain[1])


def test_r_drop_adds_the_divergence_of_two_passes_with_different_dropout():
    model, batch = classifier(dropout=0.5), texts()
    losses = []
    for weight in (1e-9, 1.0, 3.0):
        torch.manual_seed(4)
        losses.append(classification_loss(model, batch, 0.0, weight)[0])
    torch.testing.assert_close(losses[2] - losses[0], 3 * (losses[1] - losses[0]))
    assert losses[1] > losses[0]


def test_the_weights_of_classes_change_the_loss_but_not_the_likelihood():
    model, batch = classifier(dropout=0.0), texts()
    plain = classification_loss(model, batch)
    weighted = classification_loss(model, batch, weights=torch.full((3,), 2.0))
    torch.testing.assert_close(weighted[0], 2 * plain[0])
    torch.testing.assert_close(weighted[1], plain[1])


def test_the_similarity_loss_refuses_r_drop():
    batch = Pairs(Packed.of([[5], [6]]), None, None, torch.ones(1, 1, dtype=torch.bool))
    with pytest.raises(InputError, match=r"training\.r_drop=0"):
        similarity_loss(classifier(), batch, 0.0, 1.0)
