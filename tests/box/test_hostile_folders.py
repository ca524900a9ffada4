"""Model folders from untrusted sources load or are refused in one line, quickly and in little memory."""

import json
import resource
import shutil
import signal
import subprocess
import sys

import pytest

import regard
from hostile import VARIANTS
from regard import InputError
from regard.training.checkpoint import Checkpoints
from regard.training.model_folder import final_scores
from regard.view.curves import read_curves

SLOW = 10  # seconds until a call counts as a hang
WORST = [
    "config.yaml: alias bomb", "config.yaml: /dev/zero", "config.yaml: sparse", "config.yaml: pipe",
    "model.encoder_layers=10^6", "model.vocabulary_size=10^9", "model.d_model=10^6",
    "tokenizer.json: sparse", "tokenizer.json: lists", "entries: millions of merges",
    "labels.json: commas", "model.safetensors: sparse", "header: lists", "metrics.jsonl: sparse",
    "README.md: one line",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(make):
    """A valid model with a checkpoint, without checksums: an attacker would recompute them."""
    out = make(
        "classify", {"encoder_layers": 1, "d_model": 8, "heads": 2, "d_ff": 8}, ["bad", "good"]
    )
    Checkpoints(out).save(1, {}, {}, {})
    return out


def use(folder, out, everything=True):
    """Read a folder in all ways; returns the messages of the refusals."""

    def run(reader, *arguments):
        try:
            reader(*arguments)
        except InputError as error:
            return str(error)

    readers = [(regard.load, folder, "cpu")]
    if everything:
        readers += [
            (regard.pack, folder, out), (read_curves, folder, "run"), (final_scores, folder),
            (Checkpoints(folder).check, 1),
        ]  # fmt: skip
    return [message for reader, *arguments in readers if (message := run(reader, *arguments))]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_hostile_folder_is_used_or_refused_in_one_line(name, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    VARIANTS[name](tmp_path / "model")
    signal.alarm(SLOW)
    try:
        message = use(tmp_path / "model", tmp_path / "packed", everything=":" in name)
    finally:
        signal.alarm(0)
    for line in message:
        assert line.isprintable()
        assert len(line) < 1_000


def test_undamaged_folder_is_accepted(folder, tmp_path):
    assert use(folder, tmp_path / "packed") == []
    assert len(VARIANTS) > 700


@pytest.mark.parametrize("name", [
    "weights: NaN", "weights: infinity", "weights: -infinity", "weights: scale of infinity",
    "weights: complex", "weights: integers", "entries: no merges", "entries: more merges",
    "labels: three", "labels: control", "model.encoder_layers=10^6", "config.yaml: alias bomb",
    "config.yaml: merge", "model.window=2^64", "training.seed=2^64", "header: other type",
])  # fmt: skip
def test_folder_that_would_give_wrong_results_is_refused(name, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    VARIANTS[name](tmp_path / "model")
    with pytest.raises(InputError):
        regard.load(tmp_path / "model", "cpu")


PROBE = """
import json, os, resource, sys, time
from pathlib import Path
import regard
from regard import InputError

regard.load(sys.argv[1], "cpu")  # what is loaded once is not counted
for name in sys.argv[2:]:
    if os.fork():
        assert os.wait()[1] == 0, name
        continue
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, refusal = time.process_time(), ""
    for use in (lambda: regard.load(name, "cpu"), lambda: regard.pack(name, name + "-packed")):
        try:
            use()
        except InputError as error:
            refusal = str(error)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([Path(name).name, refusal, more / 1024, time.process_time() - began]), flush=True)
    os._exit(0)
"""


def test_worst_cases_take_little_time_and_memory(folder, tmp_path):
    names = []
    for i, name in enumerate(WORST):
        names.append(str(shutil.copytree(folder, tmp_path / str(i))))
        VARIANTS[name](tmp_path / str(i))

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))

    command = [sys.executable, "-c", PROBE, str(folder), *names]
    completed = subprocess.run(
        command, preexec_fn=limit, timeout=120, capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in completed.stdout.splitlines()]
    assert len(lines) == len(WORST)
    for number, message, megabytes, seconds in lines:
        name = WORST[int(number)]
        assert message, name
        assert megabytes < 500, name
        assert seconds < 3, name  # seconds on one core, for two verbs; usually below 1
