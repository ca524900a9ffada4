"""Model folders as training writes them, of every task and style. Their weights are random: their
attention is arbitrary but reproducible, and they need no training."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

import regard
from regard import Transformer
from regard.tasks.configuration import make_config
from regard.tasks.registry import find_task
from regard.text.builtin import builtin_corpus
from regard.text.tokenizer import Tokenizer
from regard.training.checkpoint import to_bytes


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """folder("classify", "encoder", mixer="lstm"): a model of two layers and four heads."""
    sentences = [text for pair in builtin_corpus("train", 200) for text in pair]

    @cache
    def make(task, style, vocabulary="bpe", longest=64, **model):
        sizes = {"d_model": 32, "heads": 4, "d_ff": 32, "style": style, **model}
        sizes |= {f"{stack}_layers": sizes.get(f"{stack}_layers", 2) for stack in style.split("-")}
        data = {"vocabulary": vocabulary, "vocabulary_size": 400, "max_length": longest}
        values = {"model": sizes, "data": data, "decoding": {"max_length": 6}}
        config = make_config(task, "tiny", values)
        tokenizer = Tokenizer.learn(sentences, vocabulary, 400, quiet=True)
        labels = {"labels": ["good", "bad", "so so"]} if task == "classify" else {}
        built_task = find_task(task).make(config, (tokenizer, tokenizer), **labels)
        config = replace(config, model=replace(config.model, **built_task.model_options()))
        torch.manual_seed(5)
        network = Transformer(config.model)
        for table in network.embeddings.values():
            table.weight.data *= 3  # otherwise all heads would attend uniformly
        path = tmp_path_factory.mktemp(f"{task}-{style}")
        (path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        built_task.save(path)
        (path / "model.safetensors").write_bytes(to_bytes(dict(network.state_dict())))
        return path

    return make


@pytest.fixture(scope="session")
def model(folder):
    """model("classify", "encoder"): the model of `folder`, loaded."""
    return cache(lambda *which, **options: regard.load(folder(*which, **options), "cpu"))
