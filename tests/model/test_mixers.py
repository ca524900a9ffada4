"""Recurrence and convolution in place of self-attention equal their definitions for each sequence,
and sequences do not affect each other."""

import pytest
import torch
from torch import nn

from regard import AttentionCapture, InputError, ModelConfig, Packed, Transformer
from regard.config.parameters import closed_form, count, operations, visible
from regard.model.mixers import Convolution, Recurrence, RowPlan, make_mixer

MIXERS = ("lstm", "gru", "convolution", "dilated", "none")
LENGTHS = [3, 9, 1, 5, 9]
every_mixer = pytest.mark.parametrize("mixer", MIXERS)
every_style = pytest.mark.parametrize("style", ["encoder", "encoder-decoder"])


def config(**options):
    return ModelConfig(**{"vocabulary_size": 20, "d_model": 8, "heads": 2, "d_ff": 12, **options})


def vectors(lengths, d_model=8):
    return torch.randn(sum(lengths), d_model, dtype=torch.float64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixer", ["lstm", "gru"])
@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4, 4]])
def test_recurrence_over_packed_batch_equals_each_sequence_alone(mixer, causal, lengths):
    module = Recurrence(config(mixer=mixer), causal).double()
    x = vectors(lengths)
    mixed = module(x, RowPlan(lengths, "cpu"))
    alone = [module.recurrence(sequence[:, None])[0][:, 0] for sequence in x.split(lengths)]
    torch.testing.assert_close(mixed, torch.cat(alone))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("mixer", "layer", "kernel"), [("convolution", 1, 3), ("convolution", 0, 4), ("dilated", 0, 3), ("dilated", 1, 3), ("dilated", 2, 2)])  # fmt: skip
