"""A loaded model can be used from several threads: concurrent calls return the same results."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.tasks import index
from threads import at_once, check_concurrent

TEXTS = ["The dog saw the cat.", "A child gave the old man a book because it was too heavy.", "Yes"]
PAIRS = [("The dog slept.", "Der Hund schlief."), ("Yes", "Ja, weil es zu alt war.")]
CONTEXT = "Mary went to the garden. John went to the office."


@pytest.fixture
def documents(tmp_path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS * 5), encoding="utf-8")
    return path


def calls_of(name, model, documents):
    """Calls of all methods that this model has, with texts of several lengths."""
    plain = {"warn": lambda i, message: None}
    per_text = [("", text) for text in TEXTS] + [("all ", TEXTS)]
    if name == "translate":
        calls = {}
        for which, texts in per_text:
            for beam in (1, 3):
                calls[f"translate {which}{texts} {beam}"] = partial(
                    model.translate, texts, beam=beam
                )
        return calls | {
            "predict": lambda: model.predict(TEXTS, n_best=2, beam=3, alternatives=2, history=True),
            "attention": lambda: [
                {part: [layer.tolist() for layer in layers] for part, layers in result.attention.items()}
                for result in model.predict(TEXTS[:2], attention=True)
            ],
            "stream": lambda: list(model.stream(TEXTS[1], beam=2)),
            "score": lambda: model.score(PAIRS),
            "sample": lambda: model.translate(TEXTS, temperature=1.2, seed=3),
        }  # fmt: skip
    if name == "answer":
        return {
            "one": lambda: model.answer("Where is Mary?", CONTEXT),
            "windows": lambda: model.answer(["Who?", "Where is John?"], CONTEXT * 4, **plain),
        }
    if name == "generate":
        sizes = {f"{n}": {"min_length": n, "max_length": n, "seed": n} for n in (3, 40, 150, 400)}
        calls = {n: partial(model.generate, TEXTS[0], **options) for n, options in sizes.items()}
        return calls | {
            "several": lambda: model.generate(TEXTS, temperature=0.9, seed=1),
            "stream": lambda: list(model.stream(TEXTS[2], max_length=20)),
            "embed": lambda: model.embed(TEXTS).tolist(),
        }
    if name == "classify":
        return {f"classify {texts}": partial(model.classify, texts) for _, texts in per_text}
    if name == "fill":
        return {"fill": lambda: model.fill(["The <mask> saw the <mask>.", "<mask>"], top=3)}
    return {
        "embed": lambda: model.embed(TEXTS).tolist(),
        "cls": lambda: model.embed(TEXTS, pooling="cls").tolist(),
        "embed_tokens": lambda: [(a, b.tolist()) for a, b in model.embed_tokens(TEXTS)],
        "search": lambda: model.search(TEXTS[:2], documents),
    }


NAMES = ("translate", "answer", "generate", "classify", "fill", "embed")


@pytest.mark.parametrize("name", NAMES)
def test_a_call_changes_no_attribute_of_the_model(name, loaded, documents, monkeypatch):
    model, assigned = loaded(name), []
    weights = {key: tensor.clone() for key, tensor in model.transformer.state_dict().items()}
    plain = torch.nn.Module.__setattr__

    def record(module, attribute, value):
        assigned.append((type(module).__name__, attribute))
        plain(module, attribute, value)

    monkeypatch.setattr(torch.nn.Module, "__setattr__", record)
    for call in calls_of(name, model, documents).values():
        call()
    assert assigned == []
    after = model.transformer.state_dict()
    assert all(tensor.equal(after[key]) for key, tensor in weights.items())


def test_concurrent_calls_on_all_models_return_the_same_results(loaded, documents):
    """8 threads, each of which uses all models in turn."""
    models = {name: loaded(name) for name in NAMES}
    calls = {
        f"{name}: {call}": function
        for name, model in models.items()
        for call, function in calls_of(name, model, documents).items()
    }
    assert check_concurrent(calls, rounds=2) > 450
    assert {model.transformer.backend for model in models.values()} == {"auto"}


@pytest.mark.parametrize("name", ["translate", "generate", "classify", "fill", "embed"])
def test_concurrent_calls_on_models_in_the_box(name, documents):
    model = regard.load(f"box:{name}", "cpu")
    check_concurrent(calls_of(name, model, documents), threads=4, rounds=1)


def test_concurrent_generation_of_different_lengths():
    """Each length needs larger position tables than the previous one."""
    sizes = 10, 300, 600, 1200
    model = regard.load("box:generate", "cpu")

    def tokens(model, size):
        return model.generate("ROMEO:", min_length=size, max_length=size, n_best=1)[0].token_ids

    alone = [tokens(model, size) for size in sizes]
    fresh = regard.load("box:generate", "cpu")
    assert at_once([partial(tokens, fresh, size) for size in sizes]) == alone


def test_index_is_built_by_one_thread_and_loaded_by_the_others(loaded, documents, monkeypatch):
    model, built = loaded("embed"), []
    build = index.build_index

    def counted(*arguments):
        built.append(arguments)
        return build(*arguments)

    monkeypatch.setattr(index, "build_index", counted)
    with documents.open("a") as file:
        file.write("a line that no other test has\n")
    results = at_once([partial(model.search, TEXTS[0], documents)] * 4)
    assert len(built) == 1
    assert all(hits == results[0] for hits in results)


def test_vectors_of_concurrent_calls_have_their_own_memory(loaded):
    model = loaded("embed")
    vectors = at_once([partial(model.embed, text) for text in TEXTS * 2])
    for first, second in zip(vectors[:3], vectors[3:], strict=True):
        assert not np.shares_memory(first, second)
        assert (first == second).all()
