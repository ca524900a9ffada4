"""Examples are generated, learned with the real trainer, and predicted correctly afterwards."""

import numpy as np
import pytest
import torch

from regard.lab.common.synthetic import Example, SyntheticTask, small_encoder, train_synthetic
from regard.model.transformer import Transformer

CPU = torch.device("cpu")


def repeat(random: np.random.Generator, length: int) -> Example:
    """Predict the token itself, which needs no other position."""
    tokens = random.integers(8, size=length)
    return Example(tokens, np.arange(length), tokens)


def small(**changes):
    options = {"vocabulary_size": 9, "d_model": 16, "d_ff": 16, "heads": 2, "encoder_layers": 1}
    return small_encoder({**options, **changes})


def test_batch_concatenates_examples_and_has_positions_of_targets():
    def last(random: np.random.Generator, length: int) -> Example:
        return Example(np.full(length, length), np.array([length - 1]), np.array([length]))

    batch = SyntheticTask(last).make_batch(np.array([3, 5, 2]), CPU, np.random.default_rng(1))
    assert batch.source.tokens.tolist() == [3] * 3 + [5] * 5 + [2] * 2
    assert batch.source.lengths == (3, 5, 2)
    assert batch.where.tolist() == [2, 7, 9]
    assert batch.labels.tolist() == [3, 5, 2]


def test_training_learns_a_solvable_task():
    trained = train_synthetic(
        small(), repeat, [4, 6], steps=40, device="cpu",
        training={"batch_tokens": 256, "learning_rate": 1e-2, "warmup": 5},
    )  # fmt: skip
    assert trained.steps == 40
    assert trained.seconds > 0
    assert SyntheticTask(repeat).accuracy(trained.model, 5, 100, 7) > 0.95


def test_weights_depend_on_the_seed_only():
    def weights(seed: int) -> torch.Tensor:
        trained = train_synthetic(small(), repeat, [5], steps=3, device="cpu", seed=seed)
        return torch.cat([p.detach().flatten() for p in trained.model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_training_continues_from_a_model_and_a_callback_can_end_it():
    config = small()
    model = Transformer(config)
    before = model.output_matrix().detach().clone()
    steps_so_far = []
    trained = train_synthetic(
        config, repeat, [5], steps=9, device="cpu", start=model,
        after_step=lambda trained: steps_so_far.append(trained.steps) or trained.steps == 4,
    )  # fmt: skip
    assert trained.model is model
    assert trained.steps == 4
    assert steps_so_far == [1, 2, 3, 4]
    assert not torch.equal(before, model.output_matrix())


def test_time_limit_ends_training():
    assert train_synthetic(small(), repeat, [5], seconds=1e-9, device="cpu").steps == 1


@pytest.mark.parametrize("count", [1, 37])
def test_accuracy_counts_every_target(count):
    """The model predicts its input, which is correct for half of the targets."""
    model = Transformer(small(d_model=16, mixer="none")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("encoder") and "norm" not in name:
                parameter.zero_()

    def half(random: np.random.Generator, length: int) -> Example:
        tokens = random.integers(8, size=length)
        predicted = tokens.copy()
        predicted[1] = 8  # a token that is never in the input
        return Example(tokens, np.array([0, 1]), predicted[:2])

    accuracy = SyntheticTask(half).accuracy(model, 2, count, 3)
    right = np.random.default_rng([3, 2])
    batch = SyntheticTask(half).make_batch(np.full(count, 2), CPU, right)
    predicted = model(batch.source).argmax(-1)[batch.where]
    assert accuracy == float((predicted == batch.labels).double().mean())
    assert accuracy <= 0.5
