"""`Packed`: construction, conversion and checks."""

import pytest
import torch

from regard import InputError, Packed


def test_packed_splits_into_its_sequences():
    sequences = [[5, 3, 8], [2], [7, 7]]
    packed = Packed.of(sequences)
    assert packed.tokens.tolist() == [5, 3, 8, 2, 7, 7]
    assert packed.offsets.tolist() == [0, 3, 4, 6]
    assert packed.lengths == (3, 1, 2)
    assert len(packed) == 3
    assert [part.tolist() for part in packed.split(packed.tokens)] == sequences
    assert packed.positions().tolist() == [0, 1, 2, 0, 0, 1]
    assert (packed.smallest, packed.largest) == (2, 8)


def test_moving_a_batch_keeps_its_lengths_and_bounds():
    packed = Packed.of([[5, 3], [2]])
    moved = packed.to("cpu")
    assert moved.lengths == packed.lengths
    assert moved.largest == 5
    assert torch.equal(moved.tokens, packed.tokens)


@pytest.mark.parametrize(
    ("tokens", "offsets", "message"),
    [
        ([1, 2, 3], [0, 2], "offsets run from 0 to 2 but there are 3 tokens"),
        ([1, 2, 3], [1, 3], "offsets run from 1 to 3"),
        ([1, 2, 3], [0, 4], "they must run from 0 to 3"),
        ([1, 2, 3], [0, 2, 2, 3], "sequence 1 is empty"),
        ([1, 2, 3], [0, 2, 1, 3], "offsets must rise, but offset 2 is 1 after 2"),
        ([1, 2, 3], [0], "needs at least one sequence"),
        ([1.0, 2.0], [0, 2], "tokens must be one row of integers, not torch.float32"),
        ([[1, 2]], [0, 1], "tokens must be one row of integers"),
        ([1, 2], [[0, 2]], "offsets must be one row of integers"),
    ],
)
def test_offsets_that_do_not_match_the_tokens_are_refused(tokens, offsets, message):
    with pytest.raises(InputError, match=message):
        Packed(torch.tensor(tokens), torch.tensor(offsets))


def test_an_empty_sequence_and_an_empty_batch_are_refused():
    with pytest.raises(InputError, match="sequence 1 is empty"):
        Packed.of([[1], [], [2]])
    with pytest.raises(InputError, match="no sequence to pack"):
        Packed.of([])
    with pytest.raises(InputError, match="sequence 0 is empty"):
        Packed.of([[]])
