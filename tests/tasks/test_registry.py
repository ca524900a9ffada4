"""The task registry: declarations without heavy imports, and tasks of other packages."""

import subprocess
import sys

import pytest

from regard import InputError, register_task
from regard.tasks import registry
from regard.tasks.configuration import make_config, tasks_by_option
from regard.tasks.registry import find_task, task_names
from regard.tasks.translate import Translate


def test_the_declarations_import_neither_torch_nor_numpy():
    code = (
        "import sys; import regard.tasks.registry, regard.tasks.configuration\n"
        "assert not {'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_each_task_declares_the_required_attributes():
    for name in task_names():
        task = find_task(name)
        assert task.name == name
        for attribute in ("help", "doing", "files", "better"):
            assert getattr(task, attribute)
        assert make_config(name, "tiny", {}).model.style in task.styles


def test_unknown_task_is_refused_with_a_suggestion():
    with pytest.raises(InputError, match=r"unknown task 'translat'; did you mean 'translate'\?"):
        find_task("translat")


def test_registered_task_has_a_verb_a_configuration_and_options(monkeypatch):
    from regard.cli.main import build_parser

    class Reverse(Translate):
        name = "reverse"
        config_options = ("data.bleu",)

    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    register_task(Reverse)
    assert make_config("reverse", "tiny", {"data": {"bleu": "zh"}}).task == "reverse"
    with pytest.raises(InputError, match="it is an option of translate and answer"):
        make_config("reverse", "tiny", {"data": {"bpe_dropout": 0.1}})
    assert tasks_by_option()["data.bleu"] == ["translate", "reverse"]
    options = build_parser().parse_args(["reverse", "a text", "--prefix", "x"])
    assert (options.task, options.texts, options.prefix) == (Reverse, ["a text"], "x")
    assert options.model is None  # no model of this task ships with the package
