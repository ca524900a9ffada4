"""The CPU's step without modules computes what Transformer.step computes."""

import pytest
import torch

from regard.decoding.lean import LeanStep

OPTIONS = [
    {},
    {"norm_first": True, "norm": "rms", "activation": "swiglu"},
    {"positions": "learned", "activation": "gelu", "bias": False},
    {"positions": "none", "window": 3, "tie_embeddings": "none"},
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("sentences", "width"), [(1, 1), (1, 3), (2, 20), (90, 3)])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_a_lean_step_is_a_step(style, options, sentences, width, dtype, model, row):
    net = model(
        style=style, dtype=dtype, d_model=32, vocabulary_size=21, **options
    )  # odd: no halves
    source = row([1 + i % 5 for i in range(sentences)]) if style == "encoder-decoder" else None
    read = row([1 + i % 3 for i in range(sentences)])
    cache, plain = (net.start(source, read, width=width, steps=4) for _ in range(2))
    lean = LeanStep(net, cache)
    assert LeanStep.can(net)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
    for step in range(4):
        tokens = torch.randint(20, (sentences, width))
        parents = torch.randint(width, (sentences, width)) if step else torch.zeros_like(tokens)
        expected = net.step(tokens, parents, plain)
        torch.testing.assert_close(lean(tokens, parents), expected, rtol=0, atol=tolerance)
        assert (cache.used, plain.visible.equal(cache.visible)) == (plain.used, True)


def test_models_it_does_not_know_are_left_to_the_reference(model):
    assert not LeanStep.can(model(positions="rotary"))
