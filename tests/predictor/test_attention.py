"""`Model.attention`: arrays and figures for every task and style."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from regard import Attention, InputError
from regard.predictor.attention import KINDS, MOST, rollout

TEXT = "The old dog saw a cat."
CASES = [
    ("translate", "encoder-decoder", {}, {"encoder", "decoder", "cross"}),
    ("translate", "decoder", {}, {"decoder"}),
    ("translate", "encoder", {}, {"encoder"}),
    ("answer", "encoder-decoder", {"context": "The dog is old."}, {"encoder", "decoder", "cross"}),
    ("answer", "decoder", {"context": "The dog is old."}, {"decoder"}),
    ("classify", "encoder", {}, {"encoder"}),
    ("classify", "encoder-decoder", {}, {"encoder", "decoder", "cross"}),
    ("fill", "encoder", {}, {"encoder"}),
    ("embed", "encoder", {}, {"encoder"}),
    ("embed", "decoder", {}, {"decoder"}),
    ("generate", "decoder", {}, {"decoder"}),
]


@pytest.mark.parametrize(("task", "style", "options", "parts"), CASES)
def test_every_task_and_style_has_arrays_and_tokens(model, task, style, options, parts):
    attention = model(task, style).attention(TEXT, **options)
    assert isinstance(attention, Attention)
    assert set(attention.stacks) == parts
    n, m = len(attention.target_tokens), len(attention.source_tokens)
    shapes = {"encoder": (2, 4, m, m), "decoder": (2, 4, n, n), "cross": (2, 4, n, m)}
    for name, shape in shapes.items():
        weights = getattr(attention, name)
        if name not in parts:
            assert weights is None
            continue
        assert weights.shape == shape
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_a_target_replaces_the_output(model):
    translator = model("translate", "encoder-decoder")
    attention = translator.attention(TEXT, target="Der Hund.")
    assert attention.target == "Der Hund."
    assert attention.target_tokens[0] == "<bos>"
    assert attention.target_tokens[1:] == translator.tokenizer.tokens(
        translator.tokenizer.encode("Der Hund.")
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_plot_is_a_figure_without_pyplot(model, kind):
    before = "matplotlib.pyplot" in sys.modules
    figure = model("translate", "encoder-decoder").attention(TEXT).plot(kind)
    assert isinstance(figure, Figure)
    figure.canvas.draw()
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_a_plot_shows_the_weights_of_its_head(model):
    attention = model("translate", "encoder-decoder").attention(TEXT)
    figure = attention.plot("head", stack="encoder", layer=1, head=3)
    image = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(image, attention.encoder[0][2])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == attention.source_tokens
    assert "layer 1, head 3" in figure.get_suptitle()
    assert len(attention.plot(stack="decoder").axes) == 2 * 4 + 1  # all heads, and the colour bar


def test_long_texts_have_arrays_but_no_figure(model):
    generator = model("generate", "decoder", vocabulary="byte", longest=400)
    attention = generator.attention("x" * (MOST + 20))
    assert attention.decoder.shape[-1] > MOST
    with pytest.raises(InputError, match=f"a figure has room for {MOST}: shorten the text"):
        attention.plot()


def test_rollout_is_part_of_the_result(model):
    stack = model("fill", "encoder").attention(TEXT).stacks["encoder"]
    np.testing.assert_array_equal(stack.rollout, rollout(stack.weights))
    assert replace(stack, writes=()).named(0) == stack.rows[0]
