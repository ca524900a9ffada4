"""`Transformer.forward` with padded tensors."""

import pytest
import torch

from regard import InputError, ModelConfig, Packed, Transformer

SOURCE = torch.tensor([[5, 3, 8, 0], [2, 2, 0, 0], [7, 6, 5, 4]])
TARGET = torch.tensor([[1, 3, 0], [1, 2, 9], [1, 0, 0]])
SOURCE_LENGTHS, TARGET_LENGTHS = [3, 2, 4], [2, 3, 1]


def make(**options):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "heads": 2, "d_ff": 32, "vocabulary_size": 12, "dropout": 0.0}
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    style = options.get("style", "encoder-decoder")
    layers = {name: n for name, n in layers.items() if name.split("_")[0] in style.split("-")}
    return Transformer(ModelConfig(**sizes, **layers, **options))


def test_padded_input_gives_padded_output_with_zeros():
    model = make()
    source = Packed.from_padded(SOURCE, SOURCE_LENGTHS)
    target = Packed.from_padded(TARGET, TARGET_LENGTHS)
    packed = model(source, target)
    padded = model(SOURCE, TARGET, source_lengths=SOURCE_LENGTHS, target_lengths=TARGET_LENGTHS)
    assert torch.equal(padded, target.pad(packed))
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]]) > 0
    masked = model(SOURCE, TARGET, source_mask=SOURCE != 0, target_mask=mask)
    assert torch.equal(masked, padded)
    assert bool((padded[~mask] == 0).all())
    mixed = model(SOURCE, target, source_lengths=SOURCE_LENGTHS)  # each side is of either kind
    assert torch.equal(mixed, packed)


def test_left_padding_gives_logits_at_token_positions():
    model = make(style="decoder")
    tokens = torch.tensor([[0, 0, 5, 3], [1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    output = model(target=tokens, target_mask=mask)
    packed = model(target=Packed.of([[5, 3], [1, 2, 3, 4]]))
    assert torch.equal(output[0, 2:], packed[:2])
    assert torch.equal(output[1], packed[2:])
    assert bool((output[0, :2] == 0).all())


def test_a_classifier_gives_one_row_for_each_sequence():
    model = make(style="encoder", head="classifier", classes=3)
    assert model(SOURCE, source_lengths=SOURCE_LENGTHS).shape == (3, 3)


def test_gradients_of_the_padded_path_are_those_of_the_packed_path():
    labels = torch.tensor([[3, 2, -100], [2, 9, 2], [2, -100, -100]])
    gradients = []
    for padded in (True, False):
        model = make()
        if padded:
            logits = model(
                SOURCE, TARGET, source_lengths=SOURCE_LENGTHS, target_lengths=TARGET_LENGTHS
            )
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=-100
            )
        else:
            target = Packed.from_padded(TARGET, TARGET_LENGTHS)
            logits = model(Packed.from_padded(SOURCE, SOURCE_LENGTHS), target)
            loss = torch.nn.functional.cross_entropy(logits, target.unpad(labels))
        loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((SOURCE, TARGET), {}, "the source is a padded tensor: pass source_lengths or source_mask"),
        (
            (SOURCE, TARGET),
            {"source_lengths": SOURCE_LENGTHS},
            "the target is a padded tensor: pass target_lengths or target_mask",
        ),
        ((SOURCE, None), {"source_lengths": SOURCE_LENGTHS}, "the target is missing"),
        ((SOURCE[0], TARGET), {}, r"the source must be Packed or a padded tensor \[B, T\]"),
        (([[1, 2]], TARGET), {}, "not list: use Packed.of"),
        (
            (SOURCE.float(), TARGET),
            {"source_lengths": SOURCE_LENGTHS},
            "source: token ids must be integers, not torch.float32",
        ),
        (
            (SOURCE + 8, TARGET),
            {"source_lengths": SOURCE_LENGTHS, "target_lengths": TARGET_LENGTHS},
            "source token id 13 at position 0 of sequence 0 is outside the vocabulary of 12",
        ),
        (
            (Packed.of([[1]]), Packed.of([[1]])),
            {"target_lengths": [1]},
            "target_lengths belongs to a padded target, but the target is packed",
        ),
        ((None, Packed.of([[1]])), {}, "the source is missing"),
        (
            (SOURCE[:2], TARGET),
            {"source_lengths": [3, 2], "target_lengths": TARGET_LENGTHS},
            "the source has 2 sequences and the target 3",
        ),
    ],
)
def test_invalid_call_raises_error_with_advice(arguments, options, message):
    with pytest.raises(InputError, match=message) as error:
        make()(*arguments, **options)
    assert "\n" not in str(error.value)


def test_a_batch_on_another_device_is_refused():
    meta = make()
    row = Packed.of([[1, 2]])
    row.tokens = row.tokens.to("meta")
    with pytest.raises(InputError, match="the source is on meta but the model on cpu"):
        meta(row, Packed.of([[1]]))
