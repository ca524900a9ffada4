"""Gradients against torch's own Jacobian, reach against the closed forms, and the command."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import command
from regard.errors import InputError
from regard.lab.common.gradients import (
    SMALLEST,
    decay,
    gradient_norms,
    measure_reach,
    norms,
    reach,
    root_mean_square,
)
from regard.lab.common.layer_kinds import LAYER_KINDS, check_layer_kinds, layer_options, layer_title
from regard.lab.common.recall_training import RecallTraining
from regard.lab.path.measure import factor, geometric_mean, measure_model
from regard.text.batching import Packed

CPU = torch.device("cpu")


def make(names=LAYER_KINDS, **changes):
    options = {
        "kinds": list(names), "layers": 2, "d_model": 8, "window": 3, "kernel": 3,
        "seconds": None, "steps": 6, "seeds": [1], "device": "cpu",
    }  # fmt: skip
    return RecallTraining(**{**options, **changes})


# ---- the gradient ------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYER_KINDS)
def test_gradient_norms_equal_the_jacobian(name):
    """Over many random vectors the mean square is the Frobenius norm of torch's Jacobian."""
    model = make().new_model(name, 1).double()
    tokens = np.random.default_rng(1).integers(33, size=7)
    measured = root_mean_square(gradient_norms(model, [tokens] * 3000))

    source, table = torch.from_numpy(tokens), model.table("source")

    def last(x):
        hook = table.register_forward_hook(lambda *_: x / model.config.d_model**0.5)
        out = model.hidden(Packed.of([source]))[-1]
        hook.remove()
        return out

    x = table(source).detach() * model.config.d_model**0.5
    jacobian = torch.autograd.functional.jacobian(last, x)  # [D, n, D]
    expected = jacobian.square().sum((0, 2)).sqrt().flip(0).numpy()
    np.testing.assert_allclose(measured, expected, rtol=0.06)
    assert np.array_equal(measured == 0, expected == 0)


CLOSED = [  # kind, layers, window, kernel -> how far back
    ("restricted", 1, 3, 3, 3), ("restricted", 3, 2, 3, 6), ("restricted", 2, 8, 3, 16),
    ("convolution", 1, 8, 3, 1), ("convolution", 4, 8, 3, 4), ("convolution", 3, 8, 5, 6),
    ("dilated", 1, 8, 3, 1), ("dilated", 2, 8, 3, 4), ("dilated", 3, 8, 3, 13),
    ("dilated", 2, 8, 5, 12), ("feed-forward", 3, 8, 3, 0),
    ("attention", 1, 8, 3, 29), ("lstm", 1, 8, 3, 29), ("gru", 2, 8, 3, 29),
]  # fmt: skip


@pytest.mark.parametrize(("name", "layers", "window", "kernel", "far"), CLOSED)
def test_gradient_is_exactly_zero_beyond_the_closed_form_reach(name, layers, window, kernel, far):
    config = make(layers=layers, window=window, kernel=kernel).config(name)
    assert measure_reach(config, 30, CPU) == far


def test_dilated_convolution_reaches_every_position_within_its_reach():
    model = make(layers=3).new_model("dilated", 1)
    tokens = np.random.default_rng(1).integers(33, size=40)
    assert np.flatnonzero(gradient_norms(model, [tokens])[0]).tolist() == list(range(14))


