"""The recall task, its curriculum, and the command that compares the kinds of layer."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import command
from regard.lab.common.layer_kinds import LAYER_KINDS
from regard.lab.common.recall_training import (
    QUERY,
    SYMBOLS,
    RecallModel,
    RecallTraining,
    curriculum_distances,
    recall_example,
    recall_examples,
    tokens_before,
    train_recall,
)
from regard.lab.common.synthetic import SyntheticTask
from regard.lab.recall.measure import QUESTIONS, summary, wilson


def setup(name, **changes):
    options = {
        "kinds": [name], "layers": 1, "d_model": 32, "window": 2, "kernel": 3,
        "seconds": None, "steps": 6, "seeds": [1], "device": "cpu",
    }  # fmt: skip
    return RecallTraining(**{**options, **changes})


# ---- the task and its curriculum ---------------------------------------------------------------


@pytest.mark.parametrize(("length", "distance"), [(2, 1), (9, 1), (9, 5), (9, 8)])
def test_target_is_the_marked_token_at_the_distance_before_the_query(length, distance):
    example = recall_example(np.random.default_rng(1), length, distance)
    marked = np.flatnonzero((example.tokens >= SYMBOLS) & (example.tokens < QUERY))
    assert marked.tolist() == [length - 1 - distance]
    assert example.tokens[-1] == QUERY
    assert example.where.tolist() == [length - 1]
    assert example.targets.tolist() == [example.tokens[marked[0]] - SYMBOLS]


def test_targets_are_equally_probable():
    random = np.random.default_rng(1)
    answers = [recall_examples(1)(random, 6).targets[0] for _ in range(1600)]
    counts = np.bincount(answers, minlength=SYMBOLS)
    assert len(counts) == SYMBOLS
    assert counts.min() > 60


def test_distances_double_up_to_the_farthest_and_include_the_extra_ones():
    assert curriculum_distances(1) == [1]
    assert curriculum_distances(8) == [1, 2, 4, 8]
    assert curriculum_distances(11, [3, 11]) == [1, 2, 3, 4, 8, 11]


@pytest.mark.parametrize(("layers", "kernel", "before"), [(1, 3, 0), (2, 3, 1), (3, 3, 4)])
def test_examples_have_enough_tokens_before_the_marked_one_for_dilated_paths(
    layers, kernel, before
):
    assert tokens_before(layers, kernel, 100) == before
    assert tokens_before(layers, kernel, 2) == min(before, 2)


@pytest.fixture(scope="module")
def window() -> RecallModel:
    """One layer of attention with a window of 2, after a curriculum up to 4 back."""
    training = setup("restricted")
    model = training.new_model("restricted", 1)
    return train_recall(model, [1, 2, 4], 0, steps=90, device="cpu")


def test_curriculum_ends_at_the_reach(window):
    assert window.steps == 90
    assert list(window.learned) == [1, 2]
    assert 0 < window.learned[1] < window.learned[2] < window.seconds
    task = SyntheticTask(recall_examples(0))
    accuracies = [task.accuracy(window.model, t + 1, 400, 9) for t in (1, 2, 3, 4)]
    assert min(accuracies[:2]) > 0.9
    assert max(accuracies[2:]) < 0.2


def test_a_model_that_has_learned_all_distances_trains_until_the_end():
    training, ticks = setup("attention"), []
    trained = train_recall(
        training.new_model("attention", 1), [1, 2], 0, steps=80, device="cpu",
        advance=lambda seconds, steps: ticks.append(steps),
    )  # fmt: skip
    assert list(trained.learned) == [1, 2]
    assert trained.steps == len(ticks) == 80


def test_time_limit_ends_the_curriculum():
    training = setup("gru")
    model = training.new_model("gru", 1)
    trained = train_recall(model, [1], 0, seconds=1e-9, device="cpu")
    assert (trained.steps, trained.learned) == (1, {})


def test_the_models_of_one_seed_start_from_the_same_weights():
    training = setup("gru")
    weights, same, other = (training.new_model("gru", seed).output_matrix() for seed in (1, 1, 2))
    assert torch.equal(weights, same)
    assert not torch.equal(weights, other)


# ---- the report ------------------------------------------------------------------------


def test_interval_is_the_wilson_score_interval():
    # Both ends solve (p - share)^2 = z^2 p (1 - p) / n.
    for right, count in ((0, 256), (20, 256), (256, 256)):
        for p in wilson(right, count):
            assert (p - right / count) ** 2 == pytest.approx(1.96**2 * p * (1 - p) / count)
    low, high = wilson(128, 256)
    assert low < 0.5 < high


def test_accuracy_is_the_mean_over_all_seeds():
    model = setup("gru").new_model("gru", 1)
    learned = [RecallModel(model, 10, 2.0, learned={4: 1.5}), RecallModel(model, 30, 2.0)]
    scores = summary([4], learned, [[QUESTIONS], [QUESTIONS // 4]])
    (entry,) = scores["accuracies"]
    assert entry["accuracy"] == 0.625
    assert entry["seeds"] == [1.0, 0.25]
    assert entry["learned_after_seconds"] == [1.5, None]
    assert (entry["low"], entry["high"]) == wilson(QUESTIONS * 5 // 4, 2 * QUESTIONS)
    assert scores["ms_per_step"] == 100


def lab(*words):
    return command.run("lab", "recall", *words, "--device", "cpu", "--quiet")


def test_the_command_writes_tables_and_pictures(tmp_path, capsys):
    out = tmp_path / "recall"
    options = ["--distances", 24, 1, 3, "--d-model", 8, "--steps", 5, "--seed", 1, 2, "--out", out]
    assert lab(*options, "--json") == 0
    message = json.loads(capsys.readouterr().out)
    assert message["chance"] == 1 / 16
    assert list(message["kinds"]) == list(LAYER_KINDS)
    assert {name: kind["reach"] for name, kind in message["kinds"].items()} == {
        "attention": 25, "restricted": 16, "lstm": 25, "gru": 25, "convolution": 2, "dilated": 4,
        "feed-forward": 0,
    }  # fmt: skip
    for kind in message["kinds"].values():
        assert kind["steps"] == [5, 5]
        assert [entry["distance"] for entry in kind["accuracies"]] == [1, 3, 24]
        for entry in kind["accuracies"]:
            assert 0 <= entry["low"] <= entry["accuracy"] <= entry["high"] <= 1
            assert entry["accuracy"] == pytest.approx(np.mean(entry["seeds"]))
    stored = json.loads((out / "recall.json").read_text())
    assert stored == message
    assert stored["files"] == [str(out / f"recall.{end}") for end in ("json", "csv", "png", "svg")]
    assert all(Path(name).is_file() for name in stored["files"])
    with (out / "recall.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7 * 3 * 2
    assert {row["steps"] for row in rows} == {"5"}
    assert (out / "recall.png").read_bytes().startswith(b"\x89PNG")
    svg = (out / "recall.svg").read_text()
    assert "chance 6.2%" in svg
    assert "restricted (r=8)" in svg


def test_table_has_reach_steps_and_time(tmp_path, capsys):
    options = ["--distances", 1, 64, "--d-model", 8, "--steps", 2, "--kinds", "convolution"]
    assert lab(*options, "--layers", 3, "--seed", 1, "--out", tmp_path / "r") == 0
    message = capsys.readouterr().out
    assert "chance 6.2%" in message
    row = next(
        line for line in message.splitlines() if line.startswith("convolution (k=3)")
    ).split()
    assert row[-3:-1] == ["3", "2"]  # reach, steps


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--distances", 4, 0], "--distances must be at least 1, not 0"),
        (["--distances", 4, 4], "--distances 4 4: a value is duplicated"),
        (["--layers", 0, "--kernel", 0], "--layers must be at least 1, not 0"),
        (["--layers", 10**9], "--layers must be at most 64, not 1000000000"),
        (["--seconds", -1], "--seconds must be above 0, not -1"),
        (["--kinds", "lsmt"], "unknown kind 'lsmt'; did you mean 'lstm'?"),
    ],
)
def test_invalid_option_is_one_line_and_no_file_is_written(words, message, tmp_path, capsys):
    assert lab(*words, "--out", tmp_path / "recall") == 2
    assert capsys.readouterr().err.strip().removeprefix("regard: ") == message
    assert not (tmp_path / "recall").exists()


def test_distances_that_do_not_fit_memory_are_refused_with_the_estimate(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("regard.lab.common.memory.available_memory", lambda device: 2_000_000_000)
    assert lab("--distances", 1_000_000, "--out", tmp_path / "recall") == 2
    sizes = "--distances 1000000 with --layers 2, --d-model 64, --kernel 3"
    assert f"{sizes} needs about 92.2 GB but 2.0 GB" in capsys.readouterr().err


def test_folder_that_cannot_be_created_is_refused_before_any_training(
    tmp_path, capsys, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(RecallTraining, "train", lambda *_: pytest.fail("it was trained"))
    assert lab("--out", tmp_path / "file" / "recall") == 2
    assert "cannot be written" in capsys.readouterr().err
