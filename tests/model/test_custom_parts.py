"""Registered positions, attention variants and mixers in the model."""

import pytest
import torch
from torch.nn import functional as F

import regard
from regard import (
    AttentionCapture,
    InputError,
    ModelConfig,
    MultiHeadAttention,
    Packed,
    Positions,
    Transformer,
)
from regard.config.registry import ATTENTION, MIXERS, POSITIONS
from regard.decoding.engines.cpu import cpu_model
from regard.model.positions import Rotation, sinusoids
from regard.view.walk import walk_config

ROWS = [[5, 3, 8, 4, 9], [7, 6], [11]]
SIZES = {"d_model": 16, "heads": 2, "d_ff": 32, "vocabulary_size": 20, "dropout": 0.0}


class Alibi(Positions):
    def __init__(self, config):
        super().__init__()
        self.register_buffer("rates", torch.tensor([0.5, 0.125]), persistent=False)

    def bias(self, distance):
        return -self.rates[:, None, None] * distance.abs()[..., None, :, :]


class Buckets(Positions):
    """A learned bias for each clipped distance, as in T5."""

    def __init__(self, config):
        super().__init__()
        self.table = torch.nn.Embedding(9, config.heads)

    def bias(self, distance):
        return self.table(distance.clamp(-4, 4) + 4).movedim(-1, -3)


class Sinusoids(Positions):
    def __init__(self, config):
        super().__init__()
        self.size = config.d_model

    def rows(self, positions):
        return sinusoids(positions, self.size)


class Rotary(Positions):
    def __init__(self, config):
        super().__init__()
        self.size = config.head_size

    def rotate(self, x, positions):
        return Rotation(positions, self.size, 10_000.0)(x)


class Cosine(MultiHeadAttention):
    def __init__(self, config):
        super().__init__(config)
        self.scale = torch.nn.Parameter(torch.full((config.heads, 1, 1), 3.0))

    def weights(self, query, key, mask):
        cosine = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-2, -1)
        return (self.scale * cosine + mask).softmax(-1)


class Same(MultiHeadAttention):
    """The definition of attention, computed with explicit weights."""

    def weights(self, query, key, mask):
        return super().weights(query, key, mask)


class Shift(torch.nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.output = torch.nn.Linear(config.d_model, config.d_model)

    def forward(self, x, plan):
        return self.output(plan.shifted(x, -1))


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    for registry in (POSITIONS, ATTENTION, MIXERS):
        monkeypatch.setattr(registry, "_factories", {})
    for name, part in {
        "alibi": Alibi,
        "buckets": Buckets,
        "sinus": Sinusoids,
        "turn": Rotary,
    }.items():
        regard.register_positions(name, part)
    regard.register_attention("cosine", Cosine)
    regard.register_attention("same", Same)
    regard.register_mixer("shift", Shift)


def make(style="encoder-decoder", **options):
    torch.manual_seed(1)
    stacks = {"encoder": "encoder_layers", "decoder": "decoder_layers"}
    layers = {stacks[part]: 2 for part in style.split("-")}
    return Transformer(ModelConfig(style=style, **{**SIZES, **layers, **options})).eval()


GROUPED = {"heads": 4, "key_value_heads": 2}
CUSTOM = [
    {"positions": "alibi"},
    {"positions": "buckets"},
    {"positions": "buckets", "window": 2},
    {"positions": "sinus"},
    {"positions": "turn"},
    {"attention": "cosine"},
    {"attention": "cosine", "positions": "alibi", "norm_first": True},
    {"attention": "same", "positions": "buckets", **GROUPED},
    {"mixer": "shift"},
]


@pytest.mark.parametrize("options", CUSTOM, ids=str)
@pytest.mark.parametrize("width", [1, 3])
def test_search_equals_full_passes(options, width):
    """The steps of decoding use the same positions, biases and weights as the full pass."""
    model = make(**options)
    outputs, scores = regard.generate(
        model, ROWS, beam=width, max_length=7, length_penalty=0.0, eos=None, scores=True
    )
    for source, tokens, score in zip(ROWS, outputs, scores, strict=True):
        logits = model(Packed.of([source]), Packed.of([[1, *tokens[:-1]]]))
        logprobs = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens]
        assert float(logprobs.detach().sum()) == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("options", CUSTOM[:-1], ids=str)
