"""Scaling of the cost with the length, and the time to the first step: the stored rows."""

import argparse
import os
import sys
import time

import pytest
import torch

from benchmarks.ratios import RatioLog
from benchmarks.scaling import Blocks, Point, backends, by_length, measured, show
from benchmarks.startup import first_step

CPU = torch.device("cpu")
WRITES = "import pathlib, sys, time; run = pathlib.Path(sys.argv[-1]); run.mkdir(); " \
         "(run / 'metrics.jsonl').write_text('{}'); time.sleep(100)"  # fmt: skip


@pytest.fixture
def log(tmp_path):
    options = argparse.Namespace(keep=False, ratios=tmp_path / "ratios.json", dtype="float32")
    return RatioLog("scaling", [], options, "cpu")


def test_exponents_of_the_longer_half_are_stored_beside_theory(log, capsys):
    # the first points are dominated by overhead, like those of short sequences
    points = [Point(n, max(1e-4, 1e-9 * n * n), 100 * n) for n in (128, 256, 1024, 2048, 4096)]
    show("attention", points, (2.0, 1.0), "", log)
    assert [(row.work, row.value, row.peer_value) for row in log.rows] == [
        ("attention: time", 2.0, 2.0), ("attention: memory", 1.0, 1.0),
    ]  # fmt: skip
    assert "at 4,096: 16.78 ms" in capsys.readouterr().out


def test_uncertain_exponent_is_not_stored(log, capsys):
    points = [Point(n, s, None) for n, s in ((1, 1), (2, 9), (4, 1), (8, 20), (16, 2), (32, 30))]
    show("attention", points, (1.0, 1.0), "", log)
    assert log.rows == []
    assert "NOISY" in capsys.readouterr().out


def test_points_beyond_the_time_budget_are_left_out_with_a_message(monkeypatch):
    monkeypatch.setattr("benchmarks.scaling.LENGTHS", [8, 16, 10**6])
    monkeypatch.setattr(
        "benchmarks.scaling.measured", lambda layer, n, size, which: Point(n, 1.0, 1)
    )
    points, left_out = by_length("padded", False, "forward", (CPU, torch.float32), share=100.0)
    assert [point.size for point in points] == [8, 16]
    assert left_out == "from 1,000,000 tokens on left out"


def test_cpu_backends_are_measured_and_the_others_are_named(capsys):
    assert "padded" in backends(CPU)
    assert "cuda is skipped: " in capsys.readouterr().out


def test_blocks_are_measured_unchanged(monkeypatch):
    monkeypatch.setattr("benchmarks.scaling.ENOUGH", 0.0)
    point = measured(Blocks(2, 64, CPU, torch.float32), 256, 2, "training")
    assert point.size == 2
    assert point.seconds > 0


def test_run_is_stopped_after_its_first_step(tmp_path):
    start = time.perf_counter()
    command = [sys.executable, "-c", WRITES]
    seconds = first_step(command, tmp_path / "run", dict(os.environ))
    assert 0 < seconds <= time.perf_counter() - start < 50


def test_a_run_that_ends_without_a_step_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="made no step"):
        first_step([sys.executable, "-c", "pass"], tmp_path / "run", dict(os.environ))
