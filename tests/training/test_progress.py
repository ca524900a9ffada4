"""The progress line: it fits the terminal, and a notebook redraws one line."""

import io
import sys
import types

import pytest
from rich.console import Console

import regard.training.progress as module
from regard.console import progress
from regard.training.progress import Progress, duration, short_number


def long_line(line, monkeypatch, steps=100_000, words=True):
    """The line of a long run with large numbers."""
    line.words = words
    clock = iter(range(100, 1000))
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock) * 3.0)
    line.pause()
    line.step(12_345, 8.765, 7.07e-4, 2_900_000, 1e12, 1e13)
    return line.line


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("width", [160, 80, 60, 40, 20])
def test_progress_line_is_never_wider_than_the_terminal(width, words, monkeypatch):
    monkeypatch.setattr(module, "make_console", lambda **_: make_terminal(width))
    progress_line = Progress(100_000, quiet=False)
    line = long_line(progress_line, monkeypatch, words=words)
    progress_line.live.close()
    if width >= 40:
        assert len(line) <= width
        assert "step 12,345/100,000" in line
        assert "loss 8.765" in line
    if width >= 60:
        assert line.endswith("73:02:45 left")
        assert "967k tok" in line or "966,667 tok" in line
    if width >= 80:
        assert "7.1e-04" in line or "7.07e-04" in line
    assert ("perplexity" in line) == (words and width == 160)


def make_terminal(width):
    return Console(file=io.StringIO(), force_terminal=True, width=width)


def test_file_gets_the_complete_line(monkeypatch, capsys):
    line = long_line(Progress(100_000, quiet=False), monkeypatch)
    assert "perplexity" in line
    assert "% of peak" in line
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2, "0"), (949.6, "950"), (999.7, "1.0k"), (9_949, "9.9k"), (12_345, "12k"),
     (999_600, "1.0M"), (5_432_100, "5.4M"), (2e12, "2000G")],
)  # fmt: skip
def test_short_number(value, text):
    assert short_number(value) == text


def test_duration():
    assert [duration(seconds) for seconds in (5, 65, 3_605)] == ["0:05", "1:05", "1:00:05"]


class FakeNotebook:
    """Records the texts that IPython's display system shows."""

    def __init__(self, monkeypatch):
        self.texts, self.displays = [], 0
        display = types.ModuleType("IPython.display")
        display.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
        monkeypatch.setitem(sys.modules, "IPython.display", display)
        monkeypatch.setattr("rich.console._is_jupyter", lambda: True)

    def display(self, content, raw=False, display_id=None):
        self.displays += 1
        self.texts.append(content["text/plain"])
        return self

    def update(self, content, raw=False):
        self.texts.append(content["text/plain"])


def test_notebook_redraws_one_line(monkeypatch):
    notebook = FakeNotebook(monkeypatch)
    progress_line = Progress(50, quiet=False)
    with progress_line:
        for step in range(1, 51):
            progress_line.step(step, 1.5, 1e-3, 100, 1e9, 1e12)
    assert notebook.displays == 1
    assert notebook.texts[0].startswith("step 1/50  loss 1.500")
    assert notebook.texts[-1].startswith("step 50/50")
    assert len(notebook.texts) < 10
    assert "\r" not in "".join(notebook.texts)


def test_a_quiet_notebook_shows_nothing(monkeypatch):
    notebook = FakeNotebook(monkeypatch)
    with Progress(5, quiet=True) as progress_line:
        progress_line.step(1, 1.5, 1e-3, 100, 1e9, 1e12)
    assert notebook.texts == []


def test_long_work_in_a_notebook_shows_a_percentage(monkeypatch):
    notebook = FakeNotebook(monkeypatch)
    monkeypatch.setattr("regard.console.PATIENCE", -1)
    with progress("encoding", 200, quiet=False) as show:
        show(50)
    assert notebook.texts == ["encoding 25%"]