def test_a_decoder_continues_a_prompt_with_a_custom_part(options):
    model = make("decoder", **options)
    options = {"max_length": 5, "eos": None, "length_penalty": 0.0, "scores": True, "beam": 2}
    outputs, scores = regard.generate(model, prompt=ROWS, **options)
    for prompt, tokens, score in zip(ROWS, outputs, scores, strict=True):
        logits = model(target=Packed.of([[*prompt, *tokens[:-1]]]))[-len(tokens) :]
        logprobs = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens]
        assert float(logprobs.detach().sum()) == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("options", CUSTOM, ids=str)
def test_a_sequence_does_not_depend_on_its_batch(options):
    model, row = make(**options), Packed.of(ROWS)
    together = row.split(model(row, row))
    for alone, part in zip(ROWS, together, strict=True):
        single = Packed.of([alone])
        torch.testing.assert_close(model(single, single), part, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize(
    ("custom", "built_in"),
    [
        ({"positions": "sinus"}, {"positions": "sinusoidal"}),
        ({"positions": "turn"}, {"positions": "rotary"}),
        ({"attention": "same"}, {}),
        ({"attention": "same", **GROUPED}, GROUPED),
    ],
)
def test_a_copy_of_a_built_in_part_gives_the_same_output_and_gradients(custom, built_in, window):
    row, results = Packed.of(ROWS), []
    for options in (custom, built_in):
        model = make(**options, window=window)
        model(row, row).square().sum().backward()
        results.append([model(row, row), *(p.grad for p in model.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_learned_bias_gets_gradients_and_captured_weights_show_it():
    model, row, capture = make(positions="buckets"), Packed.of(ROWS), AttentionCapture()
    model(row, row, capture).sum().backward()
    assert float(model.encoder.positions.table.weight.grad.abs().sum()) > 0
    torch.testing.assert_close(capture.decoder[1][0].sum(-1), torch.ones(2, 5))
    with torch.no_grad():
        model.encoder.positions.table.weight.zero_()
    plain = AttentionCapture()
    model(row, row, plain)
    assert not torch.allclose(plain.encoder[0][0], capture.encoder[0][0])


@pytest.mark.parametrize("options", CUSTOM, ids=str)
def test_the_walk_refuses_custom_parts(options):
    with pytest.raises(InputError, match="cannot be shown: use a built-in part"):
        walk_config("ab", None, "encoder-decoder", options)


def test_compiled_engines_do_not_run_custom_parts():
    for options in CUSTOM:
        assert cpu_model(make(**options)) is None
        assert make(**options).config.custom_parts


@pytest.mark.parametrize(
    ("option", "known"),
    [
        ("positions", "sinusoidal, learned, rotary, none, alibi"),
        ("attention", "dot-product, cosine, same"),
        ("mixer", "attention, lstm, gru, convolution, dilated, none, shift"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(option, known):
    with pytest.raises(InputError, match=f"unknown model.{option} 'zzz'; known: {known}"):
        make(**{option: "zzz"})


@pytest.mark.parametrize(
    ("register", "name", "factory", "message"),
    [
        (regard.register_positions, "rotary", Alibi, "'rotary' is a built-in name"),
        (regard.register_attention, "a b", Cosine, "the name must begin with a letter"),
        (regard.register_mixer, "mine", 3, "3 cannot be called"),
        (regard.register_schedule, 3, make, "the name must begin with a letter"),
    ],
)
def test_a_part_that_cannot_be_registered_is_refused(register, name, factory, message):
    with pytest.raises(InputError, match=message):
        register(name, factory)


@pytest.mark.parametrize(
    ("register", "option", "message"),
    [
        (regard.register_positions, "positions", "must return a regard.Positions, not Linear"),
        (regard.register_attention, "attention", "must return a regard.MultiHeadAttention"),
    ],
)
def test_a_factory_must_return_the_right_kind_of_module(register, option, message):
    register("wrong", lambda config: torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match=message):
        make(**{option: "wrong"})