def test_measurement_does_not_change_the_model():
    model = make().new_model("gru", 1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradient_norms(model, [np.arange(9)])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.output_matrix().dtype == torch.float32
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_underflow_does_not_end_the_path():
    assert reach(np.array([1.0, 0.5, 0.0, 0.0])) == 1
    assert reach(np.array([1.0, 0.5, SMALLEST / 2, 0.0])) == 3


def test_norms_of_very_small_numbers_do_not_underflow():
    np.testing.assert_allclose(norms(np.array([[3e-200, 4e-200], [0, 0]]), 1), [5e-200, 0])


def test_decay_factor_of_an_exponential_is_recovered():
    steps = [1, 2, 4, 8]
    curve = 5 * 0.8 ** np.array(steps)
    assert decay(steps, curve) == pytest.approx(0.8)
    measured = factor(steps, np.stack([curve, 0.9 ** np.array(steps)]))
    assert measured["mean"] == pytest.approx(0.85)
    assert measured["deviation"] == pytest.approx(np.std([0.8, 0.9], ddof=1))
    assert factor(steps, curve[None])["deviation"] is None


def test_means_over_seeds_are_geometric():
    assert geometric_mean(np.array([[1.0, 0.0], [1e-4, 0.0]])) == pytest.approx([1e-2, 0])


def test_recurrence_decays_and_attention_does_not():
    training = make(layers=1, d_model=16)
    distances = [1, 2, 4, 8, 16, 31]
    gru, attention = (
        measure_model(training.new_model(name, 1), 32, distances, 1)
        for name in ("gru", "attention")
    )
    assert 0.5 < decay(distances, gru.recalled) < 0.9
    assert 0.95 < decay(distances, attention.recalled) < 1.05
    assert gru.others.shape == (32,)


# ---- the kinds ---------------------------------------------------------------------------


def test_every_kind_has_an_option_name_and_a_title():
    assert layer_options(window=5)["restricted"] == {"mixer": "attention", "window": 5}
    assert layer_options(kernel=7)["dilated"] == {"mixer": "dilated", "kernel": 7}
    assert [layer_title(name, 5, 7) for name in LAYER_KINDS] == [
        "self-attention", "restricted (r=5)", "LSTM", "GRU", "convolution (k=7)", "dilated (k=7)",
        "feed-forward",
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"unknown kind 'attenton'; did you mean 'attention'"):
        check_layer_kinds(["attenton"])


# ---- the command -------------------------------------------------------------------------


def lab(*words):
    return command.run("lab", *words, "--device", "cpu", "--quiet")


def test_the_command_writes_tables_and_pictures(tmp_path, capsys):
    out = tmp_path / "path"
    options = ["--length", 12, "--d-model", 8, "--steps", 6, "--seed", 1, 2, "--out", out]
    assert lab("path", *options, "--json") == 0
    message = json.loads(capsys.readouterr().out)
    assert message["distances"] == [1, 2, 4, 8, 11]
    assert list(message["kinds"]) == list(LAYER_KINDS)
    for state in ("at initialisation", "after training"):
        reached = {name: kind["states"][state]["reach"] for name, kind in message["kinds"].items()}
        assert reached == {
            "attention": 11, "restricted": 11, "lstm": 11, "gru": 11, "convolution": 2,
            "dilated": 4, "feed-forward": 0,
        }  # fmt: skip
    assert message["kinds"]["convolution"]["states"]["after training"]["recalled"]["gradient"][2:] == [
        0, 0, 0,
    ]  # fmt: skip
    assert message["kinds"]["gru"]["steps"] == [6, 6]
    stored = json.loads((out / "path.json").read_text())
    assert stored == message
    assert stored["files"] == [str(out / f"path.{end}") for end in ("json", "csv", "png", "svg")]
    assert all(Path(name).is_file() for name in stored["files"])
    with (out / "path.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7 * 2 * 5
    assert {row["gradient"] for row in rows if row["kind"] == "feed-forward"} == {"0.0"}
    assert (out / "path.png").read_bytes().startswith(b"\x89PNG")
    assert "restricted (r=8)" in (out / "path.svg").read_text()


def test_table_has_an_uncut_row_for_each_kind(tmp_path, capsys):
    names = ["convolution", "feed-forward"]
    options = ["--length", 256, "--d-model", 8, "--steps", 1, "--seed", 1, "--kinds", *names]
    assert lab("path", *options, "--out", tmp_path / "p") == 0
    message = capsys.readouterr().out
    assert "…" not in message
    rows = [line.split() for line in message.splitlines() if line.startswith("feed-forward")]
    assert rows == [["feed-forward", *["0"] * 9, "0"]] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--length", 2], "--length must be at least 3, not 2"),
        (["--seconds", 0], "--seconds must be above 0, not 0"),
        (["--seconds", "nan"], "--seconds must be finite, not nan"),
        (["--steps", 0], "--steps must be at least 1, not 0"),
        (["--steps", 5, "--seconds", 5], "--seconds and --steps cannot be combined"),
        (["--kinds", "gruu"], "unknown kind 'gruu'; did you mean 'gru'?"),
        (["--kinds", "gru", "gru"], "--kinds gru gru: a value is duplicated"),
        (["--seed", 1, 1], "--seed 1 1: a value is duplicated"),
        (["--seed", -1], "--seed must be at least 0, not -1"),
        (["--layers", 0, "--kernel", 0], "--layers must be at least 1, not 0"),
        (["--layers", 10**9], "--layers must be at most 64, not 1000000000"),
        (["--window", 0], "--window must be at least 1, not 0"),
        (["--window", 2**63], f"--window must be at most 1,000,000, not {2**63}"),
        (["--kernel", 0], "--kernel must be at least 1, not 0"),
        (["--kernel", 10**8], "--kernel must be at most 1,000, not 100000000"),
        (["--d-model", 30], "--d-model must be a multiple of 4, not 30"),
    ],
)
def test_invalid_option_is_one_line_and_no_file_is_written(words, message, tmp_path, capsys):
    assert lab("path", *words, "--out", tmp_path / "path") == 2
    assert capsys.readouterr().err.strip().removeprefix("regard: ") == message
    assert not (tmp_path / "path").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # 2 sequences x (1e6 + 1) tokens x 2 layers x 90 x 64 numbers of 4 bytes
        (
            ["--length", 1_000_000],
            "--length 1000000 with --layers 2, --d-model 64, --kernel 3 needs about 92.2 GB",
        ),
        # 13 layers, and 3^12 / 2 tokens before the one to be recalled
        (
            ["--length", 1_000_000, "--layers", 13, "--kinds", "gru"],
            "--length 1000000 with --layers 13, --d-model 64 needs about 758.2 GB",
        ),
    ],
)
def test_request_that_exceeds_memory_is_refused_with_its_sizes(
    words, message, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("regard.lab.common.memory.available_memory", lambda device: 2_000_000_000)
    assert lab("path", *words, "--out", tmp_path / "path") == 2
    assert f"{message} " in (line := capsys.readouterr().err)
    assert " but 2.0 GB are free on the cpu" in line
    assert not (tmp_path / "path").exists()


def test_memory_estimate_includes_weights_gradients_and_moments():
    training = make(["feed-forward"], layers=1, d_model=8192)
    assert training.needed_memory(3, 1, CPU) > 16 * 4 * 8192**2
    wide = make(["convolution"], layers=1, d_model=2048, kernel=1000)
    assert wide.needed_memory(3, 1, CPU) > 16 * 1000 * 2048**2


def test_folder_of_another_program_is_not_changed(tmp_path, capsys):
    (tmp_path / "letters").write_text("mine")
    assert lab("path", "--out", tmp_path) == 2
    assert "was not created by regard lab path: choose a different --out" in capsys.readouterr().err


def test_folder_that_cannot_be_created_is_refused_before_any_training(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(RecallTraining, "train", lambda *_: pytest.fail("it was trained"))
    assert lab("path", "--out", tmp_path / "file" / "path") == 2
    assert "cannot be written" in capsys.readouterr().err
