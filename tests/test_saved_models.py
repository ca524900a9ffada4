"""Models and runs that an earlier version saved still load, predict and resume.

tests/fixtures/make.py wrote the files with the version before issue 18. The comparison is not bit
for bit, because other CPUs choose other kernels, which add floats in a different order.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.ops.cpu import build

FIXTURES = Path(__file__).parent / "fixtures"
TASKS = ("translate", "classify", "generate", "fill", "embed")
# With the same kernels the weights are bit-equal; with the kernels of older CPUs they differ by
# 3e-8. The resumed steps change most of them by more than 1e-3.
WEIGHTS = 1e-5


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_model_gives_the_same_predictions(task, call):
    expected = json.loads((FIXTURES / task / "expected.json").read_text(encoding="utf-8"))
    verb, *words = expected["words"]
    code, out, err = call(verb, "--model", FIXTURES / task, *words)
    assert code == 0, err
    assert_close([json.loads(line) for line in out.splitlines()], expected["output"])


def assert_close(value: object, expected: object) -> None:
    """Equal, except that floats may differ by 1e-5."""
    if isinstance(expected, dict):
        assert isinstance(value, dict)
        assert expected.keys() <= value.keys()  # a later version may report more
        for key in expected:
            assert_close(value[key], expected[key])
    elif isinstance(expected, list):
        assert isinstance(value, list)
        assert len(value) == len(expected)
        for pair in zip(value, expected, strict=True):
            assert_close(*pair)
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, rel=1e-5, abs=1e-5)
    else:
        assert value == expected


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A copy of the unfinished run, in a folder with its training files."""
    shutil.copytree(FIXTURES / "run", tmp_path / "run")
    for name in ("train.en", "train.de"):
        shutil.move(tmp_path / "run" / name, tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Path("run")


@pytest.mark.skipif(build.library("training") is None, reason="PyTorch draws another dropout mask")
def test_an_unfinished_run_resumes_to_the_same_weights(run, call):
    code, _, err = call("train", "--resume", "--out", run, "--device", "cpu", "--quiet")
    assert code == 0, err
    weights = load_file(run / "model.safetensors")
    expected = load_file(run / "expected.safetensors")
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            weights[name], tensor, rtol=0, atol=WEIGHTS, msg=lambda text, n=name: f"{n}: {text}"
        )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = json.loads((run / "expected.json").read_text())["metrics"]
    assert [line["step"] for line in lines] == [line["step"] for line in metrics]
    assert lines[-1]["final"] == metrics[-1]["final"] == "mean of 2 checkpoints"


def test_the_tolerance_is_small_beside_what_the_resumed_steps_change():
    before = load_file(FIXTURES / "run/checkpoints/step-6/model.safetensors")
    after = load_file(FIXTURES / "run/expected.safetensors")
    changes = torch.cat([(after[name] - before[name]).flatten() for name in after])
    assert changes.abs().median() > 100 * WEIGHTS
