"""The examples of docs/extending.md: each is a file here, runs, and is shown as it is."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from regard.config.registry import ATTENTION, MIXERS, POSITIONS, SCHEDULES
from regard.tasks import custom_metrics, registry

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "extending.md"
RESULTS = {
    "padded_loop": "copies [[3, 5, 8], [12, 4, 4, 7]]",
    "alibi": "[[",
    "cosine_attention": "tensor([[1.0000, 1.0000]",
    "token_shift": "[[",
    "restarts": "[0.0005, 0.001, 0.0005, 0.0, 0.001, 0.0005]",
    "own_tokenizer": "hello eos 33",
    "chrf_words": ".",
    "entailment": "yes",
}


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    for parts in (POSITIONS, ATTENTION, MIXERS, SCHEDULES):
        monkeypatch.setattr(parts, "_factories", {})
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    monkeypatch.setattr(custom_metrics, "_METRICS", {})


@pytest.mark.parametrize("name", RESULTS)
def test_an_example_runs_and_has_at_most_40_lines(name, capsys):
    torch.manual_seed(0)
    runpy.run_path(str(HERE / f"{name}.py"))
    assert RESULTS[name] in capsys.readouterr().out
    assert len((HERE / f"{name}.py").read_text("utf-8").splitlines()) <= 40


def test_page_contains_the_examples_verbatim():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    files = {path.stem: path.read_text("utf-8") for path in HERE.glob("*.py")}
    assert {name for name, text in files.items() if text in blocks} == set(RESULTS)
