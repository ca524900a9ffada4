"""The task registry: light declarations, and a task that another package registers."""

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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_task_declares_what_the_command_line_and_the_configuration_need():
    for name in task_names():
        task = find_task(name)
        assert task.name == name
        for attribute in ("help", "doing", "files", "better"):
            assert getattr(task, attribute)
        assert make_config(name, "tiny", {}).model.style in task.styles


def test_an_unknown_task_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"unknown task 'translat'; did you mean 'translate'\?"):
        find_task("translat")


def test_a_registered_task_has_a_command_a_configuration_and_its_own_options(monkeypatch):
    from regard.cli.main import build_parser

    class Reverse(Translate):
        name = "reverse"
        config_options = ("data.bleu",)

    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    register_task(Reverse)
    assert make_config("reverse", "tiny", {"data": {"bleu": "zh"}}).task == "reverse"
    with pytest.raises(InputError, match="it is for translate and answer"):
        make_config("reverse", "tiny", {"data": {"bpe_dropout": 0.1}})
    assert tasks_by_option()["data.bleu"] == ["translate", "reverse"]
    options = build_parser().parse_args(["reverse", "a text", "--prefix", "x"])
    assert (options.task, options.texts, options.prefix) == (Reverse, ["a text"], "x")
    assert str(options.model) == "box:reverse"
