"""`regard.train`: training from Python, on rows and on files."""

import gc
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard import InputError
from regard.tasks.configuration import make_config
from regard.tasks.train import finish_run
from regard.text.builtin import builtin_corpus

PAIRS, HELD_OUT = builtin_corpus("train")[:120], builtin_corpus("valid")[:8]
SMALL = {
    "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "heads": 2, "d_ff": 16},
    "data.vocabulary_size": 300,
    "decoding.max_length": 5,
    "training": {"validate_every": 5, "checkpoint_every": 3},
}


def small(train=PAIRS, valid=HELD_OUT, **options):
    """Train a very small translation model."""
    options = {"preset": "tiny", "batch_tokens": 300, "steps": 6, "settings": SMALL, **options}
    return regard.train("translate", train, valid, device="cpu", quiet=True, **options)


def lines(path, texts):
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return path


def test_rows_become_a_model_in_a_temporary_folder(tmp_path):
    model = small()
    assert isinstance(model.translate("The cat slept."), str)
    assert set(model.scores) >= {"loss", "bleu", "chrf"}
    assert [line["step"] for line in model.history if "valid_loss" in line] == [5, 6]
    folder = model.folder
    assert json.loads((folder / "data/train.jsonl").read_text().splitlines()[0]) == {
        "source": PAIRS[0][0],
        "target": PAIRS[0][1],
    }
    saved = model.save(tmp_path / "saved")
    expected = model.translate(["The cat slept."])
    del model
    gc.collect()
    assert not folder.exists()
    assert regard.load(saved).translate(["The cat slept."]) == expected


@pytest.mark.parametrize("kind", ["iterator", "dicts", "one-file", "two-files", "strings"])
def test_every_form_of_data_gives_the_same_model(kind, tmp_path):
    sides = [lines(tmp_path / f"train.{i}", [pair[i] for pair in PAIRS]) for i in (0, 1)]
    held_out = [lines(tmp_path / f"valid.{i}", [pair[i] for pair in HELD_OUT]) for i in (0, 1)]
    table = lines(tmp_path / "train.tsv", ["\t".join(pair) for pair in PAIRS])
    data = {
        "iterator": iter(PAIRS),
        "dicts": [{"source": source, "target": target} for source, target in PAIRS],
        "one-file": table,
        "two-files": tuple(sides),
        "strings": [str(path) for path in sides],
    }[kind]
    valid = [os.fspath(path) for path in held_out] if kind == "strings" else HELD_OUT
    model, expected = small(data, valid, steps=2), small(steps=2)
    assert model.task.tokenizer.fingerprint == expected.task.tokenizer.fingerprint
    if kind in ("iterator", "dicts"):  # the order of the examples depends on the bytes of the file
        ours, theirs = (list(m.transformer.state_dict().values()) for m in (model, expected))
        assert all(map(torch.equal, ours, theirs))


def test_share_of_the_training_data_is_used_for_validation(tmp_path):
    whole, parts = small(valid="10%", steps=2, out=tmp_path / "run"), small(valid=0.1, steps=2)
    assert whole.scores == parts.scores
    assert whole.scores["loss"] > 0
    again = finish_run(tmp_path / "run", quiet=True, device="cpu")
    assert {name: again[name] for name in whole.scores} == whole.scores
    assert not any(isinstance(score, str) for score in whole.scores.values())


def test_texts_and_labels_are_accepted_as_rows():
    texts = [english for english, _ in PAIRS]
    settings = {"model.d_model": 16, "model.heads": 2, "model.d_ff": 16,
                "data.vocabulary_size": 300, "data.max_length": 32}  # fmt: skip
    options = {"preset": "tiny", "steps": 2, "settings": settings, "quiet": True, "device": "cpu"}
    model = regard.train("generate", texts, texts[:5], **options)
    assert model.scores["loss"] > 0
    rows = [{"review": text, "stars": str(i % 2)} for i, text in enumerate(texts)]
    columns = {"text": "review", "label": "stars"}
    model = regard.train("classify", rows, rows[:20], columns=columns, **options)
    assert model.classify(["The cat slept."])[0].label in ("0", "1")


def test_a_configuration_replaces_task_and_preset(tmp_path):
    values = {
        "model": SMALL["model"],
        "data": {"vocabulary_size": 300},
        "training": {"batch_tokens": 300},
    }
    config = make_config("translate", "tiny", values)
    model = regard.train(
        config=config, train=PAIRS, steps=3, dropout=0.0, out=tmp_path / "run", quiet=True,
        device="cpu",
    )  # fmt: skip
    assert (model.config.training.steps, model.config.model.dropout) == (3, 0.0)
    assert (model.scores, model.folder) == ({}, tmp_path / "run")


