"""Padded batches: `Packed.from_padded`, `to_padded`, `pad` and `unpad`."""

import pytest
import torch

from regard import InputError, Packed

TOKENS = torch.tensor([[5, 3, 8, 0], [2, 2, 0, 0], [7, 6, 5, 4]])
SEQUENCES = [[5, 3, 8], [2, 2], [7, 6, 5, 4]]


@pytest.mark.parametrize(
    "options",
    [
        {"lengths": [3, 2, 4]},
        {"lengths": torch.tensor([3, 2, 4])},
        {"mask": TOKENS != 0},
        {"mask": (TOKENS != 0).int()},
        {"padding": 0},
    ],
)
def test_a_padded_batch_becomes_the_packed_row_of_its_sequences(options):
    packed = Packed.from_padded(TOKENS, **options)
    assert [row.tolist() for row in packed.split(packed.tokens)] == SEQUENCES
    tokens, mask = packed.to_padded()
    assert torch.equal(tokens, TOKENS)
    assert torch.equal(mask, TOKENS != 0)


def test_padding_may_be_on_the_left_of_a_mask():
    tokens = torch.tensor([[0, 5, 3], [1, 2, 3]])
    packed = Packed.from_padded(tokens, mask=tokens != 0)
    assert [row.tolist() for row in packed.split(packed.tokens)] == [[5, 3], [1, 2, 3]]
    assert packed.to_padded(padding=9)[0].tolist() == [[5, 3, 9], [1, 2, 3]]


def test_a_padding_id_inside_a_row_is_a_token():
    packed = Packed.from_padded(torch.tensor([[4, 0, 4, 0]]), padding=0)
    assert packed.tokens.tolist() == [4, 0, 4]


def test_pad_and_unpad_are_inverse_and_differentiable():
    packed = Packed.of(SEQUENCES)
    values = torch.randn(9, 2, 3, requires_grad=True)
    padded = packed.pad(values, fill=-1.0)
    assert padded.shape == (3, 4, 2, 3)
    assert bool((padded[1, 2:] == -1).all())
    assert torch.equal(packed.unpad(padded), values)
    padded.sum().backward()
    assert torch.equal(values.grad, torch.ones_like(values))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TOKENS,), "needs exactly one of lengths, mask and padding"),
        ((TOKENS, [3, 2, 4], TOKENS != 0), "needs exactly one of lengths, mask and padding"),
        ((TOKENS, [3, 2]), "lengths must be 3 integers, one for each row"),
        ((TOKENS, [3, 2, 5]), "the length of row 2 is 5: it must be from 1 to 4"),
        ((TOKENS, [3, 0, 4]), "the length of row 1 is 0"),
        ((TOKENS, [3.0, 2.0, 4.0]), "lengths must be 3 integers"),
        ((TOKENS, None, TOKENS[:2] != 0), r"mask must have the shape \[3, 4\], not \[2, 4\]"),
        ((TOKENS, None, TOKENS != 3), "the mask of row 0 has padding before token 2"),
        ((TOKENS, None, TOKENS != 2), "row 1 has no token"),
        ((TOKENS.float(), [3, 2, 4]), "token ids must be integers, not torch.float32"),
        ((TOKENS[0], [3]), r"must be a tensor \[B, T\], not \[4\]"),
    ],
)
def test_from_padded_refuses_invalid_lengths_masks_and_tokens(arguments, message):
    tokens = arguments[0]
    if message.startswith("row 1"):  # the second row consists of padding
        arguments = (tokens, None, torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]))
    with pytest.raises(InputError, match=message):
        Packed.from_padded(*arguments)


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        (TOKENS, "not a 2-D tensor: use Packed.from_padded"),
        (TOKENS.numpy(), "not a 2-D tensor: use Packed.from_padded"),
        (TOKENS[0], r"not a 1-D tensor: put one sequence into a list"),
        ([[1, 2], [1.5]], "sequence 1 must be one row of integers, not torch.float32"),
        ([TOKENS], r"sequence 0 must be one row of integers, not torch.int64 \[3, 4\]"),
        (["text"], "sequence 0 must be a list of token ids, not 'text'"),
        ([[1], []], "sequence 1 is empty"),
    ],
)
def test_packed_of_refuses_other_values_than_lists_of_sequences(sequences, message):
    with pytest.raises(InputError, match=message):
        Packed.of(sequences)


def test_pad_and_unpad_refuse_values_of_wrong_shape():
    packed = Packed.of(SEQUENCES)
    with pytest.raises(InputError, match="one row for each of the 9 tokens"):
        packed.pad(torch.zeros(8, 2))
    with pytest.raises(InputError, match=r"must begin with the shape \[3, 4\]"):
        packed.unpad(torch.zeros(3, 5, 2))
