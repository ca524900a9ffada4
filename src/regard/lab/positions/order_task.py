"""A task of order for models with each kind of positions, tested on lengths beyond the training's.

Every position predicts the token SHIFT places before it: a fixed offset, which according to section
3.5 is easy with sinusoids. Without positions an encoder cannot see the order: shuffled tokens give
the same predictions, shuffled. Its best guess is the most frequent token among the others, so that
its best accuracy is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.lab.common import synthetic
from regard.lab.common.synthetic import Example, SyntheticTask, TrainedModel
from regard.lab.positions.sinusoids import encodings, fit_map, map_error
from regard.model.positions import LearnedPositions
from regard.model.transformer import Transformer
from regard.text.batching import Packed

SHIFT = 3
VOCABULARY = 16  # tokens of equal probability: chance is 1/16
TRAINED = 64  # the longest sequence in training; the shortest is half of it
TESTED = (64, 128, 256, 512)
TEST_TOKENS = 16_384  # in a test of one length, about
STEPS = 800
MODEL: dict[str, Any] = {
    "vocabulary_size": VOCABULARY, "encoder_layers": 2, "d_model": 32, "heads": 2, "d_ff": 64,
    "max_length": TESTED[-1],  # rows of the learned table: most of them are never trained
}  # fmt: skip
TRAINING = {"learning_rate": 5e-3, "batch_tokens": 1024}


@dataclass(frozen=True)
class PositionResult:
    """The accuracy of a model of one kind and seed, by length: at all positions, and at those that
    no training sequence had."""

    kind: str
    seed: int
    steps: int
    seconds: float
    right: dict[int, float]
    beyond: dict[int, float]


def position_kinds(bases: Sequence[float]) -> dict[str, dict[str, Any]]:
    """The kinds of positions that are compared, and the options of ModelConfig that select them."""
    kinds: dict[str, dict[str, Any]] = {
        f"sinusoidal {base:,g}": {"positions": "sinusoidal", "position_base": base}
        for base in bases
    }
    return kinds | {name: {"positions": name} for name in ("learned", "rotary", "none")}


def shifted(random: np.random.Generator, length: int, start: int = SHIFT) -> Example:
    """Random tokens with targets SHIFT places before, at all positions from `start` on."""
    tokens = random.integers(0, VOCABULARY, length)
    places = np.arange(start, length)
    return Example(tokens, places, tokens[places - SHIFT])


def beyond(random: np.random.Generator, length: int) -> Example:
    """The same, with targets only at positions that no training sequence had."""
    return shifted(random, length, TRAINED)


def train_kind(
    kind: str,
    options: dict[str, Any],
    seed: int,
    steps: int | None,
    seconds: float | None,
    device: str,
    after_step: Callable[[TrainedModel], None],
) -> tuple[PositionResult, Transformer]:
    """Train on lengths up to TRAINED, for a number of steps or a time, and test."""
    trained = synthetic.train_synthetic(
        synthetic.small_encoder({**MODEL, **options}), shifted, range(TRAINED // 2, TRAINED + 1),
        steps=steps, seconds=seconds, training=TRAINING, device=device, seed=seed,
        after_step=after_step,
    )  # fmt: skip
    everywhere, unseen = (
        {n: SyntheticTask(make).accuracy(trained.model, n, example_count(n), seed) for n in lengths}
        for make, lengths in ((shifted, TESTED), (beyond, TESTED[1:]))
    )
    result = PositionResult(kind, seed, trained.steps, trained.seconds, everywhere, unseen)
    return result, trained.model


def example_count(length: int) -> int:
    return max(1, TEST_TOKENS // length)


def best_blind(length: int, seed: int) -> float:
    """The best expected accuracy without order on the examples of this test: the share of the most
    frequent token among the others."""
    random = np.random.default_rng([seed, length])  # as in SyntheticTask.accuracy
    shares = []
    for _ in range(example_count(length)):
        tokens, places, _ = shifted(random, length)
        counts = np.bincount(tokens, minlength=VOCABULARY)
        others = counts - np.eye(VOCABULARY, dtype=np.int64)[tokens[places]]  # [t, V]
        shares.append(others.max(-1) / (length - 1))
    return float(np.mean(shares))


@torch.no_grad()
def change_by_order(model: Transformer, seed: int) -> float:
    """The largest change of a token's logits when the tokens of a sequence are shuffled, relative
    to the largest logit. Zero for a model that cannot see the order."""
    model.eval()
    random = np.random.default_rng(seed)
    device = model.output_matrix().device
    tokens = torch.from_numpy(random.integers(0, VOCABULARY, TRAINED)).to(device)
    order = torch.from_numpy(random.permutation(TRAINED)).to(device)
    before, after = (model(Packed.of([ids])) for ids in (tokens, tokens[order]))  # [n, V]
    return float((before[order] - after).abs().max() / before.abs().max())


def map_errors(model: Transformer, bases: Sequence[float], seed: int) -> dict[str, float]:
    """The relative error of a linear map from each row of a table to the row SHIFT places on. It is
    fitted on three quarters of the trained rows and tested on the others: of the learned table, of
    a random one, and of sinusoids of the same size."""
    assert model.encoder is not None
    assert isinstance(model.encoder.positions, LearnedPositions)
    learned = model.encoder.positions.weight.detach().double().cpu()[:TRAINED]
    torch.manual_seed(seed)
    size = learned.shape[1]
    tables = {f"sinusoidal {base:,g}": encodings(0, TRAINED, size, base) for base in bases}
    tables |= {"learned": learned, "chance": torch.randn(TRAINED, size, dtype=torch.float64)}
    errors = {}
    for name, rows in tables.items():
        matrix, left_out = fit_map(rows, SHIFT)
        errors[name] = map_error(matrix, rows[left_out], rows[left_out + SHIFT])
    return errors
