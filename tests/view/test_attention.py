"""`regard view attention`: its inputs, weights, views, pictures and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from regard import InputError, ModelConfig
from regard.ops.cpu import build as native
from regard.predictor.attention import (
    MOST,
    Attention,
    Stack,
    choose,
    cross_rollout,
    panels,
    rollout,
    stacks_of,
)
from regard.predictor.attention_inputs import gather
from regard.text.tokenizer import SPECIALS
from regard.view.attention import as_dict, describe

TEXT = "The old dog saw a cat."
QUESTION = "The dog is old.\tWho is old?"
STYLES = ("encoder-decoder", "encoder", "decoder")
KINDS = ("grid", "head", "lines", "mean", "rollout")


def recorded(model, monkeypatch, act):
    """The rows (source, target) of every forward pass of `act`."""
    rows, real = [], model.transformer.hidden

    def hidden(source=None, target=None, capture=None, backend=None):
        rows.append(tuple(None if row is None else row.tokens.tolist() for row in (source, target)))
        return real(source, target, capture, backend)

    with monkeypatch.context() as patch:
        patch.setattr(model.transformer, "hidden", hidden)
        with native.without():
            act()
    return rows


# ---- inputs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "style", "text", "act"),
    [
        ("classify", "encoder", TEXT, lambda m: m.classify(TEXT)),
        ("fill", "encoder", "The <mask> saw.", lambda m: m.fill("The <mask> saw.")),
        ("fill", "encoder", TEXT, lambda m: m.embed(TEXT)),
        ("embed", "encoder", TEXT, lambda m: m.embed(TEXT)),
        ("embed", "decoder", TEXT, lambda m: m.embed(TEXT)),
        ("translate", "encoder", TEXT, lambda m: m.translate(TEXT)),
        ("answer", "encoder", QUESTION, lambda m: m.answer("Who is old?", "The dog is old.")),
    ],
)
def test_attention_of_an_encoder_model_uses_the_input_of_its_verb(
    model, monkeypatch, task, style, text, act
):
    loaded = model(task, style)
    [(source, target)] = recorded(loaded, monkeypatch, lambda: act(loaded))
    gathered = gather(loaded, text)
    [stack] = gathered.stacks.values()
    assert stack.name == style
    assert stack.rows == stack.columns == loaded.task.tokenizer.tokens(source or target)
    assert not stack.writes
    assert stack.weights.shape == (2, 4, len(stack.rows), len(stack.rows))


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_attention_of_a_translation_equals_that_of_the_verb(model, style):
    loaded = model("translate", style)
    answer = loaded.predict(TEXT, attention=True)
    gathered = gather(loaded, TEXT)
    assert list(gathered.stacks) == list(stacks_of(loaded.config.model)) == list(answer.attention)
    for name, stack in gathered.stacks.items():
        expected = np.stack([layer.numpy() for layer in answer.attention[name]])
        np.testing.assert_array_equal(stack.weights, expected)
    stack = gathered.stacks["decoder"]
    spell = loaded.task.tokenizer.tokens
    both = style == "encoder-decoder"
    begin = ["<bos>"] if both else spell(answer.source_ids)
    assert stack.rows == [*begin, *spell(answer.token_ids)][:-1]
    assert stack.writes == [""] * (len(begin) - 1) + spell(answer.token_ids)
    assert gathered.target == answer.text
    if both:
        assert (
            gathered.stacks["cross"].columns
            == gathered.stacks["encoder"].rows
            == spell(answer.source_ids)
        )


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_target_option_is_read_with_teacher_forcing(model, monkeypatch, style):
    loaded = model("translate", style)
    rows = recorded(loaded, monkeypatch, lambda: loaded.score([(TEXT, "Der alte Hund.")]))
    [(source, target)] = rows
    gathered = gather(loaded, TEXT, "Der alte Hund.")
    assert gathered.stacks["decoder"].rows == loaded.task.tokenizer.tokens(target)
    assert gathered.stacks["decoder"].writes[-1] == "<eos>"
    assert gathered.target == "Der alte Hund."
    if source:
        assert gathered.stacks["encoder"].rows == loaded.task.tokenizer.tokens(source)


@pytest.mark.parametrize("style", ["encoder-decoder", "decoder"])
def test_decoder_classifier_uses_its_predicted_label_or_the_target_option(model, style):
    loaded = model("classify", style)
    spell = loaded.task.tokenizer.tokens
    for label, gathered in (
        (loaded.classify(TEXT).label, gather(loaded, TEXT)),
        ("so so", gather(loaded, TEXT, "so so")),
    ):
        written = [*loaded.task.tokenizer.encode(label), 2]
        assert [token for token in gathered.stacks["decoder"].writes if token] == spell(written)
    with pytest.raises(InputError, match="unknown label 'god'; did you mean 'good'"):
        gather(loaded, TEXT, "god")


def test_questions_are_read_with_their_context(model):
    loaded = model("answer", "encoder-decoder")
    gathered = gather(loaded, "Who is old?", context="The dog is old.")
    assert gathered.stacks["encoder"].rows == gather(loaded, QUESTION).stacks["encoder"].rows
    text = "".join(gathered.stacks["encoder"].rows).replace("▁", " ")
    assert text == "The dog is old.<sep>Who is old?<eos>"


def test_generated_text_starts_with_the_prompt(model):
    gathered = gather(model("generate", "decoder"), TEXT).stacks["decoder"]
    assert gathered.rows[0] == "<bos>"
    assert "".join(gathered.rows[1:]).replace("▁", " ") == TEXT
    assert np.triu(gathered.weights, 1).max() == 0  # no token attends to later tokens


def test_bytes_and_special_tokens_are_named_and_user_text_is_never_special(model):
    gathered = gather(model("generate", "decoder", vocabulary="byte"), "é <eos>\n$x$")
    rows = gathered.stacks["decoder"].rows
    assert rows[:4] == ["<bos>", "\\xc3", "\\xa9", "▁"]
    assert "\\n" in rows
    assert sum(token in SPECIALS for token in rows) == 1


def test_rows_of_weights_sum_to_one(model):
    for task, style in (("translate", "encoder-decoder"), ("fill", "encoder")):
        for stack in gather(model(task, style), TEXT).stacks.values():
            np.testing.assert_allclose(stack.weights.sum(-1), 1, atol=1e-5)


# ---- rollout ----------------------------------------------------------------------------


def random_weights(random, *shape):
    weights = random.random(shape) ** 4
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def test_rollout_is_the_product_of_all_layers():
    random = np.random.default_rng(0)
    weights = random_weights(random, 3, 2, 5, 5)
    expected = np.eye(5)
    for layer in range(3):
        mean = (weights[layer, 0] + weights[layer, 1]) / 2
        expected = (0.5 * mean + 0.5 * np.eye(5)) @ expected
        np.testing.assert_allclose(rollout(weights)[layer], expected, atol=1e-6)
    np.testing.assert_allclose(rollout(weights).sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("known", [True, False])
def test_cross_rollout_equals_that_of_one_combined_network(known):
    """The whole model as one Markov chain over source and target: a matrix for each sub-layer."""
    random = np.random.default_rng(1)
    n, m, half = 4, 6, 0.5
    decoder, cross = random_weights(random, 3, 2, n, n), random_weights(random, 3, 2, n, m)
    encoder = random_weights(random, 2, 2, m, m)
    chain = np.eye(m + n)
    for layer in encoder if known else []:
        step = np.eye(m + n)
        step[:m, :m] = half * np.eye(m) + half * layer.mean(0)
        chain = step @ chain
    result = cross_rollout(decoder, cross, rollout(encoder)[-1] if known else None)
    for i in range(3):
        step, other = np.eye(m + n), np.eye(m + n)
        step[m:, m:] = half * np.eye(n) + half * decoder[i].mean(0)
        other[m:, m:] = half * np.eye(n)
        other[m:, :m] = half * cross[i].mean(0)
        chain = other @ step @ chain
        np.testing.assert_allclose(result[i], chain[m:, :m], atol=1e-6)
        np.testing.assert_allclose(result[i].sum(-1), 1 - half ** (i + 1), atol=1e-6)


# ---- selection of the view ---------------------------------------------------------------------


def stack_of(name="encoder", n=3, m=3, layers=2, heads=2):
    weights = random_weights(np.random.default_rng(2), layers, heads, n, m)
    rows, columns = ([f"{side}{i}" for i in range(count)] for side, count in (("q", n), ("k", m)))
    return Stack(name, rows, columns, weights, weights.mean(1))


def attention_of(stack):
    return Attention("it", "translate", "encoder-decoder", "text", "", {stack.name: stack})


@pytest.fixture(scope="module")
def shape():
    return ModelConfig.preset("tiny", vocabulary_size=50, heads=2, encoder_layers=2)


def test_every_kind_shows_its_part_of_the_weights(shape):
    stack = stack_of()
    labels = {
        kind: [
            [panel.weights for panel in row]
            for row in panels(choose(shape, kind, "encoder"), stack)
        ]
        for kind in KINDS
    }
    np.testing.assert_array_equal(labels["grid"], stack.weights)
    np.testing.assert_array_equal(
        labels["head"], [[stack.weights[1, 0]]]
    )  # default: the first head of the last layer
    np.testing.assert_array_equal(labels["lines"], [[stack.weights[1, 0]]])
    np.testing.assert_allclose(labels["mean"], [stack.weights.mean(1)])
    np.testing.assert_array_equal(labels["rollout"], [[stack.rollout[1]]])
    [[first]] = panels(choose(shape, "rollout", "encoder", 1), stack)
    np.testing.assert_array_equal(first.weights, stack.rollout[0])
    row = panels(choose(shape, "grid", "encoder", head=2), stack)
    np.testing.assert_array_equal([[p.weights for p in r] for r in row], stack.weights[:, 1:])


@pytest.mark.parametrize(
    ("style", "mixer", "options", "message"),
    [
        ("encoder", "attention", {"stack": "cross"}, "model.style=encoder has no cross attention, only encoder"),
        ("decoder", "attention", {"stack": "encoder"}, "model.style=decoder has no encoder attention, only decoder"),
        ("encoder-decoder", "lstm", {"stack": "encoder"}, "model.style=encoder-decoder with model.mixer=lstm has no encoder attention, only decoder and cross"),
        ("encoder", "convolution", {}, "model.style=encoder with model.mixer=convolution has no attention weights"),
        ("decoder", "attention", {"layer": 5}, "layer 5: the decoder has 4 layers, counted from 1"),
        ("decoder", "attention", {"layer": 0}, "layer 0: the decoder has 4 layers, counted from 1"),
        ("encoder-decoder", "attention", {"layer": 5}, "layer 5: cross-attention has 4 layers, counted from 1"),
        ("decoder", "attention", {"head": 9}, "head 9: each layer has 4 heads, counted from 1"),
        ("decoder", "attention", {"head": 1, "kind": "mean"}, "kind mean and a head cannot be combined: it shows all heads together"),
        ("decoder", "attention", {"kind": "head map"}, "unknown kind 'head map'; did you mean 'head'?"),
    ],
)  # fmt: skip
def test_missing_part_of_a_model_is_a_one_line_error(style, mixer, options, message):
    config = ModelConfig.preset("tiny", vocabulary_size=50, style=style, mixer=mixer)
    with pytest.raises(InputError) as error:
        choose(config, **options)
    assert str(error.value) == message


def test_cross_attention_is_the_default_if_the_model_has_it():
    for style, expected in zip(STYLES, ("cross", "encoder", "decoder"), strict=True):
        config = ModelConfig.preset("tiny", vocabulary_size=50, style=style)
        assert choose(config).stack == expected


def test_decoder_is_shown_if_the_encoder_has_no_attention(model):
    loaded = model("translate", "encoder-decoder", mixer="gru")
    gathered = gather(loaded, TEXT)
    assert list(gathered.stacks) == ["decoder", "cross"] == list(stacks_of(loaded.config.model))
    cross = gathered.stacks["cross"]
    np.testing.assert_allclose(cross.rollout[-1].sum(-1), 0.75, atol=1e-5)


def test_table_names_the_token_with_the_largest_weight(shape):
    stack = replace(stack_of(), writes=["", "x", "y"])
    lines = describe(attention_of(stack), choose(shape, "head", "encoder", 1, 2))
    best = stack.weights[0, 1].argmax(-1)
    assert lines[0] == "it: self-attention of the encoder, layer 1, head 2"
    assert lines[1] == f"  q0 attends most to k{best[0]} ({stack.weights[0, 1, 0].max():.2f})"
    assert lines[2].startswith(f"  q1 (writes x) attends most to k{best[1]}")
    lines = describe(attention_of(stack), choose(shape, "grid", "encoder"))
    assert (
        lines[-1]
        == f"  layer 2   {'  '.join(f'{v:.2f}' for v in stack.weights[1].max(-1).mean(-1))}"
    )
    many = describe(attention_of(stack_of(n=40)), choose(shape, "head", "encoder"))
    assert len(many) == 26
    assert many[-1] == "  and 16 more"


def test_json_contains_the_displayed_weights(shape):
    stack = stack_of()
    result = as_dict(attention_of(stack), choose(shape, "mean", "encoder", 2), ["a.png"])
    assert (result["rows"], result["columns"]) == (stack.rows, stack.columns)
    np.testing.assert_allclose(result["weights"], stack.weights[1].mean(0), atol=1e-6)
    assert result["files"] == ["a.png"]
    for kind, dimensions in zip(KINDS, (4, 2, 2, 3, 2), strict=True):
        weights = as_dict(attention_of(stack), choose(shape, kind, "encoder"), [])["weights"]
        assert np.ndim(weights) == dimensions


# ---- the command ------------------------------------------------------------------------


def words(svg):
    tree = ElementTree.fromstring(svg.read_bytes())
    return ["".join(node.itertext()).strip() for node in tree.iter() if node.tag.endswith("}text")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_with_its_tokens(folder, call, tmp_path, kind):
    path = folder("translate", "encoder-decoder")
    text = "The $dog$ saw <b>."
    code, message, _ = call(
        "view", "attention", "-m", path, "--kind", kind, "--out", tmp_path / "p.png", "--json", text
    )
    assert code == 0
    result = json.loads(message)
    assert result["files"] == [str(tmp_path / "p.png"), str(tmp_path / "p.svg")]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    drawn = words(tmp_path / "p.svg")
    for token in (*result["rows"], *result["columns"], "<b>."[:2]):
        assert any(token in word for word in drawn), token
    if kind in ("grid", "mean"):
        assert "layer 2" in " ".join(drawn)
    if kind != "lines":
        assert {"0", "0.25", "1"} <= set(drawn)  # the scale
    assert text in drawn[-1] or any(text in word for word in drawn)


def test_cells_of_a_small_head_contain_numbers(folder, call, tmp_path):
    path = folder("fill", "encoder")
    code, message, _ = call(
        "view", "attention", "-m", path, "--kind", "head", "--layer", 1, "--head", 2,
        "--out", tmp_path / "p", "--json", "The <mask>.",
    )  # fmt: skip
    assert code == 0
    drawn = words(tmp_path / "p.svg")
    for row in json.loads(message)["weights"]:
        for weight in row:
            assert f"{weight:.2f}".lstrip("0") in drawn


def test_the_same_text_gives_the_same_bytes(folder, call, tmp_path):
    path = folder("fill", "encoder")
    for name in ("a", "b"):
        for end in ("png", "html"):
            assert (
                call("view", "attention", "-m", path, "--out", tmp_path / f"{name}.{end}", TEXT)[0]
                == 0
            )
    for end in ("png", "svg", "html"):
        assert (tmp_path / f"a.{end}").read_bytes() == (tmp_path / f"b.{end}").read_bytes()


def test_default_folder_of_pictures_is_the_model_folder(folder, call):
    path = folder("classify", "encoder")
    code, message, _ = call("view", "attention", "-m", path, stdin=["The dog."])
    assert code == 0
    assert message.splitlines()[-2:] == [str(path / "attention.png"), str(path / "attention.svg")]
    assert (path / "attention.png").stat().st_size > 1000


@pytest.mark.parametrize("kind", ["grid", "lines"])
def test_smallest_and_largest_numbers_of_tokens_can_be_drawn(folder, call, tmp_path, kind):
    path = folder("generate", "decoder", vocabulary="byte", longest=400)
    for text in ("x", "y" * (MOST - 1)):
        code, _, wrong = call(
            "view", "attention", "-m", path, "--kind", kind, "--out", tmp_path / "p", text
        )
        assert (code, wrong) == (0, "")


@pytest.mark.parametrize(
    ("task", "style", "options", "message"),
    [
        ("translate", "encoder-decoder", [" "], "the text is empty"),
        ("translate", "encoder-decoder", ["a " * 70], "the text is longer than the 64 tokens that the model was trained on: shorten it"),
        ("classify", "encoder", ["a " * 70], "the text is longer than the 64 tokens that the model was trained on: shorten it"),
        ("translate", "encoder-decoder", ["--target", "x" * 300, "a"], "the decoder's input has 301 tokens, but a figure has room for 200: shorten the text or the target"),
        ("translate", "encoder", ["--target", "b", "a"], "a model with model.style=encoder writes all tokens at once and reads no target: leave the target out"),
        ("classify", "encoder", ["--target", "good", "a"], "only a model that writes text has a target: this one was trained to classify"),
        ("classify", "encoder", ["--context", "good", "a"], "only a model that answers has a context: this one was trained to classify"),
        ("answer", "encoder-decoder", ["a"], 'the text: expected CONTEXT<tab>QUESTION or {"context", "question"}, or a question with a separate context'),
        ("fill", "encoder", ["--stack", "cross", "a"], "model.style=encoder has no cross attention, only encoder"),
        ("fill", "encoder", ["--out", "a.jpg", "a"], "--out a.jpg: the name must end in .png, .svg or .html"),
        ("fill", "encoder", [], "standard input has 2 lines, but one text is needed: pass it as an argument"),
    ],
)  # fmt: skip
def test_invalid_requests_are_refused_in_one_line(folder, call, task, style, options, message):
    path = folder(task, style)
    code, out, wrong = call("view", "attention", "-m", path, *options, stdin=["one", "two"])
    assert (code, out, wrong) == (2, "", f"regard: {message}\n")


def test_unwritable_folder_is_named(folder, call, tmp_path):
    (tmp_path / "file").touch()
    path = folder("fill", "encoder")
    for name in ("a.png", "a.html"):
        code, _, wrong = call(
            "view", "attention", "-m", path, "--out", tmp_path / "file" / name, "x"
        )
        assert code == 2
        assert "cannot be written" in wrong


def test_help_answers_without_torch():
    code = (
        "import sys; from regard.cli.main import build_parser\n"
        "try: build_parser().parse_args(['view', 'attention', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert process.returncode == 0, process.stderr
    assert "--stack" in process.stdout
