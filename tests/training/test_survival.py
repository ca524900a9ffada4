"""Runs survive failures: kill -9, signals, NaN, full memory, full disks, lost processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import regard
from regard.errors import InputError, TrainingFailed
from regard.tasks.train import train_config as train
from regard.tasks.translate import Translate
from regard.training import trainer as loop
from regard.training.checkpoint import Checkpoints, digest
from regard.training.losses import token_loss

SRC = str(Path(__file__).parents[2] / "src")


def weights(run):
    return load_file(run / "model.safetensors")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def metrics(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timing = ("tokens_per_second", "fraction_of_peak", "seconds")
    return [{k: v for k, v in line.items() if k not in timing} for line in lines]


def command(config, out, *more):
    """The command line of a configuration."""
    sets = [
        f"--set={section}.{name}={value}"
        for section, names in {
            "model": ["encoder_layers", "decoder_layers", "d_model", "heads", "d_ff"],
            "data": ["vocabulary_size"],
            "training": ["steps", "batch_tokens", "validate_every", "checkpoint_every", "keep",
                         "average", "accumulate"],
            "decoding": ["max_length"],
        }.items()
        for name in names
        for value in [getattr(getattr(config, section), name)]
    ]  # fmt: skip
    return [
        "-m", "regard", "train", "--task", "translate", "--preset", "tiny", "--train",
        *config.data.train, "--valid", *config.data.valid, "--out", str(out), *sets, *more,
    ]  # fmt: skip


def environment(**more):
    return {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1", **more}


# Trains in forked children, so that a kill does not require a new start of Python and torch. Some
# children are killed after a random time; others kill themselves while they write a checkpoint.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from regard import files
from regard.config.sections import Config
from regard.tasks.train import train_config as train

out, config = Path(sys.argv[1]), Config.load(Path(sys.argv[2]))
kills, random = 0, random.Random(5)
inside = ["sync_file", "sync_folder", "replace"]

def die_at(name, call):
    module = os if name == "replace" else files
    real, calls = getattr(module, name), [0]
    def wrapped(*arguments):
        calls[0] += 1
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    setattr(module, name, wrapped)

for attempt in range(200):
    child = os.fork()
    if child == 0:
        if attempt % 2:
            die_at(inside[attempt // 2 % 3], random.randint(3, 16))
        train(config, out, resume=True, quiet=True)
        os._exit(0)
    if attempt % 2 == 0:
        deadline = time.time() + random.uniform(0.1, 0.8)
        while time.time() < deadline and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.01)
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            print("kills", kills); sys.exit(0)
    try:
        _, status = os.waitpid(child, 0)
    except ChildProcessError:
        print("kills", kills); sys.exit(0)
    if status == 0:
        print("kills", kills); sys.exit(0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    kills += 1
"""


