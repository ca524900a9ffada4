"""Which positions let a model learn order, and which go on where training ended.

The task: every position tells the token that stands SHIFT places before it. That is a fixed offset,
of which section 3.5 says that sinusoids make it easy. Without positions an encoder is blind to
order: shuffled tokens give the same answers, shuffled. What is left to it is to guess, and the best
guess is the token that is most frequent among the others, so the best that it can reach is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from regard.lab.common.synthetic import Drill, Exercise, Practised, exercise_model, practise
from regard.lab.positions.sinusoids import fit_map, map_error, rows_of
from regard.model.transformer import Transformer
from regard.text.batching import Packed

SHIFT = 3
VOCABULARY = 16  # tokens, each as likely as the others: 1/16 is chance
TRAINED = 64  # the longest sequence in training; the shortest is half of it
TESTED = (64, 128, 256, 512)
TOLD = 16_384  # tokens that are told in a test of one length, about
STEPS = 800
MODEL: dict[str, Any] = {
    "vocabulary_size": VOCABULARY, "encoder_layers": 2, "d_model": 32, "heads": 2, "d_ff": 64,
    "max_length": TESTED[-1],  # rows of the learned table: most of them are never trained
}  # fmt: skip
TRAINING = {"learning_rate": 5e-3, "batch_tokens": 1024}


class Kind(NamedTuple):
    """Positions that are compared."""

    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A model of one kind and seed: the share that it tells right, by length; and of that, at
    positions that no training sequence had."""

    kind: str
    seed: int
    steps: int
    seconds: float
    right: dict[int, float]
    beyond: dict[int, float]


@dataclass(frozen=True)
class TableMap:
    """How well a linear map, fitted on some rows of a table, gives the row SHIFT places on for
    rows that were left out: its error as a part of them."""

    table: str
    error: float


def kinds(bases: Sequence[float]) -> list[Kind]:
    sinusoids = [
        Kind(f"sinusoidal {base:,g}", {"positions": "sinusoidal", "position_base": base})
        for base in bases
    ]
    return [
        *sinusoids,
        *(Kind(name, {"positions": name}) for name in ("learned", "rotary", "none")),
    ]


def shifted(random: np.random.Generator, length: int, start: int = SHIFT) -> Exercise:
    """Tokens, of which all from position `start` on tell what stood SHIFT places before them."""
    tokens = random.integers(0, VOCABULARY, length)
    where = np.arange(start, length)
    return Exercise(tokens, where, tokens[where - SHIFT])


def beyond(random: np.random.Generator, length: int) -> Exercise:
    """The same, told only where no sequence in training had a position."""
    return shifted(random, length, TRAINED)


def train_kind(
    kind: Kind,
    seed: int,
    steps: int | None,
    seconds: float | None,
    device: str,
    watch: Callable[[Practised], None],
) -> tuple[Trained, Transformer]:
    """Train on lengths up to TRAINED, until the steps are done or the time is over, and test."""
    done = practise(
        exercise_model({**MODEL, **kind.options}),
        shifted,
        range(TRAINED // 2, TRAINED + 1),
        steps=10**9 if steps is None else steps,
        seconds=float("inf") if seconds is None else seconds,
        training=TRAINING, device=device, seed=seed, watch=watch,
    )  # fmt: skip
    found: list[dict[int, float]] = []
    for make, lengths in ((shifted, TESTED), (beyond, TESTED[1:])):
        drill = Drill(make)
        found.append({n: drill.accuracy(done.model, n, exercises(n), seed) for n in lengths})
    return Trained(kind.name, seed, done.steps, done.seconds, *found), done.model


def exercises(length: int) -> int:
    """How many of this length are told in a test."""
    return max(1, TOLD // length)


def best_blind(length: int, seed: int) -> float:
    """The best that can be expected of who sees its own token and the bag of the others, on the
    exercises of this test: the share of the most frequent one among the others."""
    random = np.random.default_rng([seed, length])  # as Drill.accuracy has it
    shares = []
    for _ in range(exercises(length)):
        tokens, where, _ = shifted(random, length)
        counts = np.bincount(tokens, minlength=VOCABULARY)
        others = counts - np.eye(VOCABULARY, dtype=np.int64)[tokens[where]]  # [t, V]
        shares.append(others.max(-1) / (length - 1))
    return float(np.mean(shares))


@torch.no_grad()
def change_by_order(model: Transformer, seed: int) -> float:
    """What shuffling the tokens of a sequence changes in the logits of each token: the largest
    change, as a part of the largest logit. Zero for a model that is blind to order."""
    model.eval()
    random = np.random.default_rng(seed)
    device = model.output_matrix().device
    tokens = torch.from_numpy(random.integers(0, VOCABULARY, TRAINED)).to(device)
    order = torch.from_numpy(random.permutation(TRAINED)).to(device)
    before, after = (model(Packed.of([ids])) for ids in (tokens, tokens[order]))  # [n, V]
    return float((before[order] - after).abs().max() / before.abs().max())


def table_maps(model: Transformer, bases: Sequence[float], seed: int) -> list[TableMap]:
    """The linear map for an offset, fitted on three quarters of the trained rows: for the learned
    table, for one of chance, and for sinusoids of the same size."""
    assert model.encoder is not None
    assert model.encoder.positions is not None
    learned = model.encoder.positions.weight.detach().double().cpu()[:TRAINED]
    torch.manual_seed(seed)
    size = learned.shape[1]
    tables = {f"sinusoidal {base:,g}": rows_of(0, TRAINED, size, base) for base in bases}
    tables |= {"learned": learned, "chance": torch.randn(TRAINED, size, dtype=torch.float64)}
    found = []
    for name, rows in tables.items():
        matrix, left_out = fit_map(rows, SHIFT)
        error = map_error(matrix, rows[left_out], rows[left_out + SHIFT])
        found.append(TableMap(name, error))
    return found
