"""Runs that were interrupted or are still training: `load`, every verb, and `regard finish`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard import InputError
from regard.errors import RegardWarning
from regard.tasks.train import finish_run, train_config
from regard.training import finish
from regard.training.callbacks import Callbacks
from regard.training.checkpoint import read_tensors, to_bytes
from regard.training.lock import FolderLock


class StopHere(Exception):
    """Ends a run like an error of the user's program."""


def interrupt_at(step):
    def stop(info):
        if info.step == step:
            raise StopHere

    return Callbacks(on_step=stop)


@pytest.fixture
def interrupted(configure, tmp_path):
    """A run of 24 steps that was interrupted at step 18; the validation was at step 10."""
    with pytest.raises(StopHere):
        train_config(configure(), tmp_path / "run", quiet=True, callbacks=interrupt_at(18))
    return tmp_path / "run"


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_interrupted_run_is_loaded_with_its_best_weights(interrupted):
    with pytest.warns(RegardWarning, match=r"using its best weights \(step 10\)$") as warned:
        model = regard.load(interrupted, "cpu")
    assert warned[0].filename == __file__
    assert same(model.transformer.state_dict(), read_tensors(interrupted / "best.safetensors"))
    assert isinstance(model.translate(["The cat slept."])[0], str)
    assert model.scores == {}


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_newest_checkpoint_is_used_without_best_weights(damage, interrupted):
    best = interrupted / "best.safetensors"
    best.unlink() if damage == "missing" else best.write_bytes(best.read_bytes()[:-4])
    shutil.rmtree(interrupted / "checkpoints/step-18/")
    newest = interrupted / "checkpoints/step-16"
    with pytest.warns(RegardWarning, match=r"using its newest checkpoint \(step 16\)$"):
        model = regard.load(interrupted, "cpu")
    assert same(model.transformer.state_dict(), load_file(newest / "model.safetensors"))


def test_run_without_weights_is_refused(interrupted):
    (interrupted / "best.safetensors").unlink()
    shutil.rmtree(interrupted / "checkpoints")
    with pytest.raises(InputError, match="run has no weights yet"):
        regard.load(interrupted)


def test_every_verb_accepts_an_interrupted_run(interrupted, corpus, tmp_path, call):
    note = f"regard: {interrupted} has not finished training: using its best weights (step 10)\n"
    valid = corpus[1]
    for words in (
        ["translate", "-m", interrupted, "The cat slept."],
        ["evaluate", "-m", interrupted, "--data", *valid, "--samples", 100, "--quiet"],
        ["view", "attention", "-m", interrupted, "The cat.", "--out", tmp_path / "a.svg"],
        ["pack", interrupted, "--out", tmp_path / "packed"],
    ):
        code, _, err = call(*words)
        assert (code, err) == (0, note)
    assert call("info", interrupted)[0] == 0
    assert regard.load(tmp_path / "packed").config.task == "translate"


def test_finish_writes_the_final_weights_and_the_run_can_be_resumed(
    interrupted, configure, tmp_path, call
):
    code, out, err = call("finish", interrupted, "--json")
    assert code == 0, err
    scores = json.loads(out)
    assert scores.pop("folder") == str(interrupted)
    lines = [json.loads(x) for x in (interrupted / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 18
    assert scores["loss"] == lines[-1]["loss"]
    card = (interrupted / "README.md").read_text()
    assert "trained 18 steps" in card
    assert "longest input: 256 tokens" in card
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers = {name: score for name, score in scores.items() if not isinstance(score, str)}
        assert regard.load(interrupted).scores == numbers
    train_config(None, interrupted, resume=True, quiet=True)
    train_config(configure(), tmp_path / "whole", quiet=True)
    assert same(
        *(load_file(run / "model.safetensors") for run in (interrupted, tmp_path / "whole"))
    )
    assert "trained 24 steps" in (interrupted / "README.md").read_text()


def test_finish_needs_no_training_data(interrupted, corpus):
    for name in corpus[0]:
        Path(name).unlink()
    assert "bleu" in finish_run(interrupted, quiet=True, device="cpu")


def test_finish_refuses_a_run_that_is_training_or_has_no_weights(interrupted, tmp_path, call):
    lock = FolderLock()
    lock.acquire(interrupted)
    code, out, err = call("finish", interrupted)
    lock.release(interrupted)
    assert (code, out) == (2, "")
    assert err.startswith(f"regard: {interrupted} is in use by another process (PID {os.getpid()})")
    assert err.count("\n") == 1
    code, _, err = call("finish", tmp_path)
    assert (code, err) == (2, f"regard: {tmp_path} is not a run: it has no config.yaml\n")


def test_a_run_can_be_loaded_at_any_time_while_it_trains(configure, tmp_path):
    """The best weights and the checkpoints are replaced at every second step."""
    config = configure(
        training={"steps": 60, "validate_every": 2, "checkpoint_every": 1, "keep": 1, "average": 1}
    )
    out, results = tmp_path / "run", []
    started, ended = threading.Event(), threading.Event()

    def load_repeatedly():
        started.wait(60)
        while not ended.is_set():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    regard.load(out, "cpu")
                results.append("")
            except Exception as error:  # noqa: BLE001
                results.append(repr(error))

    reader = threading.Thread(target=load_repeatedly)
    reader.start()
    try:
        begin = Callbacks(on_validation=lambda _: started.set())
        train_config(config, out, quiet=True, device="cpu", callbacks=begin)
    finally:
        started.set()
        ended.set()
        reader.join()
    assert len(results) > 3
    assert set(results) == {""}


KILLED = """
import os, signal, sys
from regard.tasks.train import train_config
from regard.training import finish
real = os.replace
def replace(source, target):
    real(source, target)
    if str(target) == os.path.join(sys.argv[1], "labels.json"):
        os.kill(os.getpid(), signal.SIGKILL)
finish.os.replace = replace
train_config(None, sys.argv[1], resume=True, quiet=True)
"""


def test_a_kill_while_a_classifier_finishes_again_leaves_a_usable_run(tmp_path):
    rows = [(f"good {i}", "yes") for i in range(20)] + [(f"bad {i}", "no") for i in range(20)]
    settings = {"model": {"d_model": 16, "heads": 2, "d_ff": 16}, "data.vocabulary_size": 300}
    run = tmp_path / "run"
    regard.train("classify", [{"text": t, "label": label} for t, label in rows],
                 [{"text": t, "label": label} for t, label in rows], out=run, preset="tiny",
                 steps=2, settings=settings, quiet=True, device="cpu")  # fmt: skip
    labels = json.loads((run / "labels.json").read_text())
    # a temperature that differs from the fitted one
    (run / "labels.json").write_text(json.dumps(labels | {"temperature": 7.0}))
    weights = load_file(run / "model.safetensors")
    checksums = finish.file_checksums(run)
    (run / "model.safetensors").write_bytes(to_bytes(weights, files=checksums))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(run)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (run / "model.safetensors").exists()
    with pytest.warns(RegardWarning, match="has not finished training"):
        assert regard.load(run, "cpu").classify(["good 1"])[0].label in ("yes", "no")
    finish_run(run, quiet=True, device="cpu")
    assert not list(run.glob(".tmp-*"))
    assert regard.load(run, "cpu").task.temperature == labels["temperature"]