def test_repeatedly_killed_run_ends_with_the_same_weights(configure, tmp_path):
    config = configure(training={"steps": 500, "validate_every": 125, "checkpoint_every": 10})
    train(config, tmp_path / "uninterrupted", quiet=True)
    (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path / "killed"), str(tmp_path / "config.yaml")],
        env=environment(), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[1]) >= 10, done.stdout
    assert same(weights(tmp_path / "killed"), weights(tmp_path / "uninterrupted"))
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "uninterrupted")
    assert not list((tmp_path / "killed").rglob(".tmp-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_signal_saves_the_state_and_prints_how_to_resume(number, configure, tmp_path):
    config = configure(training={"steps": 4000, "validate_every": 4000, "checkpoint_every": 4000})
    out = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, *command(config, out)],
        env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (out / "metrics.jsonl").exists():
        time.sleep(0.05)
        assert child.poll() is None, child.stderr.read()
    time.sleep(0.5)
    child.send_signal(number)
    printed = child.stderr.read()
    assert child.wait(60) == 130, printed
    assert f"regard train --resume --out {out}" in printed
    assert "Traceback" not in printed
    [checkpoint] = list((out / "checkpoints").iterdir())
    stopped = int(checkpoint.name.removeprefix("step-"))
    assert 0 < stopped < 4000

    end = stopped + 5
    shorter = configure(training={"steps": end, "validate_every": 4000, "checkpoint_every": 4000})
    train(shorter, out, resume=True, quiet=True)
    train(shorter, tmp_path / "at once", quiet=True)
    assert same(weights(out), weights(tmp_path / "at once"))


def test_damaged_checkpoint_is_reported_and_does_not_change_the_result(configure, tmp_path, capsys):
    config = configure()
    train(config, tmp_path / "whole", quiet=True)
    train(configure(training={"steps": 18}), tmp_path / "hurt", quiet=True)
    for step in (16, 18):
        path = tmp_path / "hurt" / "checkpoints" / f"step-{step}" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    train(config, tmp_path / "hurt", resume=True)
    printed = capsys.readouterr().err
    assert "step-18/model.safetensors is damaged" in printed.replace("\n", "")
    assert same(weights(tmp_path / "hurt"), weights(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("model", "norm_first", False), ("data", "max_length", 99), ("data", "share", 0.9),
        ("training", "seed", 2), ("training", "batch_tokens", 299),
    ],
)  # fmt: skip
def test_edited_option_in_the_run_folder_is_refused(section, name, value, configure, tmp_path):
    train(configure(training={"steps": 4}), tmp_path / "run", quiet=True)
    path = tmp_path / "run/config.yaml"
    values = yaml.safe_load(path.read_text())
    before, values[section][name] = values[section][name], value
    values["training"]["steps"] = 8
    path.write_text(yaml.safe_dump(values))
    message = rf"{section}\.{name} is {value}, but the run was trained with {before}: restore it"
    with pytest.raises(InputError, match=message):
        train(None, tmp_path / "run", resume=True, quiet=True)


def test_options_that_do_not_change_the_weights_may_be_edited(configure, tmp_path, corpus):
    train(configure(training={"steps": 4}), tmp_path / "run", quiet=True)
    moved = [str(shutil.copy(file, f"{file}.moved")) for file in corpus[0]]
    path = tmp_path / "run/config.yaml"
    values = yaml.safe_load(path.read_text())
    values["data"]["train"] = moved
    values["training"] |= {"steps": 8, "validate_every": 3, "checkpoint_every": 2, "patience": 9}
    path.write_text(yaml.safe_dump(values))
    train(None, tmp_path / "run", resume=True, quiet=True)
    assert Checkpoints(tmp_path / "run").steps()[-1] == 8


def test_a_run_of_an_earlier_version_resumes_to_the_same_weights(configure, tmp_path):
    """Its state has only the options of the model, and its config.yaml has the old name `compile`."""
    train(configure(training={"steps": 8}), tmp_path / "whole", quiet=True)
    train(configure(training={"steps": 4}), tmp_path / "run", quiet=True)
    path = tmp_path / "run/config.yaml"
    path.write_text(path.read_text().replace("  cuda_graphs:", "  compile:"))
    path = tmp_path / "run/checkpoints/step-4/state.json"
    state = json.loads(path.read_text())
    del state["checksum"]
    state["model"] = state.pop("config")["model"]
    path.write_text(json.dumps({**state, "checksum": digest(state)}))
    train(configure(training={"steps": 8}), tmp_path / "run", resume=True, quiet=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))
    assert "  cuda_graphs: true" in (tmp_path / "run/config.yaml").read_text()


def spoil(monkeypatch, bad):
    """Make the loss of the training steps in `bad`, counted from 1, NaN. Returns a list with an item
    for each step."""
    steps = []

    def spoiled(model, batch, smoothing=0.0, r_drop=0.0):
        loss, likelihood = token_loss(model, batch, smoothing, r_drop)
        if model.training:
            steps.append(1)
            loss = loss * float("nan") if len(steps) in bad else loss
        return loss, likelihood

    monkeypatch.setattr(Translate, "loss", staticmethod(spoiled))
    return steps


def test_steps_without_a_finite_loss_are_dropped_and_counted(configure, tmp_path, monkeypatch):
    spoil(monkeypatch, (3, 4))
    train(configure(training={"steps": 8}), tmp_path / "run", quiet=True)
    state = json.loads((tmp_path / "run/checkpoints/step-8/state.json").read_text())
    assert state["dropped"] == 2
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


