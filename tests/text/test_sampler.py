"""Rows are full, pure functions of their number, and contain each example once per epoch."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError
from regard.text.sampler import BatchSampler
from regard.text.store import build_pairs
from regard.text.tokenizer import Tokenizer


def lengths_of(number, seed=0):
    random = np.random.default_rng(seed)
    target = random.lognormal(2.7, 0.5, number).round().clip(1, 60).astype(np.int32)
    source = (target * random.normal(1, 0.2, number)).round().clip(1, 60).astype(np.int32)
    return [source, target]


def epoch(rows, number):
    """All rows of one epoch."""
    first = 0
    while rows.epoch_of(first) < number:
        first += 1
    batches = []
    while rows.epoch_of(first + len(batches)) == number:
        batches.append(rows[first + len(batches)])
    return batches


@given(
    number=st.integers(1, 300), budget=st.integers(80, 900), seed=st.integers(0, 5),
)  # fmt: skip
def test_epoch_has_each_example_once_and_rows_respect_the_budget(number, budget, seed):
    lengths = lengths_of(number, seed)
    try:
        rows = BatchSampler(lengths, budget, "corpus", seed)
    except InputError:  # an example longer than a row
        return
    batches = epoch(rows, 0)
    assert sorted(np.concatenate(batches)) == list(range(number))
    for row in batches:
        for side, limit in zip(lengths, rows.budgets, strict=True):
            assert 0 < side[row].sum() <= limit


def test_a_row_is_a_pure_function_of_corpus_seed_and_number():
    lengths = lengths_of(2000)
    first, second = (BatchSampler(lengths, 500, "corpus", 1) for _ in range(2))
    assert np.array_equal(first[300], second[300])  # random access
    for number in (7, 0, 299):
        assert np.array_equal(first[number], second[number])
    assert not np.array_equal(first[0], BatchSampler(lengths, 500, "corpus", 2)[0])
    assert not np.array_equal(first[0], BatchSampler(lengths, 500, "another corpus", 1)[0])


def test_each_epoch_has_a_different_order():
    rows = BatchSampler(lengths_of(500), 400, "corpus", 1)
    first, second = epoch(rows, 0), epoch(rows, 1)
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))


def test_rows_hold_sentences_of_all_lengths():
    """Rows of only long sentences would make the losses of steps hard to compare."""
    lengths = lengths_of(20_000)
    means = [
        lengths[1][row].mean() for row in epoch(BatchSampler(lengths, 4096, "corpus", 1), 0)[:-1]
    ]
    assert np.std(means) < 0.05 * np.mean(means)


def test_an_example_longer_than_a_row_is_refused():
    with pytest.raises(InputError, match="training.batch_tokens=50 is less than the longest"):
        BatchSampler([np.array([5, 60]), np.array([5, 60])], 50, "corpus", 1)
    with pytest.raises(InputError, match="there is no example to train on"):
        BatchSampler([np.array([], np.int32)] * 2, 50, "corpus", 1)


@pytest.mark.parametrize(("name", "lines"), [("multi30k", None), ("europarl", 40_000)])
@pytest.mark.parametrize("budget", [4096, 25_000])
def test_rows_of_real_data_are_at_least_98_percent_full(name, lines, budget, tmp_path):
    if "REGARD_DATA" not in os.environ:
        pytest.skip("REGARD_DATA is not set")
    import lzma
    from itertools import islice

    paths = []
    for side in ("en", "de"):
        source = Path(os.environ["REGARD_DATA"]) / name / f"train.{side}.xz"
        paths.append(tmp_path / f"train.{side}")
        with lzma.open(source, "rt", encoding="utf-8") as file:
            paths[-1].write_text("".join(islice(file, lines)), encoding="utf-8")
    tokenizer = Tokenizer("byte")  # lengths in bytes have a similar distribution
    store, _ = build_pairs(tuple(paths), (tokenizer, tokenizer), tmp_path, 2000, 4.0, True)
    rows = BatchSampler(store.lengths, budget, store.fingerprint, 1)
    batches = epoch(rows, 0)
    for side, limit in zip(store.lengths, rows.budgets, strict=True):
        full = [
            side[row].sum() / limit for row in batches[:-1]
        ]  # the last row has the remaining examples
        assert np.mean(full) >= 0.98
        assert all(a != b for a, b in pairwise(map(tuple, batches[:3])))