def test_convolution_over_packed_batch_equals_pytorch_per_sequence(mixer, layer, kernel, causal):
    module = Convolution(config(mixer=mixer, kernel=kernel), layer, causal).double()
    dilation = kernel**layer if mixer == "dilated" else 1
    weight = module.neighbours.weight.view(8, kernel, 8).transpose(1, 2)  # [out, in, k]
    x = vectors(LENGTHS)
    alone = []
    for sequence in x.split(LENGTHS):
        left = dilation * (kernel - 1 if causal else kernel // 2)
        right = dilation * (kernel - 1) - left
        padded = nn.functional.pad(sequence.t(), (left, right))
        alone.append(nn.functional.conv1d(padded, weight, module.neighbours.bias, dilation=dilation).t())  # fmt: skip
    torch.testing.assert_close(module(x, RowPlan(LENGTHS, "cpu")), torch.cat(alone))


@pytest.mark.parametrize("mixer", ["lstm", "gru", "convolution", "dilated"])
def test_gradients_equal_finite_differences(mixer):
    module = make_mixer(config(mixer=mixer, d_model=4), 1).double()
    x = vectors([3, 2], 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: module(x, RowPlan([3, 2], "cpu")), x)


@every_style
@every_mixer
def test_changing_one_sequence_changes_no_bit_of_another(style, mixer, model, row, run):
    net = model(dtype=torch.float32, style=style, mixer=mixer)
    source, target = row(LENGTHS), row([2, 3, 4, 5, 6])
    output_row = source if style == "encoder" else target
    before = output_row.split(run(net, source, target))
    for changed in range(len(LENGTHS)):
        tokens = source.tokens.clone()
        start, end = source.offsets[changed : changed + 2].tolist()
        tokens[start:end] = (tokens[start:end] + 7) % 20
        after = output_row.split(run(net, Packed(tokens, source.offsets), target))
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            assert torch.equal(old, new) == (i != changed)


@pytest.mark.parametrize("mixer", ["convolution", "dilated", "none"])
def test_nan_does_not_spread_to_other_sequences(mixer):
    module = make_mixer(config(mixer=mixer), 0) or (lambda x, _: x)
    x = torch.randn(sum(LENGTHS), 8)
    x[3:12] = torch.nan
    mixed = torch.as_tensor(module(x, RowPlan(LENGTHS, "cpu"))).split(LENGTHS)
    assert [bool(sequence.isfinite().all()) for sequence in mixed] == [
        True,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(("mixer", "reach"), [("convolution", [1, 2, 3]), ("dilated", [1, 4, 13]), ("none", [0, 0, 0])])  # fmt: skip
def test_reach_of_layers_is_sum_of_kernels(mixer, reach):
    for layers, far in enumerate(reach, 1):
        settings = config(style="encoder", encoder_layers=layers, mixer=mixer, positions="none", dropout=0.0)  # fmt: skip
        net = Transformer(settings).double().eval()
        row = Packed.of([list(range(20)) * 2])
        changed = row.tokens.clone()
        changed[20] = 7
        before, after = net(row), net(Packed(changed, row.offsets))
        moved = (before != after).any(-1).nonzero().flatten().tolist()
        assert (moved[0], moved[-1]) == (20 - far, 20 + far)


@every_style
@every_mixer
@pytest.mark.parametrize("bias", [True, False])
def test_closed_form_equals_number_of_parameters(style, mixer, bias):
    settings = ModelConfig.preset(
        "tiny", vocabulary_size=100, style=style, mixer=mixer, bias=bias, norm_first=True
    )
    counts = count((name, p.numel()) for name, p in Transformer(settings).named_parameters())
    assert {p: v.parameters for p, v in closed_form(settings).items()} == counts
    assert (counts["mixer"] > 0) == (mixer != "none")
    assert (counts["self-attention"] > 0) == (style == "encoder-decoder")


def test_layer_can_reach_further_than_any_sequence():
    module = Convolution(config(mixer="dilated"), 60)  # a gap of 3^60, more than an int64 holds
    x = torch.randn(sum(LENGTHS), 8)
    middle = nn.functional.linear(x, module.neighbours.weight[:, 8:16], module.neighbours.bias)
    torch.testing.assert_close(module(x, RowPlan(LENGTHS, "cpu")), middle)


def test_step_operations_count_mixer_weights_but_no_pairs():
    options = {"style": "encoder", "vocabulary_size": 100, "bias": False}
    none, convolution = (
        operations(ModelConfig.preset("tiny", mixer=mixer, **options), [50], [])
        for mixer in ("none", "convolution")
    )
    assert convolution - none == 6 * 4 * 50 * 3 * 128 * 128


@pytest.mark.parametrize("window", [None, 1, 3, 30])
def test_visible_pairs_equal_visibility_matrix(window):
    from regard.model.visibility import Visibility

    for length in (1, 2, 7, 31):
        full, causal = (Visibility(causal=c, window=window).matrix(length).sum() for c in (False, True))  # fmt: skip
        assert visible(length, window) == full
        assert (visible(length, window) + length) // 2 == causal


def test_encoder_without_attention_captures_nothing(model, row):
    net, capture = model(mixer="lstm"), AttentionCapture()
    net(row([4]), row([3]), capture=capture)
    assert (len(capture.encoder), len(capture.decoder), len(capture.cross)) == (0, 2, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "decoder", "mixer": "lstm"}, "model.mixer=lstm and model.style=decoder cannot be combined: a decoder generates with a cache of keys and values, which only attention has"),
        ({"style": "encoder", "mixer": "gru", "window": 3}, "model.mixer=gru and model.window=3 cannot be combined: only attention has a window"),
        ({"style": "encoder", "mixer": "dilated", "positions": "rotary"}, "model.mixer=dilated and model.positions=rotary cannot be combined: rotary positions rotate queries and keys, which only attention has"),
        ({"mixer": "lstm", "d_model": 9, "head_size": 4, "positions": "none"}, "model.mixer=lstm and model.d_model=9 cannot be combined: each direction has half of the width, so d_model must be even"),
        ({"kernel": 5}, "model.mixer=attention and model.kernel=5 cannot be combined: only a convolution has a kernel"),
        ({"mixer": "convolution", "kernel": 0}, "model.kernel must be at least 1, not 0"),
        ({"mixer": "lstn"}, "unknown model.mixer 'lstn'; did you mean 'lstm'? (known: attention, lstm, gru, convolution, "
         "dilated, none; regard.register_mixer adds others)"),
    ],
)  # fmt: skip
def test_invalid_combinations_are_refused_in_one_line(options, message):
    with pytest.raises(InputError) as error:
        config(**options)
    assert str(error.value) == message