@pytest.mark.parametrize("bad", [(), (3, 4), (4, 5, 8), (24,)], ids=str)
def test_metrics_that_are_read_one_step_late_are_the_same(bad, configure, tmp_path, monkeypatch):
    """As on a GPU, where the metrics of a step are read while the next one runs."""
    steps = spoil(monkeypatch, bad)
    for name, late in (("at once", 0), ("late", 1)):
        monkeypatch.setitem(loop.PENDING, "cpu", late)
        steps.clear()
        train(configure(), tmp_path / name, quiet=True)
    assert same(weights(tmp_path / "late"), weights(tmp_path / "at once"))
    assert metrics(tmp_path / "late") == metrics(tmp_path / "at once")
    state = json.loads((tmp_path / "late/checkpoints/step-24/state.json").read_text())
    assert state["dropped"] == len(bad)


def test_run_that_reads_metrics_late_stops_after_several_nan_losses(
    configure, tmp_path, monkeypatch
):
    spoil(monkeypatch, range(7, 99))
    monkeypatch.setitem(loop.PENDING, "cpu", 1)
    with pytest.raises(TrainingFailed, match=r"NaN or infinity in 6 consecutive steps"):
        train(configure(training={"validate_every": 1000}), tmp_path / "run", quiet=True)
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-12" / "model.safetensors")
    good = load_file(tmp_path / "run" / "checkpoints" / "step-8" / "model.safetensors")
    assert same(saved, good)


def test_run_stops_after_several_nan_losses_and_saves_the_valid_state(
    configure, tmp_path, monkeypatch
):
    spoil(monkeypatch, range(7, 99))
    config = configure(training={"validate_every": 1000})
    with pytest.raises(
        TrainingFailed, match=r"NaN or infinity in 5 consecutive steps.*learning_rate"
    ):
        train(config, tmp_path / "run", quiet=True)
    monkeypatch.setattr(Translate, "loss", staticmethod(token_loss))
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-11" / "model.safetensors")
    good = load_file(tmp_path / "run" / "checkpoints" / "step-8" / "model.safetensors")
    assert same(saved, good)  # the weights of step 6, since 7 to 11 changed nothing
    train(config, tmp_path / "run", resume=True, quiet=True)  # the run can be resumed


def test_rows_are_split_if_memory_runs_out(configure, tmp_path, monkeypatch, capsys):
    def limited_memory(model, batch, smoothing=0.0, r_drop=0.0):
        if model.training and len(batch.target) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return token_loss(model, batch, smoothing, r_drop)

    monkeypatch.setattr(Translate, "loss", staticmethod(limited_memory))
    train(configure(training={"steps": 30}), tmp_path / "run")  # several epochs, so short rows too
    printed = capsys.readouterr().err
    assert printed.count("out of memory: rows are cut into 2 pieces from now on") == 1
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_full_disk_is_reported_and_the_run_can_be_resumed(configure, tmp_path, monkeypatch):
    from regard.training import checkpoint

    real, calls = checkpoint.checksum, []

    def full(path):
        calls.append(1)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        return real(path)

    monkeypatch.setattr(checkpoint, "checksum", full)
    with pytest.raises(TrainingFailed, match=r"is full; the newest checkpoint is step 4; free"):
        train(configure(), tmp_path / "full", quiet=True)
    assert [p.name for p in (tmp_path / "full" / "checkpoints").iterdir()] == ["step-4"]
    monkeypatch.setattr(checkpoint, "checksum", real)
    train(configure(), tmp_path / "full", resume=True, quiet=True)
    train(configure(), tmp_path / "roomy", quiet=True)
    assert same(weights(tmp_path / "full"), weights(tmp_path / "roomy"))


