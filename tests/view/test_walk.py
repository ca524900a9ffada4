"""`regard view walk`: its numbers equal those of the model for all options, in text and in JSON."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch
from rich.cells import cell_len

from regard.errors import InputError
from regard.model.transformer import Transformer
from regard.ops.reference import scaled_scores
from regard.text.batching import Packed
from regard.view import terminal, trace
from regard.view.walk import SPECIALS, Step, read, walk_config, walk_steps, write_walk

TEXT = "你好啊。"
EXPECTED_STEPS = [
    "characters and ids", "embedding", "position added", "query, key, value", "heads split",
    "scores", "scaling", "mask", "softmax", "weighted sum", "heads joined", "residual and norm",
    "feed-forward", "residual and norm", "stack", "cross-attention", "logits", "probabilities",
]  # fmt: skip
STYLES = ["encoder-decoder", "encoder", "decoder"]
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    (style, changes)
    for style in STYLES
    for changes in (
        {},
        {"norm_first": True},
        {"positions": "rotary"},
        {"positions": "learned"},
        {"positions": "none"},
        {"window": 2},
        {"activation": "swiglu"},
        {"activation": "gelu"},
        {"norm": "rms"},
        {"norm": "rms", "norm_first": True, "positions": "rotary", "window": 1, "bias": False},
        {"tie_embeddings": "none"},
        {"tie_embeddings": "target-output"},
        {"embedding_norm": True, "scale_embeddings": False},
        {"heads": 4},
        {"heads": 3, "head_size": 6},
        {"dropout": 0.3, "attention_dropout": 0.2},
        {"heads": 4, "key_value_heads": 2, "query_key_value_bias": False},
        {"heads": 4, "key_value_heads": 1, "positions": "rotary", "norm_first": True},
        {"activation": "silu", "norm_epsilon": 1e-3},
        {"activation": "gelu-tanh", "bias": False, "query_key_value_bias": True},
    )
] + [
    ("encoder-decoder", {"tie_embeddings": "source-target"}),
    ("encoder-decoder", {"encoder_layers": 1, "decoder_layers": 3}),
    ("encoder-decoder", {"output_bias": True}),
    ("decoder", {"output_bias": True}),
    ("encoder", {"head": "classifier", "classes": 3}),
    ("encoder", {"head": "classifier", "classes": 3, "classifier_activation": "relu"}),
    ("encoder", {"head": "pooling"}),
    ("encoder", {"head": "pooling", "pooling": "cls"}),
    ("decoder", {"head": "pooling", "pooling": "last"}),
]


@cache  # a walk is a pure function of its options, and many tests use the same one
def cached(
    text: str, target: str | None, style: str, seed: int, changes: tuple[tuple[str, Any], ...]
) -> list[Step]:
    return walk_steps(text, target, walk_config(text, target, style, dict(changes)), seed)


def walk(
    text: str = TEXT,
    target: str | None = None,
    style: str = STYLES[0],
    seed: int = 0,
    **changes: Any,
) -> list[Step]:
    return cached(text, target, style, seed, tuple(changes.items()))


def named(steps: list[Step], name: str) -> Step:
    return next(step for step in steps if step.name == name)


def names(steps: list[Step]) -> list[str]:
    return [step.name for step in steps]


def separate_logits(
    style: str, seed: int, changes: dict[str, Any], text: str = TEXT
) -> torch.Tensor:
    """The logits of a forward pass that is independent of the walk."""
    config = walk_config(text, None, style, changes)
    ids = [len(SPECIALS) + list(dict.fromkeys(text)).index(character) for character in text]
    bos, eos, cls, mask = range(4)
    masked = [cls, *ids]
    if config.head == "masked-language-model":
        masked[1 + len(text) // 2] = mask
    source = {"encoder-decoder": [*ids, eos], "encoder": masked, "decoder": None}[style]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        return Transformer(config).eval()(
            source and Packed.of([source]), None if style == "encoder" else Packed.of([[bos, *ids]])
        )


# ---- displayed values ------------------------------------------------------------------------


def test_all_steps_are_present_and_in_order() -> None:
    displayed = iter(names(walk()))
    assert all(name in displayed for name in EXPECTED_STEPS)


def test_the_steps_are_numbered_and_each_is_one_sentence_with_a_shape() -> None:
    steps = walk()
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    for step in steps:
        assert len(step.shape) == len(step.dimensions.split())
        assert step.sentence[0].isupper()
        assert step.sentence.endswith(".")
        assert ". " not in step.sentence
        assert step.section.startswith("3.")


def test_parts_are_the_stacks_of_the_style() -> None:
    for style in STYLES:
        parts = list(dict.fromkeys(step.part for step in walk(style=style)))
        assert parts == [*(stack.capitalize() for stack in style.split("-")), "Output"]


@pytest.mark.parametrize(("style", "changes"), OPTIONS)
def test_tables_match_their_labels_for_every_option(style: str, changes: dict[str, Any]) -> None:
    for step in walk(style=style, **changes):
        assert len(step.values) == len(step.rows)
        assert {len(row) for row in step.values} == {len(step.columns)}
        if step.name not in ("mask", "causal mask"):
            assert None not in [value for row in step.values for value in row]


@pytest.mark.parametrize(("style", "changes"), OPTIONS)
def test_displayed_output_equals_a_separate_forward_pass(
    style: str, changes: dict[str, Any]
) -> None:
    steps = walk(style=style, **changes)
    logits = separate_logits(style, 0, changes)
    if changes.get("head") == "pooling":
        assert "probabilities" not in names(steps)
        torch.testing.assert_close(
            torch.tensor(named(steps, "pooling").values), logits, atol=1e-4, rtol=0
        )
        return
    displayed = torch.tensor(named(steps, "probabilities").values)
    torch.testing.assert_close(displayed, logits.softmax(-1), atol=1e-4, rtol=0)
    assert named(steps, "logits").shape == list(logits.shape)


@pytest.mark.parametrize(("style", "changes"), OPTIONS)
def test_weights_sum_to_1_and_masked_positions_are_null_or_0(
    style: str, changes: dict[str, Any]
) -> None:
    steps = walk(style=style, **changes)
    pairs = [("mask", "softmax")]
    if style == "encoder-decoder":
        pairs.append(("causal mask", "masked self-attention"))
    for mask_name, weights_name in pairs:
        mask, weights = named(steps, mask_name), named(steps, weights_name)
        causal, window = mask.part == "Decoder", changes.get("window")
        for i, row in enumerate(weights.values):
            assert sum(value or 0.0 for value in row) == pytest.approx(1, abs=1e-3)
            for j, weight in enumerate(row):
                hidden = (causal and j > i) or (window is not None and abs(i - j) > window)
                assert (mask.values[i][j] is None) == hidden
                assert not hidden or weight == 0
    if style == "encoder-decoder":
        cross = named(steps, "cross-attention")
        assert all(sum(x or 0.0 for x in row) == pytest.approx(1, abs=1e-3) for row in cross.values)


def test_each_step_of_attention_follows_from_the_previous_step() -> None:
    steps = walk()
    scores, scaled, mask, weights = (
        torch.tensor(named(steps, name).values) for name in ("scores", "scaling", "mask", "softmax")
    )
    torch.testing.assert_close(scaled, scores / math.sqrt(8), atol=1e-3, rtol=0)
    torch.testing.assert_close(mask, scaled)
    torch.testing.assert_close(weights, mask.softmax(-1), atol=1e-3, rtol=0)
    assert "sqrt(8) = 2.83" in named(steps, "scaling").sentence


def test_the_norm_gives_every_token_mean_0_and_variance_1() -> None:
    x = torch.tensor(named(walk(), "residual and norm").values)
    torch.testing.assert_close(x.mean(-1), torch.zeros(5), atol=1e-3, rtol=0)
    torch.testing.assert_close(x.var(-1, correction=0), torch.ones(5), atol=1e-3, rtol=0)


def test_pre_norm_normalises_before_each_sub_layer_and_after_the_stack() -> None:
    steps = walk(norm_first=True)
    order = names(steps)
    assert order.index("norm") < order.index("query, key, value") < order.index("residual")
    assert "residual and norm" not in order
    assert named(steps, "stack").rows[-1] == "norm"


def test_rotary_positions_are_a_separate_step_and_are_not_added() -> None:
    order = names(walk(positions="rotary"))
    assert "position added" not in order
    assert "positional encoding" not in order
    assert order.index("heads split") < order.index("rotation") < order.index("scores")


# ---- inputs -------------------------------------------------------------------------


def test_target_is_shifted_right_and_probabilities_have_correct_tokens() -> None:
    steps = walk(target="hi")
    assert named(steps, "target shifted right").columns == ["<bos>", "h", "i"]
    assert named(steps, "probabilities").answers == ["h", "i", "<eos>"]
    assert named(steps, "cross-attention").rows == ["<bos>", "h", "i"]
    assert named(steps, "cross-attention").columns == [*TEXT, "<eos>"]


def test_ids_number_special_tokens_then_characters_in_order_of_appearance() -> None:
    assert named(walk("好好学习"), "characters and ids").values == [[4, 4, 5, 6, 1]]


def test_sentence_of_a_masked_language_model_names_the_masked_character() -> None:
    steps = walk(style="encoder")
    first = named(steps, "characters and ids")
    assert first.columns == ["<cls>", "你", "好", "<mask>", "。"]
    assert "<mask> replaces 啊" in first.sentence
    assert named(steps, "probabilities").answers == [None, None, None, "啊", None]


@pytest.mark.parametrize("style", STYLES)
def test_texts_of_1_and_of_300_characters_are_accepted(style: str) -> None:
    assert walk("x", style=style)
    assert walk("x" * 300, style=style)


LONG = "The cat sat on the mat, and the dog that had chased it all day slept beside the stove."


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("width", [80, 100])
def test_the_middle_of_a_long_sentence_is_left_out_of_the_tables(
    width: int, style: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    steps = walk(LONG, style=style)
    write_walk(steps, walk_config(LONG, None, style, {}), 0)
    lines = capsys.readouterr().out.splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert len(lines) < 450
    # Every value is in the table of the step, which the JSON output contains.
    scores = named(steps, "scores")
    assert len(scores.values) == len(scores.values[0]) == len(LONG) + 1
    header, *table = terminal.matrix(scores.rows, scores.columns, scores.values, width)
    assert len(header.plain.split()) == 25  # 16 first tokens, the gap and 8 last tokens
    assert [line.plain for line in table].index("⋮") == 16
    shades = [line.plain for line in table if line.plain != "⋮"]
    assert {cell_len(line) for line in shades} == {header.cell_len}
    assert all(line[cell_len(header.plain[: header.plain.index("…")])] == "…" for line in shades)


def test_a_narrow_column_has_a_label_of_one_character() -> None:
    assert [terminal._short(name) for name in ("a", "注", "<eos>", "<mask>", "U+0009")] == [
        "a", "注", "<", "<", "□"
    ]  # fmt: skip


def test_title_and_shape_are_separated_by_spaces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write_walk(walk("x" * 300), walk_config("x" * 300, None, "encoder-decoder", {}), 0)
    shapes = [line for line in capsys.readouterr().out.splitlines() if line.endswith("H N M")]
    assert shapes
    assert all("  [" in line for line in shapes)


@pytest.mark.parametrize(
    ("text", "target", "style", "changes", "message"),
    [
        ("", None, "encoder-decoder", {}, "the text is empty"),
        ("x", "", "encoder-decoder", {}, "the target is empty"),
        ("x" * 301, None, "decoder", {}, "the text has 301 characters, but at most 300"),
        ("x", "y" * 301, "encoder-decoder", {}, "the target has 301 characters, but at most 300"),
        ("x", "y", "decoder", {}, "omit --target"),
        ("x", None, "encoder", {"vocabulary_size": 9}, "vocabulary_size .* comes from the text"),
        ("x", None, "encoder-decoder", {"source_vocabulary_size": 9}, "comes from the text"),
        ("x", None, "sideways", {}, "model.style"),
        ("x", None, "decoder", {"haeds": 4}, "did you mean 'model.heads'"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    text: str, target: str | None, style: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        walk_config(text, target, style, changes)
    assert "\n" not in str(error.value)


def test_seed_outside_the_range_of_torch_is_refused() -> None:
    for seed in (-1, 2**63):
        with pytest.raises(InputError, match="--seed"):
            walk(seed=seed)


def test_a_sentence_longer_than_the_learned_positions_is_refused() -> None:
    with pytest.raises(InputError, match=r"model\.max_length"):
        walk(positions="learned", max_length=2)


# ---- reproducibility -----------------------------------------------------------------------


def test_steps_depend_on_the_seed_only() -> None:
    config = walk_config(TEXT, None, "encoder-decoder", {})
    assert walk_steps(TEXT, None, config, 1) == walk_steps(TEXT, None, config, 1)
    assert named(walk(seed=1), "embedding").values != named(walk(seed=2), "embedding").values


def test_random_state_of_the_caller_does_not_change() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    cached.__wrapped__(TEXT, None, "encoder-decoder", 0, ())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("scaled_scores", lambda query, key: scaled_scores(query, key) * 2),
        ("attention_weights", lambda query, key, _: scaled_scores(query, key).softmax(-1)),
    ],
)
def test_value_that_differs_from_the_model_raises_an_error(
    monkeypatch: pytest.MonkeyPatch, function: str, wrong: Any
) -> None:
    monkeypatch.setattr(trace, function, wrong)
    with pytest.raises(RuntimeError, match="differs from the model's"):
        cached.__wrapped__(TEXT, None, "decoder", 0, ())


def test_every_sub_layer_of_every_layer_is_compared_with_the_model() -> None:
    config = walk_config(TEXT, None, "encoder-decoder", {})
    rows = read(TEXT, None, config)
    for name in ("self_attention", "cross_attention", "feed_forward"):
        model = Transformer(config)
        traced = trace.Trace(model, rows["encoder"].packed, rows["decoder"].packed)
        traced.layers("decoder")
        traced.outputs[f"decoder.layers.1.{name}"][0] += 1
        with pytest.raises(RuntimeError, match=rf"decoder\.layers\.1\.{name}"):
            traced.layers("decoder")


# ---- layout -------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize(
    "text", [TEXT, "Attention is all you nee", "a\tb \u0301[bold]x[/]", "注意"]
)
@pytest.mark.parametrize("style", STYLES)
def test_no_line_is_wider_than_the_terminal_and_wide_characters_count_double(
    width: int,
    text: str,
    style: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    write_walk(walk(text, style=style), walk_config(text, None, style, {}), 0)
    lines = capsys.readouterr().out.splitlines()
    assert max(cell_len(line) for line in lines) <= min(width, 100)
    assert any(line.endswith("N D") for line in lines)


def test_columns_of_a_matrix_are_aligned_with_their_labels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    write_walk(walk(), walk_config(TEXT, None, "encoder-decoder", {}), 0)
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  7  scores"))
    ends = [cell_len(lines[at + 1][: lines[at + 1].index(c) + 1]) for c in TEXT]
    for line in lines[at + 2 : at + 7]:
        cells = [c for c in line for _ in range(cell_len(c))]  # one entry for each cell
        assert all(cells[end - 1].isdigit() for end in ends)


# ---- the command line ---------------------------------------------------------------------


def regard(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "regard", "view", "walk", *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1", "COLUMNS": "100", **environment},
        check=False,
    )


def test_the_command_prints_the_walk_without_colour_codes_into_a_pipe() -> None:
    completed = regard(TEXT)
    assert completed.returncode == 0, completed.stderr
    assert "\x1b" not in completed.stdout
    for name in EXPECTED_STEPS:
        assert f"  {name}  " in completed.stdout


def test_json_is_one_valid_object_a_line_without_nan_or_infinity() -> None:
    completed = regard(TEXT, "--style", "decoder", "--json", "--set", "model.window=2")
    assert completed.returncode == 0, completed.stderr

    def refuse(literal: str) -> None:
        raise AssertionError(literal)

    steps = [json.loads(line, parse_constant=refuse) for line in completed.stdout.splitlines()]
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    keys = {
        "step",
        "name",
        "section",
        "shape",
        "dimensions",
        "sentence",
        "values",
        "rows",
        "columns",
    }
    assert all(keys <= step.keys() for step in steps)
    mask = next(step for step in steps if step["name"] == "mask")
    assert mask["values"][0][1:] == [None] * 4


def test_bad_input_is_exit_code_2_and_one_line_on_standard_error() -> None:
    for arguments in (["x" * 301], ["x", "--set", "model.vocabulary_size=99"]):
        completed = regard(*arguments)
        assert completed.returncode == 2
        assert completed.stdout == ""
        assert len(completed.stderr.splitlines()) == 1
