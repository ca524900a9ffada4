"""Options from the command line and from YAML files."""

import pytest

from regard.config.sections import Config
from regard.config.settings import settings
from regard.tasks.configuration import make_config

WARNING = "regard: training.compile is now called training.cuda_graphs\n"


def test_an_old_name_is_accepted_with_one_line_that_names_the_new_one(capsys):
    assert settings(["training.compile=false"]) == {"training": {"cuda_graphs": False}}
    assert capsys.readouterr().err == WARNING
    config = make_config("translate", "tiny", {"training": {"compile": False}})
    assert config.training.cuda_graphs is False
    assert capsys.readouterr().err == WARNING


def test_the_new_name_is_preferred_to_the_old_one(capsys):
    values = {"training": {"compile": False, "cuda_graphs": True}}
    assert make_config("translate", "tiny", values).training.cuda_graphs
    assert capsys.readouterr().err == WARNING


@pytest.mark.parametrize("value", ["true", "false"])
def test_a_run_folder_with_an_old_name_loads_without_a_warning(value, tmp_path, capsys):
    text = make_config("translate", "tiny", {}).to_yaml()
    path = tmp_path / "config.yaml"
    path.write_text(text.replace("cuda_graphs: true", f"compile: {value}"))
    assert Config.load(path).training.cuda_graphs is (value == "true")
    assert capsys.readouterr().err == ""