def torchrun(processes, config, out, *more):
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes),
         "--master-port", str(29500 + os.getpid() % 2000), *command(config, out, *more)],
        env=environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_number_of_processes_does_not_change_the_weights(configure, tmp_path):
    alone = configure(training={"accumulate": 2, "steps": 12})
    together = configure(training={"steps": 8})
    train(alone, tmp_path / "alone", quiet=True)
    done = torchrun(2, together, tmp_path / "pair")
    assert done.returncode == 0, done.stderr[-3000:]
    # One process continues from step 8 with two rows per step.
    longer = configure(training={"steps": 10})
    train(longer, tmp_path / "pair", resume=True, quiet=True)
    # Then two processes continue; both must use the new last step.
    done = torchrun(2, configure(training={"steps": 12}), tmp_path / "pair", "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    for step in (8, 12):
        alone_weights, pair_weights = (load_file(tmp_path / run / f"checkpoints/step-{step}/model.safetensors")
                    for run in ("alone", "pair"))  # fmt: skip
        for name, expected in alone_weights.items():
            torch.testing.assert_close(pair_weights[name], expected, rtol=1e-3, atol=1e-5)


def test_run_ends_and_can_be_resumed_after_losing_a_process(configure, tmp_path):
    config = configure(training={"steps": 4000, "validate_every": 4000, "checkpoint_every": 20})
    out = tmp_path / "run"
    parent = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port",
         str(31500 + os.getpid() % 2000), *command(config, out)],
        env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list(out.glob("checkpoints/step-*")):
        time.sleep(0.1)
        assert parent.poll() is None, parent.stderr.read()
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    os.kill(int(children[1]), signal.SIGKILL)
    assert parent.wait(120) != 0
    newest = max(int(path.name[5:]) for path in out.glob("checkpoints/step-*"))
    shorter = configure(
        training={"steps": newest + 2, "validate_every": 4000, "checkpoint_every": 20}
    )
    train(shorter, out, resume=True, quiet=True)
    assert (out / "model.safetensors").exists()


