"""Fixtures: model folders, and a function that runs a verb.

The models have random weights, so they need no training. Their output is meaningless, but always
the same.
"""

import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import regard
from regard import Transformer
from regard.cli.main import main
from regard.tasks.configuration import make_config
from regard.text.builtin import builtin_corpus
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import to_bytes


def build(folder, kind, longest):
    config = make_config("translate", "tiny", {
        "model": {
            "encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "heads": 4, "d_ff": 32,
            "tie_embeddings": "source-target",
        },
        "data": {"vocabulary": kind, "vocabulary_size": 400, "max_length": longest},
        "decoding": {"max_length": 6},
    })  # fmt: skip
    sentences = [sentence for pair in builtin_corpus("train", 200) for sentence in pair]
    tokenizer = Tokenizer.learn(sentences, kind, config.data.vocabulary_size, quiet=True)
    size = tokenizer.size
    sized = replace(config.model, vocabulary_size=size, source_vocabulary_size=size)
    config = replace(config, model=sized)
    torch.manual_seed(5)
    model = Transformer(config.model)
    model.embeddings["shared"].weight.data *= 2  # otherwise the output would be one repeated word
    if kind == "byte":
        # One feature of the last layer is always 1. Its weight is low for all bytes except those of
        # characters of one to four bytes, line ends and tabs.
        frequent = tokenizer.encode("é€😀 abcdef\n\t\r")
        norm, weight = model.decoder.final_norm, model.head.output.weight.data
        norm.weight.data[0], norm.bias.data[0] = 0.0, 1.0
        weight[:, 0] = -20.0
        weight[frequent, 0] = 0.0
        weight[[tokenizer.eos, *tokenizer.encode("\n\t\r")], 0] = -1.0
        # After a byte of a character, the next byte is probable, so some characters are complete.
        for character in "é€😀":
            for byte, following in pairwise(tokenizer.encode(character)):
                weight[following] += 1.5 * model.embeddings["shared"].weight.data[byte]
            weight[tokenizer.encode(character)[1:], 0] = -7.0
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    tokenizer.save(folder / "tokenizer.json")
    (folder / "model.safetensors").write_bytes(to_bytes(dict(model.state_dict())))
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model whose configuration has a maximum of 40 tokens."""
    return build(tmp_path_factory.mktemp("bpe"), "bpe", 40)


@pytest.fixture(scope="session")
def translator(folder):
    return regard.load(folder, "cpu")


@pytest.fixture(scope="session")
def byte_folder(tmp_path_factory):
    """A model of bytes, which writes newlines, tabs, and complete and incomplete characters."""
    return build(tmp_path_factory.mktemp("byte"), "byte", 120)


@pytest.fixture(scope="session")
def byte_translator(byte_folder):
    return regard.load(byte_folder, "cpu")


@pytest.fixture(scope="session")
def texts():
    """Texts of different lengths; two of them are blank."""
    return [
        "The dog slept.",
        "",
        "The old man saw the small dog in front of the beautiful house.",
        " \t ",
        "x",
        "The queen brought the boy a basket, because he was too clever.",
    ]


@pytest.fixture(scope="session")
def long_text():
    """A text that is too long for one piece of either model."""
    return " ".join(str(number) for number in range(60))


@pytest.fixture
def verb(monkeypatch, capsys, tmp_path):
    """verb("translate", folder, "--json", stdin=[lines], beam=1): the command line in this process,
    with a real file as standard input: (exit code, standard output, standard error)."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")  # otherwise `main` sets it

    def run(name, folder, *arguments, stdin=(), **options):
        if not isinstance(stdin, bytes):
            stdin = "".join(line + "\n" for line in stdin).encode()
        (tmp_path / "stdin").write_bytes(stdin)
        command = ["regard", name, "-m", folder, "--device", "cpu", *arguments]
        for option, value in options.items():
            command += [f"--{option.replace('_', '-')}", value]
        with (tmp_path / "stdin").open() as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            patch.setattr(sys, "argv", [str(word) for word in command])
            with pytest.raises(SystemExit) as exit_info:
                main()
        return exit_info.value.code, *capsys.readouterr()

    return run
