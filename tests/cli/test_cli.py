"""The command line in a process of its own: output, errors and exit codes."""

import json
import re
import subprocess
import sys

import pytest


def regard(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "regard", *arguments], capture_output=True, text=True, timeout=120
    )


def test_help_of_every_verb_does_not_import_torch():
    script = """
import argparse, sys
from regard.cli.main import build_parser

def visit(parser):
    assert "usage: regard" in parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                visit(child)

visit(build_parser())
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_info_shows_the_parameters_of_base_by_part():
    done = regard("info", "--preset", "base", "--style", "encoder-decoder", "--vocab", "37000")
    assert done.returncode == 0, done.stderr
    for number in ("63,082,496", "18,944,000", "12,607,488", "6,303,744", "25,196,544", "30,720"):
        assert done.stdout.count(number) == 2, number  # by formula and in tensors
    assert "63.08M parameters; formula and tensors agree" in done.stdout


@pytest.mark.parametrize("style", ["encoder-decoder", "encoder", "decoder"])
def test_the_total_is_the_largest_number_in_the_json_of_info(style):
    done = regard("info", "--preset", "tiny", "--style", style, "--vocab", "5000", "--json")
    line = json.loads(done.stdout)
    numbers = [float(x) for x in re.findall(r"\d+\.?\d*", done.stdout)]
    assert line["parameters"] == max(numbers) == sum(line["parts"].values())
    assert line["config"]["model"]["style"] == style


def test_set_changes_one_option():
    done = regard("info", "--preset", "tiny", "--vocab", "100", "--json",
                  "--set", "model.positions=none", "--set", "model.tie_embeddings=false",
                  "--set", "model.norm_first=true", "--set", "model.dropout=0.25")  # fmt: skip
    model = json.loads(done.stdout)["config"]["model"]
    assert model["positions"] == "none"
    assert model["tie_embeddings"] == "none"
    assert model["norm_first"] is True
    assert model["dropout"] == 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "--preset", "bas"], "unknown preset 'bas'; did you mean 'base'?"),
        (["info", "--style", "decodr"], "unknown model.style 'decodr'; did you mean 'decoder'?"),
        (["info", "--set", "model.heds=4"], "'model.heds'; did you mean 'model.heads'?"),
        (["info", "--set", "model.heads"], "write it as section.key=value"),
        (["info", "--set", "modle.heads=4"], "unknown section 'modle'"),
        (["info", "--set", "model.heads=7"], "model.d_model=512 is not divisible by model.heads=7"),
        (["info", "--vocab", "0"], "--vocab must be at least 1, not 0"),
        (["info", "--prset", "base"], "--prset"),
        (["inof"], "inof"),
        (["view", "walk"], "TEXT"),
        (["view", "walk", ""], "regard: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_argument_prints_one_line_and_exits_with_2(arguments, message):
    done = regard(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_debug_shows_the_traceback():
    done = regard("info", "--preset", "bas", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_version_matches_the_package():
    import regard as package

    assert regard("--version").stdout == f"regard {package.__version__}\n"