def test_folder_that_is_not_a_run_is_not_changed(configure, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    for resume in (False, True):
        with pytest.raises(InputError, match="exists and is not a run: choose a different folder"):
            train(configure(), tmp_path / "thesis", resume=resume, quiet=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


def test_unwritable_folder_is_refused_before_the_data_is_read(configure, tmp_path):
    config = configure()
    for path in config.data.train:
        Path(path).unlink()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is not a folder"):
        train(config, tmp_path / "file/run", quiet=True)


def test_error_in_the_data_leaves_no_folder(configure, tmp_path):
    with pytest.raises(InputError, match="training.batch_tokens=10 is less than the longest"):
        train(configure(training={"batch_tokens": 10}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def flip(path):
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name",
    ["best.safetensors", *(f"checkpoints/step-12/{file}" for file in ("model.safetensors", "state.json", ""))],
)  # fmt: skip
def test_damage_that_may_change_the_final_weights_requires_force(name, configure, tmp_path, capsys):
    """Steps 12, 16 and 20 are averaged; the damaged checkpoint is one of them, but not the newest."""
    run = tmp_path / "run"
    train(configure(training={"steps": 20}), run, quiet=True)
    before = (run / "model.safetensors").read_bytes()
    flip(run / name) if (run / name).is_file() else shutil.rmtree(run / name)
    with pytest.raises(
        InputError, match=r"(damaged|not a complete checkpoint).*by resuming with force"
    ) as refused:
        train(None, run, resume=True, quiet=True)
    assert ("step-12" if "/" in name else name) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert (run / "model.safetensors").read_bytes() == before
    train(None, run, resume=True, force=True)
    lines = capsys.readouterr().err.replace("\n", "")
    assert "continuing without it (force)" in lines
    assert regard.load(run).config.training.steps == 20


def test_damage_to_a_checkpoint_that_is_not_averaged_is_ignored(configure, tmp_path):
    """With 22 steps, checkpoints 12, 16 and 20 are averaged, but not checkpoint 8."""
    run = tmp_path / "run"
    train(configure(training={"steps": 22, "keep": 5}), run, quiet=True)
    before = weights(run)
    flip(run / "checkpoints/step-8/model.safetensors")
    train(None, run, resume=True, quiet=True)
    assert same(weights(run), before)


@pytest.mark.parametrize("name", ["metrics.jsonl", "README.md"])
def test_invalid_utf8_in_metrics_or_card_does_not_prevent_resuming(name, configure, tmp_path):
    run = tmp_path / "run"
    train(configure(training={"steps": 6}), run, quiet=True)
    with (run / name).open("ab") as file:
        file.write(b"My notes: caf\xe9\n")
    train(configure(training={"steps": 8}), run, resume=True, quiet=True)
    assert metrics(run)[-1]["step"] == 8
    card = (run / "README.md").read_bytes()
    assert b"- trained 8 steps" in card
    assert b"- trained 6 steps" not in card
    assert (b"caf\xe9" in card) == (name == "README.md")


def test_second_process_in_a_run_folder_is_refused(configure, tmp_path):
    """A second process is refused while the first one trains, and accepted after it was killed."""
    out, config = tmp_path / "run", configure(training={"steps": 4000, "validate_every": 4000})
    first = subprocess.Popen(
        [sys.executable, *command(config, out)], env=environment(), stderr=subprocess.DEVNULL
    )
    try:
        while not (out / "checkpoints/step-4").exists():
            time.sleep(0.05)
            assert first.poll() is None
        holder = rf"{out} is in use by another process \(PID {first.pid}\)"
        with pytest.raises(InputError, match=holder):
            train(None, out, resume=True, quiet=True)
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()
    steps = max(Checkpoints(out).steps()) + 1
    shorter = configure(training={"steps": steps, "validate_every": 4000})
    train(shorter, out, resume=True, quiet=True)
    train(shorter, tmp_path / "alone", quiet=True)
    assert same(weights(out), weights(tmp_path / "alone"))
    assert metrics(out) == metrics(tmp_path / "alone")
    assert not (out / ".lock").exists()


def test_one_of_two_processes_that_start_the_same_run_is_refused(configure, tmp_path):
    out, config = tmp_path / "run", configure(training={"steps": 8})
    both = [
        subprocess.Popen(
            [sys.executable, *command(config, out)],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ends = sorted((child.wait(), child.stderr.read()) for child in both)
    assert [code for code, _ in ends] == [0, 2]
    assert ends[1][1].count("regard: ") == 1
    assert "Errno" not in ends[1][1]
    train(config, tmp_path / "alone", quiet=True)
    assert metrics(out) == metrics(tmp_path / "alone")
    assert same(weights(out), weights(tmp_path / "alone"))


def test_missing_model_card_is_written_again(configure, tmp_path):
    run = tmp_path / "run"
    train(configure(training={"steps": 5}), run, quiet=True)
    (run / "README.md").unlink()
    train(configure(training={"steps": 6}), run, resume=True, quiet=True)
    assert "trained 6 steps" in (run / "README.md").read_text()


def test_resume_refuses_changed_options_and_data(configure, tmp_path):
    config = configure(training={"steps": 5})
    train(config, tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match="already contains a run: continue it with"):
        train(config, tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match=r"training.clip is 1.0 in the run at .* but 2.0 here"):
        train(configure(training={"clip": 2.0}), tmp_path / "run", resume=True, quiet=True)
    with pytest.raises(InputError, match="there is nothing to resume"):
        train(None, tmp_path / "nowhere", resume=True, quiet=True)
    with (
        Path(config.data.train[0]).open("a") as source,
        Path(config.data.train[1]).open("a") as target,
    ):
        source.write("More.\n")
        target.write("Mehr.\n")
    with pytest.raises(InputError, match="the training files are not the ones"):
        train(None, tmp_path / "run", resume=True, quiet=True)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
@pytest.mark.parametrize("value", ["", "x", "-1", "9" * 5000, "1.5"])
def test_invalid_environment_variable_of_torchrun_is_refused(
    name, value, configure, tmp_path, monkeypatch
):
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"the environment variable {name} is .* not a number"):
        train(configure(), tmp_path / "run", quiet=True)


def test_run_with_an_edited_model_option_is_not_resumed(configure, tmp_path):
    """The option changes the positions but no shape, so the weights could be loaded."""
    run = tmp_path / "run"
    train(configure(training={"steps": 4}), run, quiet=True)
    config = (run / "config.yaml").read_text()
    assert "position_base: 10000.0" in config
    (run / "config.yaml").write_text(config.replace("position_base: 10000.0", "position_base: 50"))
    with pytest.raises(InputError, match=r"model.position_base is 50.0, but the run was trained"):
        train(None, run, resume=True, quiet=True)
    (run / "config.yaml").write_text(config)
    train(None, run, resume=True, quiet=True)
