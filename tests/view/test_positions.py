"""`regard view positions`: the drawn values, the labels, and the errors."""

import json
import math
from functools import partial
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import save_file

import command
from regard import Transformer
from regard.tasks.configuration import make_config
from regard.view.positions import draw_positions, of_model, places

pytest.importorskip("matplotlib")


regard = partial(command.regard, "view", "positions")


def words(svg):
    tree = ElementTree.fromstring(svg.read_bytes())
    return ["".join(node.itertext()).strip() for node in tree.iter() if node.tag.endswith("}text")]


@pytest.fixture
def folder(tmp_path):
    """folder("learned"): a model of that kind with random weights, as training leaves it."""

    def make(positions, **changes):
        sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 12, "heads": 2, "d_ff": 8}
        sizes |= {"vocabulary_size": 9, "max_length": 20, "positions": positions}
        values = {"model": {**sizes, **changes}, "data": {"train": ["a", "b"], "max_length": 10}}
        values["decoding"] = {"max_length": 10}
        config = make_config("translate", "tiny", values)
        torch.manual_seed(3)
        model = Transformer(config.model)
        path = tmp_path / positions
        path.mkdir()
        (path / "config.yaml").write_text(config.to_yaml())
        save_file(dict(model.state_dict()), path / "model.safetensors")
        return path, model

    return make


def test_sinusoids_are_drawn_at_any_size_with_a_scale(tmp_path):
    png, svg = draw_positions(None, 30, 8, 100.0, tmp_path / "small.png")
    assert (png.name, svg.name) == ("small.png", "small.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    texts = words(svg)
    assert "sinusoidal, base 100: 30 × 8" in texts
    assert "value: dark -1.00, light 1.00" in texts
    assert {"position", "feature (even: sine, odd: cosine)", "p = 0", "p = 7", "p = 15"} <= set(
        texts
    )


def test_default_picture_is_the_one_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, _, code = regard()
    assert (out, code) == ("positions.png\npositions.svg\n", 0)
    assert "sinusoidal, base 10,000: 256 × 512" in words(tmp_path / "positions.svg")


def test_equal_data_gives_equal_bytes(tmp_path):
    first = draw_positions(None, 10, 4, None, tmp_path / "first")
    second = draw_positions(None, 10, 4, None, tmp_path / "second")
    for original, repeated in zip(first, second, strict=True):
        assert original.read_bytes() == repeated.read_bytes()


def test_learned_table_is_read_from_the_weights_of_each_stack(folder):
    path, model = folder("learned")
    encoder, decoder = of_model(path, 15)
    assert torch.equal(encoder.rows, model.encoder.positions.weight[:15].double())
    assert torch.equal(decoder.rows, model.decoder.positions.weight[:15].double())
    assert len(of_model(path, None)[0].rows) == 20, (
        "the complete table, which has fewer than 256 rows"
    )
    out, _, code = regard("-m", path, "--json")
    assert code == 0
    assert [json.loads(line)["file"] for line in out.splitlines()] == [
        str(path / "positions.png"), str(path / "positions.svg"),
    ]  # fmt: skip
    assert {"learned by the encoder: 20 × 12", "learned by the decoder: 20 × 12"} <= set(
        words(path / "positions.svg")
    )


def test_sinusoids_of_a_model_equal_those_it_adds(folder):
    path, model = folder("sinusoidal", position_base=50.0)
    (encodings,) = of_model(path, 11)
    assert torch.equal(encodings.rows, model.encoder.position_rows(torch.arange(11)))


def test_rotary_positions_are_the_cosines_and_sines_of_each_pair(folder):
    path, _ = folder("rotary", position_base=50.0)
    (encodings,) = of_model(path, 9)
    assert encodings.rows.shape == (9, 6)  # [N, K]
    for p in range(9):
        for pair in range(3):
            angle = p / 50 ** (2 * pair / 6)
            expected = [math.cos(angle), math.sin(angle)]
            assert encodings.rows[p, 2 * pair : 2 * pair + 2].tolist() == pytest.approx(expected)
    draw_positions(path, 9)
    texts = words(path / "positions.svg")
    assert "rotary, base 50, in each head: 9 × 6" in texts
    assert "score of (1, 0)s at p and at p+k" in texts


def test_error_for_a_model_without_positions_lists_its_views(folder):
    path, _ = folder("none")
    _, message, code = regard("-m", path)
    assert code == 2
    assert message == (
        f"regard: {path} has no positions (model.positions=none): "
        "its views are regard view attention and curves\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length", 1], "--length must be at least 2, not 1: positions are compared"),
        (["--length", 0], "--length must be at least 2, not 0: positions are compared"),
        (["--d-model", 7], "--d-model must be even, not 7: sinusoids come in sine and cosine pairs"),
        (["--d-model", 0], "--d-model must be at least 2, not 0"),
        (["--base", 1], "--base must be above 1, not 1: wavelengths grow by this factor"),
        (["--base", "nan"], "--base must be finite, not nan"),
        (["--length", 10**6], "--length 1000000 of 512 features is too large for a picture: use at most 65536 positions"),
        (["--out", "a.pdf"], "--out a.pdf: write NAME.png or NAME.svg (both files are written)"),
        (["-m", "nowhere"], "nowhere: no such folder (expected a model folder or box:NAME)"),
        (["-m", "nowhere", "--base", 5], "-m and --base cannot be combined: a model has its own"),
        (["-m", "nowhere", "--d-model", 4], "-m and --d-model cannot be combined: a model has its own"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused_in_one_line(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    assert regard(*options) == ("", f"regard: {message}\n", 2)
    assert not any(tmp_path.iterdir())


def test_weights_without_the_table_that_the_configuration_names_are_refused(folder):
    path, model = folder("learned")
    weights = dict(model.state_dict())
    del weights["decoder.positions.weight"]
    save_file(weights, path / "model.safetensors")
    _, message, code = regard("-m", path)
    assert (message, code) == (
        f"regard: {path}: decoder.positions.weight is nothing but the model needs [20, 12]\n", 2,
    )  # fmt: skip


def test_length_beyond_the_learned_table_is_refused(folder):
    path, _ = folder("learned")
    _, message, code = regard("-m", path, "--length", 21)
    assert (message, code) == (
        f"regard: --length 21: the learned table of {path} has 20 rows\n",
        2,
    )


@pytest.mark.parametrize(("n", "at"), [(2, [0, 1]), (3, [0, 1, 2]), (256, [0, 64, 128, 192])])
def test_compared_positions_exist_in_the_shortest_table(n, at):
    assert places(n) == at
