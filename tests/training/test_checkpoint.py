"""A checkpoint is complete or absent, and damaged files are reported."""

import pickle
import shutil

import pytest
import torch

from regard import InputError
from regard.training import checkpoint as module
from regard.training.checkpoint import Checkpoints, State, read_tensors


def tensors(value):
    return {"weight": torch.full((3, 2), float(value)), "bias": torch.zeros(2)}


@pytest.fixture
def checkpoints(tmp_path):
    saved = Checkpoints(tmp_path, keep=3, every=10)
    for step in (10, 20, 30):
        saved.save(step, tensors(step), {"exp_avg.weight": torch.ones(3, 2)}, {"best": 1.5})
    return saved


def test_newest_checkpoint_is_restored_exactly(checkpoints):
    state, broken = checkpoints.newest()
    assert (state["step"], state["best"], broken) == (30, 1.5, [])
    assert torch.equal(checkpoints.weights(30)["weight"], tensors(30)["weight"])
    assert torch.equal(checkpoints.optimiser(30)["exp_avg.weight"], torch.ones(3, 2))


def flip_a_bit(path):
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-3] ^= 4
    (path / "model.safetensors").write_bytes(content)


def truncate(path):
    content = (path / "optimiser.safetensors").read_bytes()
    (path / "optimiser.safetensors").write_bytes(content[:-5])


def pickle_instead(path):
    (path / "model.safetensors").write_bytes(pickle.dumps({"weight": 1}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_bit, "model.safetensors is damaged: its checksum does not match"),
        (truncate, "optimiser.safetensors is damaged"),
        (pickle_instead, "model.safetensors is damaged"),
        (lambda path: (path / "state.json").unlink(), "step-30 is not a complete checkpoint"),
        (
            lambda path: (path / "state.json").write_text("{"),
            "step-30 is not a complete checkpoint",
        ),
        (
            lambda path: (path / "state.json").write_text("[]"),
            "step-30 is not a complete checkpoint",
        ),
        (
            lambda path: (path / "model.safetensors").unlink(),
            "step-30 is not a complete checkpoint",
        ),
    ],
)
def test_damaged_checkpoint_is_reported_and_the_previous_one_is_used(damage, message, checkpoints):
    damage(checkpoints.path(30))
    state, broken = checkpoints.newest()
    assert state["step"] == 20
    assert len(broken) == 1
    assert message in broken[0]


def test_newest_is_none_if_all_checkpoints_are_damaged(checkpoints):
    for step in (10, 20, 30):
        flip_a_bit(checkpoints.path(step))
    state, broken = checkpoints.newest()
    assert state is None
    assert len(broken) == 3


def test_renamed_checkpoint_is_not_used(checkpoints):
    shutil.copytree(checkpoints.path(10), checkpoints.path(40))
    state, broken = checkpoints.newest()
    assert state["step"] == 30
    assert "holds step 10" in broken[0]


@pytest.mark.parametrize("function", ["save", "checksum"])
def test_failed_save_leaves_no_files(function, checkpoints, monkeypatch):
    def crash(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, function, crash)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(40, tensors(40), {}, {})
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["step-10", "step-20", "step-30"]


def test_leftovers_of_a_killed_process_are_removed(checkpoints):
    shutil.copytree(checkpoints.path(30), checkpoints.folder / ".tmp-999999999-step-40")
    assert checkpoints.newest()[0]["step"] == 30
    assert not list(checkpoints.folder.glob(".tmp-*"))


def test_old_checkpoints_are_removed_except_those_for_averaging(checkpoints):
    checkpoints.save(37, tensors(37), {}, {})  # saved at a signal, between regular steps
    assert checkpoints.steps() == [10, 20, 30, 37]
    checkpoints.save(40, tensors(40), {}, {})
    assert checkpoints.steps() == [20, 30, 40]
    assert checkpoints.averaged(2, 47) == [30, 40]
    assert checkpoints.averaged(2, 10**13) == [
        10**13 - 10,
        10**13,
    ]  # without listing all earlier steps
    mean = checkpoints.average([30, 40])
    assert torch.equal(mean["weight"], torch.full((3, 2), 35.0))


def test_damaged_later_checkpoint_does_not_replace_a_valid_one(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1, every=10)
    for step in (10, 40):
        checkpoints.save(step, tensors(step), {}, {})
    flip_a_bit(checkpoints.path(40))
    checkpoints.save(20, tensors(20), {}, {})
    assert checkpoints.newest() == (checkpoints.check(20), [])


def test_changed_digit_in_the_state_is_detected(checkpoints):
    path = checkpoints.path(30) / "state.json"
    path.write_text(path.read_text().replace("1.5", "2.5"))
    state, broken = checkpoints.newest()
    assert state["step"] == 20
    assert "state.json is damaged" in broken[0]


def test_damaged_checkpoint_is_replaced_when_its_step_is_saved_again(checkpoints):
    flip_a_bit(checkpoints.path(30))
    checkpoints.save(30, tensors(3), {}, {})
    assert checkpoints.newest()[0]["step"] == 30


def test_file_of_another_format_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(torch.nn.Linear(2, 2)))
    with pytest.raises(InputError, match="is not a valid safetensors file"):
        read_tensors(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", -1), ("rows", 2.5), ("rows", True), ("seconds", "1"), ("seconds", float("inf")),
     ("best", float("nan")), ("best", [1.0]), ("corpus", None), ("waited", 2**63)],
)  # fmt: skip
def test_invalid_value_in_the_state_is_refused(name, value, tmp_path):
    values = {**vars(State()), name: value}
    with pytest.raises(InputError, match=rf"state.json is damaged: {name} is "):
        State.of(values, tmp_path)
    assert State.of(vars(State()), tmp_path) == State()
