"""Fixtures for the tests of the tasks: small data files, small trained models, the command line."""

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
SMALL = [
    f"--set={setting}"
    for setting in (
        "model.d_model=16", "model.heads=2", "model.d_ff=16", "training.steps=1", "training.batch_tokens=400",
        "data.max_length=64", "data.vocabulary_size=330",
    )
]  # fmt: skip
LAYERS = {
    "encoder": ["--set=model.encoder_layers=1"], "decoder": ["--set=model.decoder_layers=1"],
    "encoder-decoder": ["--set=model.encoder_layers=1", "--set=model.decoder_layers=1"],
}  # fmt: skip


def sentences(count, split="train"):
    return [english for english, _ in builtin_corpus(split, count)]


def questions(count, seed=0):
    """Questions about the location of people, as in bAbI, in two kinds: where, who."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        people = random.permutation(PEOPLE)[:2].tolist()
        places = random.permutation(PLACES)[:2].tolist()
        context = " ".join(
            f"{person} went to the {place}." for person, place in zip(people, places, strict=True)
        )
        if i % 3:
            values = f"Where is {people[0]}?", places[0], "where"
        else:
            values = f"Who is in the {places[1]}?", people[1], "who"
        row = dict(zip(("question", "answer", "task"), values, strict=True))
        rows.append({"context": f"Day {i + 1}. {context}", **row})  # the number makes rows unique
    return rows


def classified(count, split="train"):
    """Rows of three classes of different sizes: English, German, and numbers."""
    rows = []
    for i, (english, german) in enumerate(builtin_corpus(split, count)):
        label, text = ("en", english) if i % 2 else ("de", german)
        rows.append((label, text) if i % 6 else ("number", f"{i * 37} and {i * i + 5}"))
    return rows


def pairs(count, scored, split="train"):
    """English sentences with their translations; with `scored`, half of them with a wrong translation
    and a low score."""
    corpus = builtin_corpus(split, count)
    if not scored:
        return [{"a": english, "b": german} for english, german in corpus]
    rows = []
    for i, (english, german) in enumerate(corpus):
        partner = corpus[i - 1][1] if i % 2 else german
        rows.append({"a": english, "b": partner, "score": 1.5 if i % 2 else 4.0 + i % 3 / 2})
    return rows


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """data["classify"]: (training files, validation files), as arguments of the command line."""
    folder = tmp_path_factory.mktemp("data")
    paths = {}

    def write(task, names, contents):
        files = []
        for name, content in zip(names, contents, strict=True):
            (folder / name).write_text(content, encoding="utf-8")
            files.append(str(folder / name))
        paths[task] = files

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
    return {task: (paths[task, "train"], paths[task, "valid"]) for task in tasks}


def small(style, **more):
    layers = {f"{stack}_layers": 1 for stack in style.split("-")}
    return {"style": style, "d_model": 16, "heads": 2, "d_ff": 32, "dropout": 0.0, **layers, **more}


STYLE = {"translate": "encoder-decoder", "answer": "encoder-decoder", "generate": "decoder"}


@pytest.fixture(scope="session")
def configure(data):
    """configure("fill", data={...}, training={...}): the configuration of a very small model."""

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
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")  # otherwise `regard.cli.main` sets it


@pytest.fixture(scope="session")
def trained(configure, cache_folder, tmp_path_factory):
    """trained("classify", "encoder", seed=2): the folder of a model that is trained once per session."""

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
    """loaded("classify", "encoder"): the same model, loaded with regard.load."""
    return cache(lambda *arguments, **data: regard.load(trained(*arguments, **data), "cpu"))


@pytest.fixture(scope="session")
def bpe():
    """A BPE tokenizer for English and German."""
    lines = [text for pair in builtin_corpus("train", 300) for text in pair]
    return Tokenizer.learn(lines, "bpe", 500, quiet=True)


@pytest.fixture(scope="session")
def network():
    """network("decoder", vocabulary_size=50): a float64 model with random weights, scaled up so that
    its predictions differ clearly between inputs."""

    @cache
    def make(style, seed=3, **more):
        torch.manual_seed(seed)
        sizes = small(style, **{"vocabulary_size": 50, "norm_first": True, **more})
        model = Transformer(regard.ModelConfig(**sizes)).double().eval()
        for table in model.embeddings.values():
            table.weight.data *= 2
        if model.head.bias is not None:
            torch.nn.init.normal_(model.head.bias)
        return model

    return make


@pytest.fixture(scope="session")
def small_options():
    """small_options("fill"): options of `regard train` for one step of a very small model."""
    return lambda task: [*SMALL, *LAYERS[STYLE.get(task, "encoder")]]


@pytest.fixture
def error_message(call, tmp_path, cache_folder):
    """error_message("train", ...): the error of a command that must fail and must write no files."""

    def run(*command, stdin=()):
        before = set(tmp_path.rglob("*")) | {tmp_path / "stdin"}
        code, out, err = call(*command, stdin=stdin)
        assert (code, out) == (2, ""), err
        assert err.startswith("regard: ")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        assert set(tmp_path.rglob("*")) <= before
        assert not list(cache_folder.glob(".tmp-*"))
        return err.removeprefix("regard: ").removesuffix("\n")

    return run


@pytest.fixture
def training_error(error_message, small_options, data, tmp_path):
    """training_error("fill", train=[...], valid=[...]): the error of `regard train` for these files."""

    def run(task, *more, train=None, valid=None):
        files = [train or data[task][0], valid or data[task][1]]
        names = [
            word
            for flag, some in zip(("--train", "--valid"), files, strict=True)
            for word in (flag, *some)
        ]
        return error_message(
            "train", "--task", task, *names, "--out", tmp_path / "run", *small_options(task), *more
        )

    return run
