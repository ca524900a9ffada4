"""Results are written continuously: an interrupted run keeps them, and progress is visible."""

import os
import signal
import subprocess
import sys

import pytest

from regard.cli import ordered, output
from regard.tasks.common import one_line

PROGRAM = """
import sys
from regard.cli import main, ordered
ordered.FIRST_COST = ordered.LEAST_COST = ordered.Pace.cost = 1  # one line at a time
ordered.Pace.measured = lambda self, cost, seconds: None
main.main()
"""


@pytest.fixture
def lines():
    return [f"The dog number {i} slept." for i in range(400)]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_run_keeps_the_written_lines(stop, lines, folder, translator, tmp_path):
    (tmp_path / "in").write_text("".join(line + "\n" for line in lines * 50))
    command = [sys.executable, "-c", PROGRAM, "translate", "-m", folder, "--device", "cpu"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    own = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with (
        (tmp_path / "in").open() as stdin,
        subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, env=buffered, **own
        ) as process,
    ):  # fmt: skip
        first = [process.stdout.readline().decode() for _ in range(5)]  # long before the end
        process.send_signal(stop)
        written = "".join(first) + process.stdout.read().decode()
        code = process.wait(120)
    assert code == (130 if stop == signal.SIGINT else -signal.SIGKILL)
    *complete, rest = written.split("\n")
    assert len(complete) < len(lines) * 50
    expected = [one_line(text) for text in translator.translate(lines[:5])]
    assert complete[:5] == expected
    assert rest == "" or stop == signal.SIGKILL


def test_progress_bar_advances_after_every_group(lines, folder, translator, verb, monkeypatch):
    amounts, groups = [], []
    predict = type(translator.task).predict

    def counted(self, model, inputs, *arguments, **options):
        groups.append(len(inputs))
        return predict(self, model, inputs, *arguments, **options)

    class Bar:
        def __enter__(self):
            return amounts.append

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(type(translator.task), "predict", counted)
    monkeypatch.setattr(ordered.Pace, "measured", lambda self, cost, seconds: None)
    monkeypatch.setattr(output, "progress", lambda doing, total, quiet: Bar())
    stdin = lines[:200]
    code, out, _ = verb("translate", folder, stdin=stdin)
    assert (code, out.count("\n")) == (0, 200)
    assert len(groups) > 1
    assert sum(groups) == 200
    assert len(amounts) == len(groups)
    assert amounts == sorted(amounts)
    assert amounts[-1] == sum(len(line) + 1 for line in stdin)