def test_epochs_become_steps(tmp_path):
    model = small(steps=None, epochs=2, out=tmp_path / "run")
    training = model.config.training
    assert training.epochs == 0
    last = [line for line in model.history if "epoch" in line][-1]
    assert last["step"] <= training.steps
    half = small(steps=None, epochs=0.5).config.training.steps
    assert half == pytest.approx(training.steps / 4, abs=1)
    # The same call again trains no further; more epochs continue the run.
    again = small(steps=None, epochs=2, out=tmp_path / "run", resume=True)
    assert again.config.training.steps == training.steps
    more = small(steps=None, epochs=3, out=tmp_path / "run", resume=True)
    assert more.config.training.steps == pytest.approx(1.5 * training.steps, abs=1)


def test_a_run_resumes_with_its_own_rows(tmp_path):
    small(steps=4, out=tmp_path / "run")
    model = small(steps=6, out=tmp_path / "run", resume=True)
    expected = small(steps=6)
    assert model.translate([HELD_OUT[0][0]]) == expected.translate([HELD_OUT[0][0]])
    assert regard.train(out=tmp_path / "run", resume=True, quiet=True).config == model.config
    with pytest.raises(InputError, match="train is not the data that the run was started with"):
        small(PAIRS[:-1], out=tmp_path / "run", resume=True)
    assert not list(tmp_path.glob(".tmp-*"))


def test_training_starts_from_another_model(tmp_path):
    first = small(out=tmp_path / "first")
    second = regard.train(
        "translate", PAIRS, start_from=tmp_path / "first", steps=1, batch_tokens=300, quiet=True,
        device="cpu",
    )  # fmt: skip
    assert second.config.model == first.config.model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": None}, "task is missing"),
        ({"task": 3}, "task must be the name of a task, not 3"),
        ({"task": "translat"}, "unknown task 'translat'; did you mean 'translate'"),
        ({"train": None}, "train is missing"),
        ({"train": 3}, "the data is .*, not rows"),
        ({"train": []}, "the data is empty"),
        ({"train": ["a", "b"]}, "row 1: a string"),
        ({"train": "missing.tsv"}, "missing.tsv: no such file"),
        ({"steps": 3, "epochs": 1}, "steps and epochs cannot be combined"),
        ({"settings": {"training.step": 3}}, "did you mean 'training.steps'"),
        ({"settings": {"train.steps": 3}}, "unknown section in settings 'train'"),
        ({"settings": {"training": 3}}, "must be a mapping of options"),
        ({"steps": 3, "settings": {"training.steps": 4}}, "differ: pass only one"),
        ({"resume": True}, "out is missing"),
        ({"callbacks": [print]}, "a callback is an object with a method on_start"),
        ({"on_step": 3}, "on_step must be a function, not 3"),
        ({"config": make_config("translate", "tiny", {})}, "cannot be combined with task"),
    ],
    ids=str,
)
def test_invalid_argument_raises_one_line_without_command_line_options(options, message):
    options = {"task": "translate", "train": PAIRS, "preset": "tiny", "quiet": True, **options}
    with pytest.raises(InputError, match=message) as error:
        regard.train(**options)
    assert "\n" not in str(error.value)
    assert "--" not in str(error.value)


def test_a_failure_leaves_no_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InputError):
        small([("only one",)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_a_saved_model_predicts_the_same(dtype, tmp_path):
    model = regard.load(small(out=tmp_path / "run").folder, "cpu", dtype)
    with torch.no_grad():
        model.transformer.output_matrix().mul_(1.5)
    texts = [english for english, _ in HELD_OUT]
    model.save(tmp_path / "saved")
    again = regard.load(tmp_path / "saved", "cpu", dtype)
    if dtype == "auto":
        assert again.translate(texts) == model.translate(texts)
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {
        "config.yaml", "tokenizer.json", "model.safetensors", "metrics.jsonl", "README.md",
    }  # fmt: skip
    assert again.scores == model.scores


def test_save_refuses_a_model_that_cannot_be_loaded(tmp_path):
    model = small(out=tmp_path / "run", steps=1)
    with pytest.raises(InputError, match="exists and is not empty"):
        model.save(tmp_path / "run")
    model.transformer.output_matrix().data[0, 0] = np.nan
    with pytest.raises(InputError, match="contains NaN or infinity"):
        model.save(tmp_path / "nan")
    model.transformer.output_matrix().data[0, 0] = 0.0
    model.transformer.extra = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="extra.* but the model needs nothing"):
        model.save(tmp_path / "other")
    assert [path.name for path in Path(tmp_path).iterdir()] == ["run"]
