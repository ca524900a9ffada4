"""Names of other toolkits and mistyped names get a hint at the right name."""

import subprocess
import sys

import pytest

from regard.config.names import _FOREIGN, VERBS, equivalents, option_names
from regard.config.sections import DecodingConfig, TrainingConfig, section
from regard.config.settings import read_yaml, settings
from regard.errors import InputError
from regard.tasks.configuration import make_config


def test_suggested_options_exist_and_no_foreign_name_is_an_option():
    known = set(option_names())
    for name, options in _FOREIGN.items():
        for option in options:
            assert "." not in option.name or option.name in known, option
            assert option.name.rpartition(".")[2] != name


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("num_beams", "decoding.beam"), ("beam_size", "decoding.beam"),
        ("--max-new-tokens", "decoding.max_length"), ("lr", "training.learning_rate"),
        ("batch_size", "training.batch_tokens"), ("num_train_epochs", "training.epochs"),
        ("hidden_size", "model.d_model"), ("n_head", "model.heads"), ("ffn_dim", "model.d_ff"),
        ("warmup_steps", "training.warmup"), ("do_sample", "decoding.temperature"),
        ("label_smoothing_factor", "training.label_smoothing"), ("src", "data.train"),
        ("normalize", "decoding.length_penalty"),
        ("decoding.random_seed", "decoding.seed"), ("training.random_seed", "training.seed"),
        ("steps", "training.steps"), ("model.steps", "training.steps"),
    ],
)  # fmt: skip
def test_a_name_of_another_toolkit_means_this_option(name, option):
    assert equivalents(name)[0].name == option


def test_a_python_keyword_of_another_toolkit_is_refused_with_the_right_name():
    with pytest.raises(InputError, match=r"'decoding.num_beams'; did you mean 'decoding.beam'\?$"):
        section(DecodingConfig, "decoding", {"num_beams": 4})
    with pytest.raises(InputError, match=r"batch_tokens'\? \(it counts tokens, not examples\)$"):
        section(TrainingConfig, "training", {"batch_size": 4})
    with pytest.raises(InputError, match=r"did you mean 'training.learning_rate'\?"):
        make_config("translate", "tiny", {"model": {"learning_rate": 1}})
    with pytest.raises(InputError, match=r"unknown section 'lr'; did you mean .*learning_rate"):
        make_config("translate", "tiny", {"lr": {}})


def test_mistyped_key_gets_a_suggestion_and_unknown_key_lists_the_options():
    with pytest.raises(InputError, match=r"did you mean 'training.steps'\?"):
        section(TrainingConfig, "training", {"step": 4})
    with pytest.raises(InputError, match="known: beam, length_penalty, length_offset, n_best"):
        section(DecodingConfig, "decoding", {"xyzzy": 4})


def test_option_without_a_section_gets_a_suggestion_with_its_section(tmp_path):
    with pytest.raises(InputError, match=r"did you mean 'training.learning_rate=0.1'\?"):
        settings(["lr=0.1"])
    with pytest.raises(InputError, match=r"did you mean 'training.steps=5'\?"):
        settings(["steps=5"])
    path = tmp_path / "a.yaml"
    path.write_text("num_epochs: 3\n")
    with pytest.raises(InputError, match=r"'num_epochs'; did you mean 'training.epochs'\?"):
        read_yaml(path)


SCRIPT = """
import sys
from regard.cli.main import build_parser
from regard.errors import InputError
for line in sys.stdin.read().splitlines():
    try:
        build_parser(line.split()).parse_args(line.split())
    except InputError as error:
        print(error)
"""
LINES = {
    "tranlsate hi": "unknown verb 'tranlsate'; did you mean 'translate'?",
    "predict hi": "unknown verb 'predict'; the verb is the task",
    "eval": "did you mean 'evaluate'?",
    "finetune": "write: regard train --from MODEL",
    "view wlak hi": "unknown view 'wlak'; did you mean 'walk'?",
    "translate hi --num-beams 4": "unknown option '--num-beams'; did you mean --beam?",
    "translate hi --bam=4": "unknown option '--bam'; did you mean --beam?",
    "train --out x --lr 1": "did you mean --learning-rate?",
    "train --out x --num-epochs 3": "did you mean --epochs?",
    "train --out x --batch-size 3": "did you mean --batch-tokens? (it counts tokens, not examples)",
    "train --out x --hidden-size 64": "did you mean --set model.d_model=...?",
    "train --out x --src a": "did you mean --train?",
    "classify hi --num-beams 4": "unknown option '--num-beams'; see: regard classify --help",
    "classify hi --device gpu": "--device must be auto, cpu, cuda, cuda:INDEX or mps, not 'gpu'",
    "view walk a b": "unexpected argument 'b': a text of several words needs quotation marks",
}


def test_the_command_line_suggests_verbs_and_options():
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(LINES), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    messages = process.stdout.splitlines()
    assert len(messages) == len(LINES)
    for message, expected in zip(messages, LINES.values(), strict=True):
        assert expected in message


def test_no_verb_of_regard_has_a_foreign_meaning():
    from regard.cli.main import build_parser

    [verbs] = [a for a in build_parser()._actions if a.metavar == "VERB"]
    unfinished = {"serve", "chat"}  # verbs that a later version may add
    assert not set(VERBS) & set(verbs.choices) - unfinished
