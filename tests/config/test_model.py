"""A model configuration is checked completely before any work starts."""

import pytest
import torch

from regard import InputError, ModelConfig, Transformer
from regard.config.model import PRESETS, STYLES
from regard.config.parameters import closed_form, count


def counted_parameters(config):
    with torch.device("meta"):
        model = Transformer(config)
    return count((name, p.numel()) for name, p in model.named_parameters())


def test_presets_have_the_published_sizes():
    sizes = {
        name: (c.encoder_layers, c.decoder_layers, c.d_model, c.heads, c.d_ff, c.head_size)
        for name in PRESETS
        for c in [ModelConfig.preset(name, vocabulary_size=37_000)]
    }
    assert sizes == {
        "tiny": (4, 4, 128, 4, 256, 32),
        "small": (6, 6, 512, 4, 1024, 128),
        "base": (6, 6, 512, 8, 2048, 64),
        "big": (6, 6, 1024, 16, 4096, 64),
    }
    base, big = (ModelConfig.preset(name, vocabulary_size=37_000) for name in ("base", "big"))
    assert sum(counted_parameters(base).values()) == 63_082_496
    assert sum(counted_parameters(big).values()) == 214_245_376


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_first": True, "norm": "rms", "activation": "swiglu", "bias": False},
        {"positions": "learned", "embedding_norm": True, "head_size": 20, "max_length": 77},
        {"tie_embeddings": "none", "activation": "gelu", "norm_first": True},
        {"tie_embeddings": "target-output"},
    ],
    ids=str,
)
def test_closed_form_matches_the_parameter_tensors(style, preset, options):
    config = ModelConfig.preset(preset, style=style, vocabulary_size=1000, **options)
    formula = {part: value.parameters for part, value in closed_form(config).items()}
    assert formula == counted_parameters(config)


@pytest.mark.parametrize(
    "options",
    [
        {"style": "encoder", "head": "classifier", "classes": 7},
        {"style": "encoder", "head": "pooling"},
        {"style": "decoder", "head": "pooling", "pooling": "last"},
        {"tie_embeddings": "source-target"},
        {"tie_embeddings": "none", "source_vocabulary_size": 300},
    ],
    ids=str,
)
def test_closed_form_matches_for_all_heads_and_ties(options):
    config = ModelConfig.preset("tiny", vocabulary_size=1000, **options)
    assert {p: v.parameters for p, v in closed_form(config).items()} == counted_parameters(config)


@pytest.mark.parametrize("style", STYLES)
def test_configuration_is_unchanged_by_to_dict_and_from_dict(style):
    config = ModelConfig.preset("small", style=style, vocabulary_size=99)
    values = config.to_dict()
    assert None not in (values["head_size"], values["head"], values["source_vocabulary_size"])
    assert ModelConfig.from_dict(values) == config


def test_true_and_false_mean_tied_and_untied():
    assert ModelConfig(vocabulary_size=9, tie_embeddings=True).tie_embeddings == "all"
    assert ModelConfig(vocabulary_size=9, tie_embeddings=False).tie_embeddings == "none"


BAD = [
    ({"heads": 7}, "model.d_model=512 is not divisible by model.heads=7"),
    ({"d_model": 513, "heads": 3}, "model.positions=sinusoidal and model.d_model=513 cannot be"),
    ({"positions": "rotary", "head_size": 5}, "model.positions=rotary and model.head_size=5 cannot be"),
    ({"source_vocabulary_size": 5}, "model.tie_embeddings=all and model.source_vocabulary_size=5"),
    ({"style": "encoder", "tie_embeddings": "source-target"}, "model.tie_embeddings=source-target and model.style=encoder"),
    ({"style": "decoder", "tie_embeddings": "none", "source_vocabulary_size": 5}, "model.source_vocabulary_size=5 and model.style=decoder"),
    ({"style": "encoder", "head": "language-model"}, "model.head=language-model and model.style=encoder"),
    ({"head": "pooling"}, "model.head=pooling and model.style=encoder-decoder"),
    ({"style": "encoder", "head": "classifier"}, "model.head=classifier and model.classes=None"),
    ({"classes": 4}, "model.head=language-model and model.classes=4"),
    ({"style": "decoder", "head": "pooling", "pooling": "cls"}, "model.pooling=cls and model.style=decoder"),
    ({"style": "encoder", "decoder_layers": 2}, "model.style=encoder and model.decoder_layers=2 cannot be combined: set model.decoder_layers=0"),
    ({"encoder_layers": 0}, "model.encoder_layers must be at least 1, not 0"),
    ({"window": 0}, "model.window must be at least 1, not 0"),
    ({"vocabulary_size": 0}, "model.vocabulary_size must be at least 1, not 0"),
    ({"dropout": 1.0}, "model.dropout must be below 1, not 1.0"),
    ({"dropout": -0.1}, "model.dropout must be at least 0, not -0.1"),
    ({"norm_epsilon": 0.0}, "model.norm_epsilon must be above 0"),
    ({"position_base": 1.0}, "model.position_base must be above 1"),
    ({"position_base": float("inf")}, "model.position_base must be a finite number, not inf"),
    ({"position_base": 10**400}, "model.position_base must be a finite number, not inf"),
    ({"dropout": float("nan")}, "model.dropout must be a finite number, not nan"),
    ({"heads": 8.5}, "model.heads must be an integer, not 8.5"),
    ({"heads": "8"}, "model.heads must be an integer, not '8'"),
    ({"norm_first": "yes"}, "model.norm_first must be true or false, not 'yes'"),
    ({"window": "wide"}, "model.window must be an integer or none, not 'wide'"),
    ({"activation": "rleu"}, "unknown model.activation 'rleu'; did you mean 'relu'"),
    ({"style": "encoder-decodr"}, "unknown model.style 'encoder-decodr'; did you mean 'encoder-decoder'"),
    ({"dmodel": 4}, "unknown configuration key 'model.dmodel'; did you mean 'model.d_model'"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), BAD, ids=str)
def test_invalid_option_is_named_in_one_line(values, message):
    with pytest.raises(InputError, match=message) as caught:
        ModelConfig.from_dict({"vocabulary_size": 100, **values})
    assert "\n" not in str(caught.value)


def test_an_unknown_preset_and_a_missing_vocabulary_are_named():
    with pytest.raises(InputError, match="unknown preset 'bas'; did you mean 'base'"):
        ModelConfig.preset("bas", vocabulary_size=9)
    with pytest.raises(InputError, match="model.vocabulary_size is missing"):
        ModelConfig.preset("base")


def test_weights_with_different_head_size_do_not_load():
    """The projection has heads * head_size rows; a mismatch is an error and is not broadcast."""
    ours = Transformer(ModelConfig.preset("tiny", vocabulary_size=9))
    other = Transformer(ModelConfig.preset("tiny", vocabulary_size=9, head_size=16))
    with pytest.raises(RuntimeError, match="self_attention.query_key_value.weight"):
        ours.load_state_dict(other.state_dict())
