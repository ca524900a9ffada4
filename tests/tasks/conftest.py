"""What the tests of the tasks share: small files of every kind, models of a second, the command line."""

import json
from functools import cache

import numpy as np
import pytest
import torch

import regard
from regard import Transformer
from regard.tasks.configuration import make_config
from regard.tasks.train import train_config as train
from regard.text.builtin import builtin_corpus
from regard.text.tokenizer import Tokenizer

PEOPLE = ("Mary", "John", "Anna", "Peter", "Lucy", "Tom")
PLACES = ("kitchen", "garden", "office", "cellar", "attic")


def sentences(count, split="train"):
    return [english for english, _ in builtin_corpus(split, count)]


def questions(count, seed=0):
    """Who went where, as in bAbI, in two kinds of question."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        who = random.permutation(PEOPLE)[:2]
        where = random.permutation(PLACES)[:2]
        context = " ".join(
            f"{a} went to the {b}." for a, b in zip(who.tolist(), where.tolist(), strict=True)
        )
        if i % 3:
            asked = f"Where is {who[0]}?", f"{where[0]}", "where"
        else:
            asked = f"Who is in the {where[1]}?", f"{who[1]}", "who"
        row = dict(zip(("question", "answer", "task"), asked, strict=True))
        rows.append({"context": f"Day {i + 1}. {context}", **row})  # no two are the same
    return rows


def classified(count, split="train"):
    """Three classes of uneven size: English, German, and numbers."""
    rows = []
    for i, (english, german) in enumerate(builtin_corpus(split, count)):
        label, text = ("en", english) if i % 2 else ("de", german)
        rows.append((label, text) if i % 6 else ("number", f"{i * 37} and {i * i + 5}"))
    return rows


def pairs(count, scored, split="train"):
    """English and its German, or with grades: of its German and of that of another sentence."""
    found = builtin_corpus(split, count)
    if not scored:
        return [{"a": english, "b": german} for english, german in found]
    rows = []
    for i, (english, german) in enumerate(found):
        other = found[i - 1][1] if i % 2 else german
        rows.append({"a": english, "b": other, "score": 1.5 if i % 2 else 4.0 + i % 3 / 2})
    return rows


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """data["classify"]: (files to train on, files to validate on), as the command line takes them."""
    folder = tmp_path_factory.mktemp("data")
    found = {}

    def write(task, names, contents):
        files = []
        for name, content in zip(names, contents, strict=True):
            (folder / name).write_text(content, encoding="utf-8")
            files.append(str(folder / name))
        found[task] = files

    sides = {"train": builtin_corpus("train", 90), "valid": builtin_corpus("valid", 12)}
    for split, rows in sides.items():
        count = len(rows)
        texts = sentences(count, split)
        documents = "\n\n".join("\n".join(texts[i : i + 5]) for i in range(0, count, 5)) + "\n"
        english, german = ("".join(row[side] + "\n" for row in rows) for side in (0, 1))
        seed = 0 if split == "train" else 1
        kind = "translate", split
        write(kind, [f"{split}.en", f"{split}.de"], [english, german])
        write(("answer", split), [f"{split}-questions.jsonl"], [json_lines(questions(count, seed))])
        write(("generate", split), [f"{split}.txt"], [documents])
        write(("fill", split), [f"{split}.txt"], [documents])
        lines = "".join(f"{label}\t{text}\n" for label, text in classified(count, split))
        write(("classify", split), [f"{split}-labels.tsv"], [lines])
        for name, scored in (("embed", False), ("scored", True)):
            rows = json_lines(pairs(count, scored, split))
            write((name, split), [f"{split}-{name}.jsonl"], [rows])
    tasks = ("translate", "answer", "generate", "fill", "classify", "embed", "scored")
    return {task: (found[task, "train"], found[task, "valid"]) for task in tasks}


def small(style, **more):
    layers = {f"{stack}_layers": 1 for stack in style.split("-")}
    return {"style": style, "d_model": 16, "heads": 2, "d_ff": 32, "dropout": 0.0, **layers, **more}


STYLE = {"translate": "encoder-decoder", "answer": "encoder-decoder", "generate": "decoder"}


@pytest.fixture(scope="session")
def configure(data):
    """configure("fill", data={...}, training={...}): a configuration of a very small model."""

    def make(name, style=None, start=None, **sections):
        task = "embed" if name == "scored" else name
        train_files, valid_files = data[name]
        values = {
            "model": {} if start else small(style or STYLE.get(task, "encoder")),
            "data": {"train": train_files, "valid": valid_files, "vocabulary_size": 330,
                     "max_length": 64},
            "training": {"steps": 12, "batch_tokens": 500, "warmup": 10, "validate_every": 6,
                         "checkpoint_every": 4, "keep": 2, "average": 2},
            "decoding": {"max_length": 8},
        }  # fmt: skip
        for section, keys in sections.items():
            values[section] = {**values[section], **keys}
        return make_config(task, None if start else "tiny", values, start)

    return make


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache_folder, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(cache_folder))
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")  # or `main` would set it


@pytest.fixture(scope="session")
def trained(configure, cache_folder, tmp_path_factory):
    """trained("classify", "encoder", seed=2): the folder of a model, trained once for all tests."""

    @cache
    def make(name, style=None, seed=1, **data):
        out = tmp_path_factory.mktemp("models") / f"{name}-{style}-{seed}"
        config = configure(name, style, data=data, training={"seed": seed})
        with pytest.MonkeyPatch.context() as patch, torch.enable_grad():
            patch.setenv("REGARD_CACHE", str(cache_folder))
            train(config, out, quiet=True)
        return out

    return make


@pytest.fixture(scope="session")
def loaded(trained):
    """The same as regard.load gives it."""
    return cache(lambda *which, **data: regard.load(trained(*which, **data), "cpu"))


@pytest.fixture(scope="session")
def bpe():
    """A vocabulary of English and German words and parts of words."""
    lines = [text for pair in builtin_corpus("train", 300) for text in pair]
    return Tokenizer.learn(lines, "bpe", 500, quiet=True)


@pytest.fixture(scope="session")
def network():
    """network("decoder", vocabulary_size=50): random weights that say something, float64."""

    @cache
    def make(style, seed=3, **more):
        torch.manual_seed(seed)
        sizes = small(style, **{"vocabulary_size": 50, "norm_first": True, **more})
        made = Transformer(regard.ModelConfig(**sizes)).double().eval()
        for table in made.embeddings.values():
            table.weight.data *= 2
        if made.head.bias is not None:
            torch.nn.init.normal_(made.head.bias)
        return made

    return make
