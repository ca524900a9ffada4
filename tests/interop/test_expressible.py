"""The tables of export targets: nothing is dropped silently."""

import pytest

from regard import InputError, ModelConfig
from regard.interop.expressible import ANY, TRAINING_ONLY, check, choose, misfits

FIELDS = ModelConfig.__dataclass_fields__


def test_a_field_without_values_is_refused():
    values = dict.fromkeys(FIELDS, ANY)
    check("target", values, ModelConfig(vocabulary_size=10))
    del values["window"]
    assert misfits(values, ModelConfig(vocabulary_size=10)) == {"window": ()}
    with pytest.raises(
        InputError, match=r"target cannot express model\.window=null: choose a different target$"
    ):
        check("target", values, ModelConfig(vocabulary_size=10))


def test_the_message_names_every_option_and_its_possible_values():
    values = dict.fromkeys(FIELDS, ANY) | {
        "norm": ("layer",), "bias": (True,), "activation": ("gelu", "silu"),
        "heads": lambda config: (min(config.heads, 2),),
    }  # fmt: skip
    config = ModelConfig(vocabulary_size=10, norm="rms", bias=False, heads=4)
    with pytest.raises(InputError) as caught:
        check("target", values, config)
    assert str(caught.value) == (
        "target cannot express model.heads=4, model.norm=rms, model.activation=relu, "
        "model.bias=false: it needs model.heads=2, model.norm=layer, model.activation=gelu or silu, "
        "model.bias=true"
    )
    check("target", values, ModelConfig(vocabulary_size=10, heads=2, activation="gelu"))


def test_the_nearest_architecture_is_suggested():
    every = dict.fromkeys(FIELDS, ANY)
    architectures = {
        "a": ("A", every | {"norm": ("rms",), "bias": (False,)}), "b": ("B", every | {"bias": (False,)}),
    }  # fmt: skip
    assert choose("target", architectures, ModelConfig(vocabulary_size=10, bias=False)) == "B"
    message = r"express model\.bias=true: the nearest architecture, b, needs model\.bias=false$"
    with pytest.raises(InputError, match=message):
        choose("target", architectures, ModelConfig(vocabulary_size=10))


def test_options_of_training_are_fields():
    assert TRAINING_ONLY.keys() < FIELDS.keys()
