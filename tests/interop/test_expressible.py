"""The rules of export targets: nothing is dropped silently."""

import pytest

from regard import InputError, ModelConfig
from regard.interop.expressible import TRAINING_ONLY, any_value, check, missing, only

FIELDS = ModelConfig.__dataclass_fields__


def test_a_field_without_a_rule_is_refused():
    rules = dict.fromkeys(FIELDS, any_value)
    check("target", rules, ModelConfig(vocabulary_size=10))
    assert missing(rules) == []
    del rules["window"]
    assert missing(rules) == ["window"]
    with pytest.raises(InputError, match=r"target cannot express model\.window=null \(the exp"):
        check("target", rules, ModelConfig(vocabulary_size=10))


def test_the_message_names_every_option_and_the_reason():
    rules = dict.fromkeys(FIELDS, any_value) | {
        "norm": only("norm", "layer"),
        "bias": only("bias", True, reason="it adds a bias everywhere"),
        "heads": lambda config: "too many" if config.heads > 2 else None,
    }
    config = ModelConfig(vocabulary_size=10, norm="rms", bias=False, heads=4)
    with pytest.raises(InputError) as caught:
        check("target", rules, config)
    options = "model.heads=4 (too many), model.norm=rms, model.bias=false (it adds a bias every"
    assert options in str(caught.value)
    check("target", rules, ModelConfig(vocabulary_size=10, heads=2))


def test_options_of_training_are_fields():
    assert TRAINING_ONLY.keys() < FIELDS.keys()
