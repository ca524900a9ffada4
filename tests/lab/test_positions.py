"""`regard lab positions`: the measurements equal independent computations, deviations from theory are
detected, and a model learns order only with positions."""

import csv
import json
import math
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import command
from regard import Transformer
from regard.lab.common import memory
from regard.lab.common.synthetic import small_encoder
from regard.lab.positions import order_task, sinusoids
from regard.lab.positions.order_task import (
    MODEL,
    SHIFT,
    TESTED,
    TRAINED,
    best_blind,
    beyond,
    change_by_order,
    map_errors,
    position_kinds,
    shifted,
    train_kind,
)
from regard.lab.positions.sinusoids import (
    compare_all,
    decay,
    fit_map,
    linear_map,
    linear_maps,
    map_error,
    needed_memory,
    wavelengths,
)


def paper(positions, d_model, base):
    """The formula of section 3.5, element by element."""
    return np.array([
        [(math.cos if i % 2 else math.sin)(p / base ** (i // 2 * 2 / d_model)) for i in range(d_model)]
        for p in positions
    ])  # fmt: skip


def by_name(quantities):
    return {quantity.what: quantity for quantity in quantities}


# ---- the sinusoids ----------------------------------------------------------------------


def test_linear_map_in_closed_form_shifts_every_position_by_k():
    for offset in (1, 7, 1000):
        moved = paper([0, 3, 5000], 12, 50.0) @ linear_map(offset, 12, 50.0).numpy()
        assert moved == pytest.approx(
            paper([offset, 3 + offset, 5000 + offset], 12, 50.0), abs=1e-9
        )


def test_least_squares_fits_a_map_to_sinusoids_but_not_to_random_rows():
    rows = torch.from_numpy(paper(range(80), 8, 100.0))
    matrix, left_out = fit_map(rows, 5)
    assert left_out.tolist() == list(range(2, 75, 4))
    assert map_error(matrix, rows[left_out], rows[left_out + 5]) < 1e-9
    assert torch.allclose(matrix, linear_map(5, 8, 100.0), atol=1e-8), "80 positions say it all"
    rows = torch.randn(80, 8, dtype=torch.float64)
    matrix, left_out = fit_map(rows, 5)
    assert map_error(matrix, rows[left_out], rows[left_out + 5]) > 0.8


def test_a_map_fitted_on_few_positions_of_many_features_is_wrong_beyond_them():
    computed = by_name(linear_maps(32, 128, 10_000.0))
    assert computed["M_k by formula: error beyond"].agrees
    assert computed["M_k fitted: error between"].agrees
    assert computed["M_k fitted: error beyond"].measured > 0.1
    assert not computed["M_k fitted: error beyond"].agrees
    assert computed["independent rows of 96"].theory == 96
    assert computed["independent rows of 96"].measured < 96


@pytest.mark.parametrize(("size", "base"), [(2, 100.0), (4, 30.0), (16, 10_000.0)])
def test_nearest_positions_are_the_minimum_over_all_pairs(monkeypatch, size, base):
    monkeypatch.setattr(sinusoids, "POSITIONS", (16, 48, 128))
    nearest, deviation = compare_all(size, base)
    assert deviation < 1e-12
    for computed, count in zip(nearest, (16, 48, 128), strict=True):
        rows = paper(range(count), size, base)
        apart = np.linalg.norm(rows[:, None] - rows, axis=-1) + 9 * np.eye(count)
        p, q = np.unravel_index(apart.argmin(), apart.shape)
        assert computed.positions == count
        assert computed.distance == pytest.approx(apart.min(), rel=1e-6)
        assert computed.offset == abs(p - q) or apart[0, computed.offset] == pytest.approx(
            apart.min()
        )
        assert computed.agrees


def test_dot_products_that_depend_on_the_position_are_detected(monkeypatch):
    monkeypatch.setattr(sinusoids, "POSITIONS", (16, 48))
    monkeypatch.setattr(
        sinusoids,
        "encodings",
        lambda start, end, size, base: torch.randn(end - start, size).double(),
    )
    nearest, deviation = compare_all(8, 100.0)
    assert deviation > 0.1
    assert not any(computed.agrees for computed in nearest)


def test_wavelengths_go_from_two_pi_to_almost_base_times_two_pi():
    computed = by_name(wavelengths(256, 512, 10_000.0))
    assert all(quantity.agrees for quantity in computed.values())
    assert computed["shortest wavelength"].measured == pytest.approx(6.2832, abs=1e-4)
    assert computed["longest wavelength"].measured == pytest.approx(60_611.5, abs=0.1)
    whole = sum(2 * math.pi * 10_000 ** (2 * i / 512) <= 256 for i in range(256))
    assert computed["pairs with a whole wave in 256"].measured == whole == 104


@pytest.mark.parametrize("base", [100.0, 10_000.0])
def test_the_dot_product_falls_with_the_logarithm_of_k(base):
    rows = paper(range(256), 512, base)
    products = rows @ rows[0] / (rows[0] @ rows[0])
    computed = by_name(decay(256, 512, base))
    assert computed["k where it is below half"].measured == np.argmax(products < 0.5)
    assert computed["k after which it first rises"].measured == np.argmax(np.diff(products) > 0)
    law = np.arange(2, min(255, int(base / 4)) + 1)
    growth = np.polyfit(np.log(law), products[law], 1)[0]
    assert computed["its gradient over ln k"].measured == pytest.approx(growth)
    assert computed["its gradient over ln k"].theory == pytest.approx(-1 / math.log(base))
    assert all(quantity.agrees in (True, None) for quantity in computed.values())


def test_report_states_that_the_logarithmic_law_fails_for_few_pairs():
    computed = by_name(decay(256, 8, 10_000.0))
    assert computed["PE(0)·PE(k) minus sum of cosines"].agrees
    assert computed["k where it is below half"].agrees is False


# ---- the task ---------------------------------------------------------------------------


def test_target_of_every_position_is_the_token_some_positions_before():
    random = np.random.default_rng(0)
    tokens, where, answers = shifted(random, 40)
    assert where.tolist() == list(range(SHIFT, 40))
    assert answers.tolist() == tokens[: 40 - SHIFT].tolist()
    tokens, where, answers = beyond(random, 100)
    assert where.tolist() == list(range(TRAINED, 100))
    assert answers.tolist() == tokens[TRAINED - SHIFT : 100 - SHIFT].tolist()


def test_best_accuracy_without_order_is_that_of_the_most_frequent_other_token(monkeypatch):
    monkeypatch.setattr(order_task, "TEST_TOKENS", 60_000)
    random, right = np.random.default_rng(5), []
    for _ in range(6000):
        tokens = random.integers(0, 16, 10)
        for i in range(SHIFT, 10):
            counts = np.bincount(np.delete(tokens, i), minlength=16)
            right.append(tokens[i - SHIFT] == counts.argmax())
    assert best_blind(10, 1) == pytest.approx(np.mean(right), abs=0.01)


def test_shuffling_changes_the_output_only_with_positions():
    for kind, options in position_kinds([100.0]).items():
        torch.manual_seed(1)
        model = Transformer(small_encoder({**MODEL, **options}))
        change = change_by_order(model, 1)
        assert change < 1e-5 if kind == "none" else change > 1e-3, kind


def test_untrained_learned_table_fits_a_linear_map_no_better_than_chance():
    model = Transformer(small_encoder({**MODEL, "positions": "learned"}))
    computed = map_errors(model, [100.0], 1)
    assert computed["sinusoidal 100"] < 1e-9
    assert computed["learned"] > 1
    assert computed["chance"] > 1


def test_rotary_positions_learn_order_and_no_positions_cannot(monkeypatch):
    monkeypatch.setattr(order_task, "TEST_TOKENS", 4096)
    kinds = position_kinds([100.0])
    watched = []
    rotary, _ = train_kind("rotary", kinds["rotary"], 1, 200, None, "cpu", watched.append)
    none, model = train_kind("none", kinds["none"], 1, 200, None, "cpu", watched.append)
    assert rotary.steps == none.steps == 200
    assert len(watched) == 400
    assert rotary.right[TRAINED] > 0.9
    assert none.right[TRAINED] < best_blind(TRAINED, 1) + 0.03
    assert set(rotary.right) == set(TESTED)
    assert set(rotary.beyond) == set(TESTED[1:])
    assert change_by_order(model, 2) < 1e-5


# ---- the command ------------------------------------------------------------------------


regard = partial(command.regard, "lab", "positions")


SIZES = ["--length", 24, "--d-model", 8, "--base", 20, 300, "--steps", 2, "--seed", 1, 2]


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sinusoids, "POSITIONS", (16, 64))
        patch.setattr(order_task, "TEST_TOKENS", 1024)
        yield


@pytest.fixture(scope="module")
def measured(small, tmp_path_factory):
    """The folder, and the output of the command."""
    folder = tmp_path_factory.mktemp("positions") / "lab"
    out, err, code = regard(*SIZES, "--device", "cpu", "--out", folder)
    assert code == 0, err
    return folder, out, err


def test_printed_report_has_theory_beside_measurement(measured):
    _, out, err = measured
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "shortest wavelength 20 6.283 6.283 yes" in lines
    assert "d_model base of 16 of 64 agrees" in lines
    assert "positions 64 128 256 512 of 128 of 512" in lines
    assert "chance 6.2 6.2 6.2 6.2 6.2 6.2" in lines
    for kind in ("sinusoidal 20", "sinusoidal 300", "learned", "rotary", "none"):
        assert any(line.startswith(f"{kind} ") and line.count("±") == 6 for line in lines), kind
    assert "The model without positions is still below the best accuracy without order." in out
    assert "trained 10 of 10: none, seed 2:" in err
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("written"))


def test_files_contain_the_printed_results(measured, small, tmp_path):
    folder, _, _ = measured
    names = {path.name for path in folder.iterdir()}
    pictures = {
        f"{name}.{end}" for name in ("positions", "positions-training") for end in ("png", "svg")
    }
    assert names == pictures | {"positions.json", "positions.csv", "regard-positions"}
    stored = json.loads((folder / "positions.json").read_text())
    out, err, code = regard(*SIZES, "--device", "cpu", "--out", folder, "--json", "--quiet")
    assert (err, code) == ("", 0)
    message = json.loads(out)
    assert [path.rpartition("/")[2] for path in message["files"]] == [
        "positions.json", "positions.csv", "positions.png", "positions.svg",
        "positions-training.png", "positions-training.svg",
    ]  # fmt: skip
    for run in [*stored["training"]["runs"], *message["training"]["runs"]]:
        del run["seconds"]
    assert message == stored, "not repeatable"
    rows = list(csv.DictReader((folder / "positions.csv").open()))
    accuracies = [row for row in rows if row["what"] == "correct" and row["kind"] == "rotary"]
    runs = [run for run in stored["training"]["runs"] if run["kind"] == "rotary"]
    assert {(row["seed"], row["length"]): float(row["measured"]) for row in accuracies} == {
        (str(run["seed"]), n): right for run in runs for n, right in run["right"].items()
    }
    near = [row for row in rows if row["part"] == "uniqueness"]
    assert len(near) == 2 * 3 * 2  # bases, widths up to 8, positions
    assert len(stored["dot_product"]["20"]) == 24


def test_pictures_have_titles_and_labels(measured):
    folder, _, _ = measured

    def words(name):
        tree = ElementTree.fromstring((folder / name).read_bytes())
        return {"".join(n.itertext()).strip() for n in tree.iter() if n.tag.endswith("}text")}

    assert {"sinusoidal, base 20: 24 × 8", "d_model 4, base 300", "base 300, p = 0"} <= words(
        "positions.svg"
    )
    training = words("positions-training.svg")
    assert {
        "sinusoidal 300",
        "learned",
        "rotary",
        "none",
        "chance",
        "best without order",
    } <= training
    assert {"correct, %", "tokens", "512", "Positions from 64 on, never trained"} <= training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length", 1], "--length must be at least 2, not 1: positions are compared"),
        (["--d-model", 5], "--d-model must be even, not 5: sinusoids come in sine and cosine pairs"),
        (["--base", 100, 1], "--base must be above 1, not 1: wavelengths grow by this factor"),
        (["--base", 100, 100], "--base 100 100: give up to 4 different ones"),
        (["--base", 100, 100.00001], "--base 100 100: give up to 4 different ones"),
        (["--base", "1e308"], "--base must be at most 1e+100, not 1e+308: wavelengths grow by this factor"),
        (["--base", 2, 3, 4, 5, 6], "--base 2 3 4 5 6: give up to 4 different ones"),
        (["--steps", 0], "--steps must be at least 1, not 0"),
        (["--seconds", 0], "--seconds must be above 0, not 0"),
        (["--seconds", "nan"], "--seconds must be finite, not nan"),
        (["--seconds", 2, "--steps", 2], "--seconds and --steps cannot be combined"),
        (["--seed", 1, 1], "--seed 1 1: a value is duplicated"),
        (["--seed", -1], "--seed must be at least 0, not -1"),
        (["--seed", 2**32], "--seed must be at most 4,294,967,295, not 4294967296"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused_before_any_work(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    assert regard(*options) == ("", f"regard: {message}\n", 2)
    assert not any(tmp_path.iterdir())


def test_folder_of_another_program_stays_unchanged(tmp_path):
    (tmp_path / "theirs").touch()
    _, message, code = regard("--out", tmp_path)
    assert (message, code) == (
        f"regard: {tmp_path} exists and was not created by regard lab positions: choose a different --out\n", 2,
    )  # fmt: skip


def test_folder_that_cannot_be_created_is_refused_before_the_measurement(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "regard.lab.positions.measure.measure_sinusoids", lambda *_: pytest.fail("begun")
    )
    (tmp_path / "file").touch()
    _, message, code = regard("--out", tmp_path / "file" / "out")
    assert (message, code) == (
        f"regard: {tmp_path}/file/out/regard-positions cannot be written: "
        f"{tmp_path}/file is not a folder\n", 2,
    )  # fmt: skip


def test_request_that_exceeds_memory_is_refused_with_the_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda device: 10**9)
    _, message, code = regard("--length", 512, "--d-model", 8192, "--out", tmp_path / "new")
    needed = needed_memory(512, 8192) / 1e9
    assert code == 2
    assert message.startswith(
        f"regard: --length 512 with --d-model 8192 needs about {needed:.1f} GB but 1.0 GB are free on the cpu"
    )


def test_time_limit_ends_each_training(small, tmp_path):
    out, err, code = regard(
        "--length", 8, "--d-model", 2, "--base", 20, "--seconds", 0.05, "--seed", 1,
        "--device", "cpu", "--quiet", "--out", tmp_path / "lab",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "0.05 seconds, 1 seed." in out
