"""Callbacks: the values that they receive, how they end a run, and that they do not affect it."""

import json
import threading

import pytest
import torch
from safetensors.torch import load_file

from regard.tasks.train import train_config
from regard.training import trainer as loop
from regard.training.callbacks import Callbacks


class Recorder:
    """A logger in the style of MLflow and Weights & Biases, with a stand-in for their client."""

    def __init__(self, client):
        self.client = client

    def on_start(self, run):
        self.client.append(("start", run.step, run.steps, run.config.task))

    def on_step(self, step):
        metrics = {"loss": step.loss, "learning_rate": step.learning_rate}
        self.client.append(("step", step.step, metrics, step.tokens, step.gradient_norm))

    def on_validation(self, result):
        self.client.append(("validation", result.step, dict(result.scores), result.best))

    def on_end(self, result):
        self.client.append(("end", result.step, dict(result.scores)))


class LearningRateFinder:
    """A learning-rate range test (Smith, 2017): the rate rises linearly from 0 during the warm-up,
    and training ends when the loss diverges."""

    def __init__(self, divergence=1.5):
        self.rates, self.losses, self.divergence = [], [], divergence

    def on_step(self, step):
        self.rates.append(step.learning_rate)
        self.losses.append(step.loss)
        return step.skipped or step.loss > self.divergence * min(self.losses)

    def suggestion(self):
        """A tenth of the rate at which the loss was lowest."""
        return self.rates[self.losses.index(min(self.losses))] / 10


def run(config, out, **options):
    return train_config(config, out, quiet=True, device="cpu", **options)


def test_logger_receives_every_step_and_does_not_change_the_weights(configure, tmp_path):
    events = []
    scores = run(configure(), tmp_path / "logged", callbacks=Callbacks([Recorder(events)]))
    run(configure(), tmp_path / "plain")
    plain, logged = (
        load_file(tmp_path / name / "model.safetensors") for name in ("plain", "logged")
    )
    assert all(torch.equal(plain[name], logged[name]) for name in plain)
    assert events[0] == ("start", 0, 24, "translate")
    assert [event[1] for event in events if event[0] == "step"] == list(range(1, 25))
    assert [event[1] for event in events if event[0] == "validation"] == [10, 20, 24]
    assert events[-1] == ("end", 24, scores)
    lines = [json.loads(x) for x in (tmp_path / "logged/metrics.jsonl").read_text().splitlines()]
    first = next(event for event in events if event[0] == "step")
    assert first[2] == {"loss": lines[0]["loss"], "learning_rate": lines[0]["learning_rate"]}
    assert first[3] > 0
    assert first[4] == pytest.approx(lines[0]["gradient"], abs=1e-4)


def test_a_learning_rate_finder_ends_the_run_when_the_loss_diverges(configure, tmp_path):
    steps = 150
    config = configure(
        model={"dropout": 0.0},
        training={"steps": steps, "warmup": steps, "learning_rate": 10.0, "validate_every": 1000},
    )
    finder = LearningRateFinder()
    run(config, tmp_path / "run", callbacks=Callbacks([finder]))
    assert 1 < len(finder.losses) < steps
    assert finder.rates == sorted(finder.rates)
    assert 0 < finder.suggestion() < 1
    assert (tmp_path / "run/model.safetensors").exists()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("method", ["on_step", "on_validation"])
def test_callback_that_returns_true_ends_the_run(method, late, configure, tmp_path, monkeypatch):
    if late:  # as on a GPU
        monkeypatch.setitem(loop.PENDING, "cpu", 1)
    config = configure(training={"validate_every": 7, "checkpoint_every": 100})
    stop = Callbacks(**{method: lambda info: info.step == 7})
    scores = run(config, tmp_path / "run", callbacks=stop)
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    last = 7  # a validation reads the metrics of its step, also where they arrive late
    assert lines[-1]["step"] == last
    assert scores["loss"] == lines[-1]["loss"]
    assert (tmp_path / f"run/checkpoints/step-{last}").is_dir()
    run(config, tmp_path / "run", resume=True)
    run(config, tmp_path / "whole")
    resumed, whole = (
        load_file(tmp_path / name / "checkpoints/step-24/model.safetensors")
        for name in ("run", "whole")
    )
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.parametrize("error", [KeyError("own"), OSError("network"), RuntimeError("bug")])
def test_exception_of_a_callback_is_raised_after_the_state_is_saved(error, configure, tmp_path):
    def fail(info):
        if info.step == 5:
            raise error

    with pytest.raises(type(error)) as raised:
        run(configure(), tmp_path / "run", callbacks=Callbacks(on_step=fail))
    assert raised.value is error
    assert (tmp_path / "run/checkpoints/step-5").is_dir()
    assert not (tmp_path / "run/model.safetensors").exists()


def test_training_works_in_a_thread(configure, tmp_path):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(run(configure(training={"steps": 2}), tmp_path / "run"))
    )
    thread.start()
    thread.join()
    assert "bleu" in results[0]
