"""Model folders as training writes them, with random weights; and a box of such models."""

import json
from dataclasses import replace

import pytest
import torch

import regard
from regard import Transformer
from regard.tasks.configuration import make_config
from regard.tasks.registry import find_task
from regard.text.builtin import builtin_corpus
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import to_bytes

SIZES = {"d_model": 32, "heads": 4, "d_ff": 48}


@pytest.fixture(scope="session")
def make(tmp_path_factory):
    """make("fill", ...): the folder of a model with random weights, as training writes it."""

    def folder(task, model=None, labels=()):
        style = {} if task in ("translate", "answer") else {"encoder_layers": 2}
        style = {"decoder_layers": 2} if task == "generate" else style
        config = make_config(task, "tiny", {
            "model": {**SIZES, **style, **(model or {})},
            "data": {"vocabulary_size": 400, "max_length": 60,
                     "train": ["/home/someone/data/built-in/train.en", "train.de"],
                     "valid": ["/valid.en"]},
            "decoding": {"max_length": 6},
        })  # fmt: skip
        texts = [sentence for pair in builtin_corpus("train", 200) for sentence in pair]
        tokenizer = Tokenizer.learn(texts, "bpe", 400, quiet=True)
        extra = {"labels": list(labels)} if task == "classify" else {}
        task = find_task(task).make(config, (tokenizer, tokenizer), **extra)
        config = replace(config, model=replace(config.model, **task.model_options()))
        torch.manual_seed(5)
        model = Transformer(config.model)
        out = tmp_path_factory.mktemp(task.name)
        (out / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        card = (
            "# A model\n\n- command: `regard train --train /home/someone/data/built-in/train.en`\n"
        )
        (out / "README.md").write_text(card, encoding="utf-8")
        record = {"step": 1, "final": "last", "loss": 2.5}
        (out / "metrics.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
        (out / "model.safetensors").write_bytes(to_bytes(dict(model.state_dict())))
        task.save(out)
        return out

    return folder


@pytest.fixture(scope="session")
def filled(make, tmp_path_factory):
    """A folder with a packed model for every task in the box."""
    box = tmp_path_factory.mktemp("box")
    for task in ("translate", "classify", "fill", "generate", "embed"):
        regard.pack(make(task, labels=["bad", "good"]), box / task)
    return box


@pytest.fixture
def stand_in(filled, monkeypatch):
    """Replace the models in the box by those of `filled`."""
    monkeypatch.setattr("regard.training.shipped.FOLDER", filled)
    return filled
