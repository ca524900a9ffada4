"""`regard train` from text files to a model that translates."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import command
import regard
from regard import InputError
from regard.config.sections import Config
from regard.errors import TrainingFailed
from regard.tasks.configuration import make_config
from regard.tasks.train import train_config as train
from regard.training import finish
from regard.training.checkpoint import read_tensors, to_bytes
from regard.training.finish import Validation
from regard.training.optimiser import learning_rate


def test_run_writes_a_complete_model_folder(configure, tmp_path):
    scores = train(configure(), tmp_path / "run", quiet=True)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"config.yaml", "tokenizer.json", "model.safetensors", "metrics.jsonl",
                     "README.md", "checkpoints", "best.safetensors"}  # fmt: skip
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed")
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "valid_loss" in line] == [10, 20, 24]
    assert lines[-1]["final"] in ("last", "best", "mean of 3 checkpoints")
    model = regard.load(tmp_path / "run")
    translations = model.translate(["The dog saw the cat.", "", "The old man slept."])
    assert len(translations) == 3
    assert translations[1] == ""
    assert model.translate("The old man slept.") == translations[2]


def test_training_learns(configure, tmp_path):
    config = configure(
        model={"d_model": 64, "d_ff": 128, "heads": 4, "dropout": 0.0},
        training={"steps": 120, "warmup": 40, "validate_every": 60},
    )
    train(config, tmp_path / "run", quiet=True)
    lines = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "learning_rate" in line]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    "options",
    [
        {"data": {"shared_vocabulary": False}, "model": {"tie_embeddings": "target-output"}},
        {"data": {"vocabulary": "character"}},
        {"data": {"vocabulary": "byte"}, "training": {"batch_tokens": 600}},
        {"data": {"bpe_dropout": 0.1}},
        {"training": {"r_drop": 1.0}},
        {"training": {"optimiser": "adamw", "weight_decay": 0.01, "schedule": "cosine"}},
        {"training": {"dtype": "bfloat16"}},
        {"training": {"dtype": "float32"}},
        {"model": {"attention_dropout": 0.1, "feed_forward_dropout": 0.1, "norm_first": False}},
    ],
    ids=str,
)
def test_resumed_run_with_any_option_gives_the_same_weights(options, configure, tmp_path):
    config = configure(**{**options, "training": {"steps": 9, **options.get("training", {})}})
    shorter = configure(**{**options, "training": {**options.get("training", {}), "steps": 6}})
    train(config, tmp_path / "at once", quiet=True)
    train(shorter, tmp_path / "in two parts", quiet=True)
    train(config, tmp_path / "in two parts", resume=True, quiet=True)
    from safetensors.torch import load_file

    whole, halves = (load_file(tmp_path / name / "checkpoints/step-9/model.safetensors")
                     for name in ("at once", "in two parts"))  # fmt: skip
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_patience_ends_a_run_without_improvement(configure, tmp_path):
    config = configure(training={"steps": 400, "validate_every": 2, "patience": 3,
                                 "learning_rate": 1e-9})  # fmt: skip
    train(config, tmp_path / "run", quiet=True)
    steps = [
        json.loads(x)["step"] for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    ]
    assert steps[-1] < 400


def test_from_fine_tunes_with_the_same_vocabulary(configure, tmp_path):
    train(configure(training={"steps": 6}), tmp_path / "first", quiet=True)
    train(
        configure(training={"steps": 2}),
        tmp_path / "second",
        start_from=tmp_path / "first",
        quiet=True,
    )
    first, second = (tmp_path / name / "tokenizer.json" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    other = configure(training={"steps": 2}, model={"d_model": 32})
    with pytest.raises(InputError, match=r"first: .* is \[.*\] but the model needs \[.*\]"):
        train(other, tmp_path / "third", start_from=tmp_path / "first", quiet=True)


@pytest.mark.parametrize("name", ["learning_rate", "r_drop", "similarity_scale", "clip"])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_nan_and_infinity_are_refused_as_options(name, value, configure):
    message = f"training.{name} must be a finite number, not {value}"
    with pytest.raises(InputError, match=message):
        configure(training={name: float(value)})


@pytest.mark.parametrize("held_out", [True, False])
def test_weights_with_nan_or_infinity_are_not_written(held_out, configure, tmp_path):
    """The learning rate is infinite in float32, so that the first step makes all weights infinite."""
    data = {} if held_out else {"valid": []}
    config = configure(data=data, training={"steps": 1, "warmup": 1, "learning_rate": 1e39})
    run = tmp_path / "run"
    with pytest.raises(
        TrainingFailed, match="NaN or infinity: no model is written; train again"
    ) as error:
        train(config, run, quiet=True)
    assert "\n" not in str(error.value)
    assert "--resume" not in str(error.value)
    assert not (run / "model.safetensors").exists()


def test_best_weights_are_used_if_the_last_weights_are_infinite(configure, tmp_path):
    run = tmp_path / "run"
    train(configure(training={"steps": 4, "validate_every": 2}), run, quiet=True)
    good = (run / "best.safetensors").read_bytes()
    best = read_tensors(run / "best.safetensors")
    broken = configure(training={"steps": 1, "warmup": 1, "learning_rate": 1e39})
    with pytest.raises(TrainingFailed):
        train(broken, tmp_path / "broken", quiet=True)
    (tmp_path / "broken" / "best.safetensors").write_bytes(good)
    train(None, tmp_path / "broken", resume=True, quiet=True)
    saved = read_tensors(tmp_path / "broken" / "model.safetensors")
    assert saved.keys() == best.keys()
    assert all(torch.equal(saved[name], best[name]) for name in best)


class Favourite:
    """A validation that prefers the weights of one candidate: the call with this number."""

    def __init__(self, favourite):
        self.favourite, self.calls, self.weights = favourite, 0, None

    def __call__(self, model):
        now = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.calls += 1
        if self.calls == self.favourite:
            self.weights = now
        preferred = self.weights is not None and all(
            torch.equal(now[n], self.weights[n]) for n in now
        )
        loss = float(sum(tensor.double().abs().sum() for tensor in now.values()))
        return {"loss": loss, "score": float(preferred), "samples": []}


@pytest.mark.parametrize(
    ("number", "name"), [(1, "last"), (2, "mean of 3 checkpoints"), (3, "best")]
)
def test_written_weights_are_those_of_the_best_candidate(
    number, name, configure, tmp_path, monkeypatch
):
    """The validation prefers each candidate in turn."""
    run = tmp_path / "run"
    train(configure(training={"steps": 12, "validate_every": 5}), run, quiet=True)
    last = read_tensors(run / "checkpoints/step-12/model.safetensors")
    best = read_tensors(run / "best.safetensors")
    scale = {name: tensor * 1.5 for name, tensor in best.items()}  # different from the last weights
    (run / "best.safetensors").write_bytes(to_bytes(scale))
    favourite = Favourite(number)
    monkeypatch.setattr(Validation, "__call__", lambda _, model: favourite(model))
    train(None, run, resume=True, quiet=True)
    written = read_tensors(run / "model.safetensors")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["final"] == name
    assert all(torch.equal(written[n], favourite.weights[n]) for n in written)
    assert all(torch.equal(written[n], last[n]) for n in written) == (name == "last")
    assert all(torch.equal(written[n], scale[n]) for n in written) == (name == "best")


def test_run_fails_if_the_written_weights_differ_from_the_chosen_ones(
    configure, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    config = configure(training={"steps": 4, "average": 1})
    right = finish.to_bytes
    monkeypatch.setattr(
        finish,
        "to_bytes",
        lambda tensors, files: right({n: t * 1.1 for n, t in tensors.items()}, files),
    )
    with pytest.raises(
        TrainingFailed, match="the validation loss of the chosen weights is .* no model is written"
    ) as error:
        train(config, run, quiet=True)
    assert "\n" not in str(error.value)
    assert not (run / "model.safetensors").exists()
    assert not list(run.glob(".tmp-*"))
    monkeypatch.undo()
    train(None, run, resume=True, quiet=True)
    assert regard.load(run).translate("The dog slept.")


def test_loss_with_bpe_dropout_is_divided_by_the_actual_tokens(configure, tmp_path):
    """BPE dropout gives more and shorter tokens, but the mean loss of a token is similar."""
    losses = []
    for dropout in (0.0, 0.5):
        config = configure(data={"bpe_dropout": dropout}, training={"steps": 1})
        train(config, tmp_path / str(dropout), quiet=True)
        first = json.loads((tmp_path / str(dropout) / "metrics.jsonl").read_text().splitlines()[0])
        losses.append(first["loss"])
    assert abs(losses[0] - losses[1]) < 0.15 * losses[0]


def test_from_uses_the_newest_checkpoint_of_an_unfinished_run(configure, tmp_path):
    train(configure(training={"steps": 6}), tmp_path / "first", quiet=True)
    (tmp_path / "first" / "model.safetensors").unlink()
    train(
        configure(training={"steps": 2}),
        tmp_path / "second",
        start_from=tmp_path / "first",
        quiet=True,
    )
    (tmp_path / "first" / "checkpoints").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"neither model.safetensors nor a complete checkpoint"):
        train(configure(), tmp_path / "third", start_from=tmp_path / "first", quiet=True)


def test_command_line_overrides_the_configuration_file(corpus, tmp_path):
    (source, target), valid = corpus
    (tmp_path / "c.yaml").write_text(
        f"task: translate\ndata: {{train: [{source}, {target}], valid: [{', '.join(valid)}]}}\n"
        "training: {steps: 3, batch_tokens: 300}\nmodel: {d_model: 16, heads: 2, d_ff: 16}\n"
    )
    done = run_train("--config", tmp_path / "c.yaml", "--preset", "tiny", "--out", tmp_path / "run",
                     "--set", "training.steps=2", "--set", "data.vocabulary_size=300")  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = Config.load(tmp_path / "run" / "config.yaml")
    assert (config.training.steps, config.training.batch_tokens) == (2, 300)
    assert config.data.valid == valid
    (tmp_path / "c.yaml").write_text("task: translate\ntraining:\n")
    done = run_train("--config", tmp_path / "c.yaml", "--out", tmp_path / "other")
    assert done.returncode == 2
    assert "training must be a section of options, not None" in done.stderr


def test_command_in_the_card_is_quoted_for_the_shell(corpus, tmp_path):
    (source, target), _ = corpus
    (tmp_path / "my data").mkdir()
    files = [tmp_path / "my data" / "it's.en", tmp_path / "my data" / "it's.de"]
    for old, new in zip((source, target), files, strict=True):
        new.write_bytes(Path(old).read_bytes())
    words = ["train", "--task", "translate", "--train", *files, "--preset", "tiny", "--out", tmp_path / "my run",
             "--quiet", "--set", "training.steps=1", "--set", "data.vocabulary_size=300"]  # fmt: skip
    assert command.regard(*words) == ("", "", 0)
    card = (tmp_path / "my run" / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^- command: `(.*)`$", card, re.MULTILINE)
    assert shlex.split(line) == ["regard", *map(str, words)]


def test_card_of_a_model_from_python_has_no_command(configure, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["program.py", "--own", "options"])
    train(configure(training={"steps": 1}), tmp_path / "run", quiet=True)
    card = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "\n- trained from Python\n" in card
    assert "--own" not in card


def test_learning_rate_equals_the_formula_of_the_paper():
    config = make_config("translate", "base", {"training": {"warmup": 4000}}).training
    for step in (1, 100, 4000, 50_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert abs(learning_rate(step, config) - paper) < 1e-12


def test_configuration_is_restored_from_yaml(configure, tmp_path):
    config = configure(training={"learning_rate": 1e-3})
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    assert Config.load(tmp_path / "config.yaml") == config


def run_train(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "regard", "train", *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_trained_model_translates_lines_and_is_evaluated(configure, tmp_path):
    config = configure(training={"steps": 2})
    train(config, tmp_path / "run", quiet=True)

    def verb(*arguments, stdin=b""):
        return subprocess.run(
            [sys.executable, "-m", "regard", *map(str, arguments)],
            input=stdin, capture_output=True, timeout=120,
        )  # fmt: skip

    done = verb("translate", "-m", tmp_path / "run", stdin=b"The dog slept.\n\nDas geht.")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 3
    assert done.stdout.split(b"\n")[1] == b""
    done = verb("translate", "-m", tmp_path / "run", stdin=b"fine\ncaf\xe9\n")
    assert (done.returncode, done.stderr) == (
        2,
        b"regard: standard input:2: not UTF-8 (byte 0xe9 at column 4)\n",
    )
    done = verb("translate", "-m", tmp_path, "text")
    assert done.returncode == 2
    assert b"is not a model: it has no config.yaml" in done.stderr
    done = verb("evaluate", "-m", tmp_path / "run", "--data", *config.data.valid, "--json")
    scores = json.loads(done.stdout)
    assert (scores["task"], scores["examples"]) == ("translate", 12)
    assert scores["intervals"].keys() == {"bleu", "chrf"}
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed")
    done = verb("info", tmp_path / "run", "--json")
    line = json.loads(done.stdout)
    assert line["scores"]["final"] in ("last", "best")
    assert line["parameters"] == sum(line["parts"].values())


def spoil(path, damage):
    text = Path(path).read_bytes().split(b"\n")
    if damage == "short":
        text = [*text[:-2], b""]
    elif damage == "bytes":
        text[4] = b"caf\xe9"
    Path(path).write_bytes(b"\n".join(text))


@pytest.mark.parametrize(
    ("damage", "message"),
    [("short", "train.de"), ("bytes", "train.de:5: not UTF-8"), ("gone", "train.de")],
)
def test_damaged_file_prints_one_line_and_no_folder_is_written(damage, message, corpus, tmp_path):
    (source, target), valid = corpus
    if damage == "gone":
        Path(target).unlink()
    else:
        spoil(target, damage)
    out = tmp_path / "run"
    done = run_train(
        "--task", "translate", "--train", source, target, "--valid", *valid, "--out", out
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "translat"], "unknown task 'translat'; did you mean 'translate'?"),
        (["--task", "translate", "--set", "training.step=3"], "did you mean 'training.steps'?"),
        (["--task", "translate", "--set", "trainig.steps=3"], "did you mean 'training'?"),
        (["--task", "translate", "--set", "training.steps=0"], "training.steps must be at least 1"),
        (
            ["--task", "translate", "--set", "training.average=9"],
            "training.average=9 needs as many",
        ),
        (
            ["--task", "translate", "--set", "training.weight_decay=1"],
            "use training.optimiser=adamw",
        ),
        (
            [
                "--task",
                "translate",
                "--set",
                "data.shared_vocabulary=false",
                "--set",
                "model.tie_embeddings=all",
            ],
            "data.shared_vocabulary=false and model.tie_embeddings=all cannot be combined",
        ),
        (["--task", "translate", "--set", "training.tensorboard=true"], "pip install tensorboard"),
        (
            ["--task", "translate", "--set", "data.vocabulary=words"],
            "unknown data.vocabulary 'words'",
        ),
    ],
)
def test_invalid_option_prints_one_line(arguments, message, corpus, tmp_path):
    done = run_train(*arguments, "--train", *corpus[0], "--out", tmp_path / "run")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
