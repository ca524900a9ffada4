"""/api/... for models that read: results equal those of the Python interface, errors, limits."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import regard
from regard.serve.api_common import MOST_WEIGHTS, any_model
from regard.serve.api_search import DocumentCache, Documents
from regard.serve.api_view import list_models
from regard.serve.app import create_app
from regard.serve.endpoint import Call
from regard.serve.errors import Loading
from regard.serve.models import ModelPool, ServedModel
from regard.serve.scheduler import Scheduler
from regard.serve.settings import Limits, Settings
from regard.tasks.answer import Questions
from regard.tasks.common import refuse_nan
from regard.tasks.configuration import make_config
from regard.view.walk import walk_config, walk_steps
from regard.view.walk_json import walk_json
from serve.api_calls import error_of, get, post
from serve.live import boxed, serve

LINES = ["A cat sleeps on the sofa.", "It rains in Rome.", "The car is red.", "A dog barks."]


@pytest.fixture(scope="module")
def answering():
    """A small model with random weights that answers questions."""
    tokenizer = boxed("translate").target_tokenizer
    config = make_config("answer", "tiny", {
        "data": {"train": ["questions.jsonl"], "max_length": 60}, "decoding": {"max_length": 5},
        "model": {"vocabulary_size": tokenizer.size, "source_vocabulary_size": tokenizer.size},
    })  # fmt: skip
    task = Questions.make(config, (tokenizer, tokenizer))
    return regard.Model(config, regard.Transformer(config.model), task)


@pytest.fixture(scope="module")
def url(answering):
    names = ("translate", "generate", "classify", "fill", "embed")
    models = {name: boxed(name) for name in names} | {"answer": answering}
    with serve(models=models, walk=walk_json) as address:
        yield f"{address}/api"


def test_models_are_described(url):
    listed = json.loads(get(f"{url}/models"))
    assert listed["ready"] is True
    models = {model["name"]: model for model in listed["models"]}
    assert list(models) == ["translate", "generate", "classify", "fill", "embed", "answer"]
    translate, config = models["translate"], boxed("translate").config.model
    assert translate["languages"] == ["en", "de"]
    assert translate["layers"] == {
        "encoder": config.encoder_layers,
        "decoder": config.decoder_layers,
    }
    assert translate["parameters"] == sum(
        p.numel() for p in boxed("translate").transformer.parameters()
    )
    assert models["generate"]["layers"]["encoder"] == 0
    assert models["classify"]["labels"] == boxed("classify").labels
    assert models["fill"]["max_input_tokens"] == boxed("fill").longest


def test_models_are_listed_while_others_are_loaded():
    pool = ModelPool(Scheduler(1), Limits())
    pool.add("classify", boxed("classify"))
    call = Call(pool, Settings(), None, {})
    listed = asyncio.run(list_models(call, None))
    assert (listed.ready, [model.name for model in listed.models]) == (False, ["classify"])
    with pytest.raises(Loading):
        any_model(call, "translate")


def test_classify(url):
    texts = ["A wonderful film.", "Terribly boring."]
    result = post(f"{url}/classify", texts=texts)
    for actual, expected in zip(result["results"], boxed("classify").classify(texts), strict=True):
        assert actual["label"] == expected.label
        assert actual["probabilities"] == pytest.approx(expected.probabilities)


def test_fill(url):
    texts = ["The cat <mask> on the sofa.", "He <mask> a <mask>."]
    result = post(f"{url}/fill", texts=texts, top=3)
    for actual, expected in zip(result["results"], boxed("fill").fill(texts, top=3), strict=True):
        assert actual["text"] == expected.text
        words = [[word["word"] for word in gap["candidates"]] for gap in actual["gaps"]]
        assert words == [[word for word, _ in gap.candidates] for gap in expected.gaps]


def test_a_text_without_a_mask_does_not_disturb_other_requests(url):
    """Texts of several requests share a call of the model."""
    errors, results = [], []

    def send(text):
        if "<mask>" in text:
            results.append(post(f"{url}/fill", texts=[text])["results"][0]["text"])
        else:
            errors.append(error_of(f"{url}/fill", texts=["It <mask>.", text]))

    texts = ["The cat <mask> on the sofa.", "no word is hidden"] * 8
    threads = [threading.Thread(target=send, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [boxed("fill").fill(texts[0]).text] * 8
    assert [code for code, _ in errors] == [400] * 8
    assert all("texts[1]" in error["message"] for _, error in errors)


def test_answer_one_or_several_questions(url, answering):
    questions, contexts = ["Where is Anna?", "Who sleeps?"], ["Anna is in Rome.", "Tom sleeps."]
    pairs = zip(questions, contexts, strict=True)
    several = post(
        f"{url}/answer", n_best=2, questions=[{"question": q, "context": c} for q, c in pairs]
    )
    expected = answering.answer(questions, contexts, n_best=2)
    for actual, best in zip(several["results"], expected, strict=True):
        assert [each["answer"] for each in actual["n_best"]] == [each.text for each in best]
        assert actual["score"] == pytest.approx(best[0].score, abs=1e-4)
        assert actual["answer"] == best[0].text
    one = post(f"{url}/answer", question=questions[0], context=contexts[0])
    assert one["results"][0]["answer"] == expected[0][0].text


def test_embed_and_similarity(url):
    result = post(f"{url}/embed", texts=LINES)
    vectors = boxed("embed").embed(LINES)
    np.testing.assert_allclose(result["vectors"], vectors, atol=1e-6)
    np.testing.assert_allclose(result["similarity"], vectors @ vectors.T, atol=1e-5)


def test_search_and_repeated_search(url):
    queries = ["an animal", "weather"]
    first = post(f"{url}/search", queries=queries, documents=LINES, top=2)
    expected = boxed("embed").search(queries, LINES, top=2)
    for hits, best in zip(first["results"], expected, strict=True):
        assert [(hit["line"], hit["text"]) for hit in hits] == [
            (hit.line, hit.text) for hit in best
        ]
        assert [hit["score"] for hit in hits] == pytest.approx(
            [hit.score for hit in best], abs=1e-5
        )
    again = post(f"{url}/search", queries=queries, documents_id=first["documents_id"], top=2)
    assert again == first
    other = post(f"{url}/search", queries=queries, documents=LINES[:3])
    assert other["documents_id"] != first["documents_id"]


def test_document_cache_is_bounded():
    documents = Documents(["text"] * 10, np.zeros((10, 25), np.float32))
    cache = DocumentCache(most=3 * documents.size)
    for name in "abc":
        cache.put(name, documents)
    cache.get("a")
    cache.put("d", documents)
    assert [cache.get(name) is not None for name in "abcd"] == [True, False, True, True]
    assert cache.size == 3 * documents.size
    cache.put("large", Documents(["x"], np.zeros((1_000, 1_000), np.float32)))
    assert cache.get("large") is None


def test_attention_equals_the_python_interface(url):
    result = post(f"{url}/attention", text="A dog sleeps.", target="Ein Hund schläft.")
    expected = boxed("translate").attention("A dog sleeps.", target="Ein Hund schläft.")
    assert [stack["name"] for stack in result["stacks"]] == list(expected.stacks)
    assert result["target"] == "Ein Hund schläft."
    for stack in result["stacks"]:
        other = expected.stacks[stack["name"]]
        assert (stack["rows"], stack["columns"]) == (other.rows, other.columns)
        assert (stack["layers"], stack["heads"]) == other.weights.shape[:2]
        for name in ("weights", "rollout"):
            numbers = np.frombuffer(base64.b64decode(stack[name]), "<u2") / 65535
            np.testing.assert_allclose(numbers, getattr(other, name).ravel(), atol=2e-5)


@pytest.mark.parametrize(
    ("model", "text", "stacks"),
    [
        ("classify", "A wonderful film.", ["encoder"]),
        ("fill", "A <mask> film.", ["encoder"]),
        ("generate", "Once upon", ["decoder"]),
        ("embed", "A film", ["encoder"]),
        ("translate", "A film. Another film.", ["encoder", "decoder", "cross"]),
    ],
)
def test_attention_of_every_task(url, model, text, stacks):
    result = post(f"{url}/attention", text=text, model=model)
    assert [stack["name"] for stack in result["stacks"]] == stacks


def test_attention_of_a_question(url):
    result = post(f"{url}/attention", text="Who?", context="Tom sleeps.", model="answer")
    assert "<sep>" in result["stacks"][0]["rows"]


def test_attention_is_bounded(url):
    code, error = error_of(f"{url}/attention", text="a " * 125, target="b " * 4_000)
    assert code == 400
    assert "tokens" in error["message"]
    config = boxed("translate").config.model
    most = int(error["message"].split("room for ")[1].split(":")[0])
    layers = config.encoder_layers + 2 * config.decoder_layers
    assert config.heads * layers * most**2 <= MOST_WEIGHTS < config.heads * layers * (most + 1) ** 2


def test_walk_has_the_steps_of_the_view(url):
    result = post(f"{url}/walk", text="cat", target="hut")
    steps = walk_steps("cat", "hut", walk_config("cat", "hut", "encoder-decoder", {}), 0)
    assert [step["title"] for step in result["steps"]] == [step.name for step in steps]
    for step, other in zip(result["steps"], steps, strict=True):
        [table] = step["tables"]
        assert table["values"] == other.values
        assert (step["text"], table["rows"], table["columns"]) == (
            other.sentence,
            other.rows,
            other.columns,
        )
    assert any(None in row for step in result["steps"] for row in step["tables"][0]["values"])


@pytest.mark.parametrize("style", ["encoder", "decoder"])
def test_concurrent_walks_have_the_same_weights(url, style):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(post(f"{url}/walk", text="ab", style=style)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [results[0]] * 4


def test_tokenize(url):
    text = "Ein Überfall 🙂!"
    for side in ("source", "target"):
        result = post(f"{url}/tokenize", text=text, side=side)
        tokenizer = getattr(boxed("translate"), f"{side}_tokenizer")
        assert [token["id"] for token in result["tokens"]] == tokenizer.encode(text)
        assert [token["text"] for token in result["tokens"]] == tokenizer.tokens(
            tokenizer.encode(text)
        )
        for token in result["tokens"]:
            if not token["text"].startswith("\\x"):
                assert text[token["start"] : token["end"]] == token["text"].replace("▁", " ")
    special = post(f"{url}/tokenize", text="<eos>", model="classify")["tokens"]
    assert all(token["id"] > 5 for token in special)


@pytest.mark.parametrize(
    ("path", "fields", "status", "field"),
    [
        ("classify", {}, 400, "texts"),
        ("classify", {"texts": []}, 400, "texts"),
        ("classify", {"texts": "one"}, 400, "texts"),
        ("classify", {"texts": ["a", 1]}, 400, "texts[1]"),
        ("classify", {"texts": ["a"] * 257}, 400, "texts"),
        ("classify", {"texts": ["a" * 20_001]}, 413, "texts"),
        ("classify", {"texts": ["a"], "model": "fill"}, 400, "model"),
        ("fill", {"texts": ["<mask>"], "top": 101}, 400, "top"),
        ("answer", {"question": "Who?"}, 400, "context"),
        ("answer", {"question": "", "context": "a"}, 400, "question"),
        ("answer", {"questions": []}, 400, "questions"),
        ("answer", {}, 400, "questions"),
        ("answer", {"question": "q", "context": "c" * 20_001}, 413, "context"),
        ("search", {"queries": ["a"]}, 400, "documents"),
        ("search", {"queries": ["a"], "documents": []}, 400, "documents"),
        ("search", {"queries": ["a"], "documents": ["b"] * 2_001}, 400, "documents"),
        ("search", {"queries": ["a"], "documents": ["b"], "documents_id": "c"}, 400, "documents"),
        ("search", {"queries": ["a"], "documents_id": "c"}, 404, "documents_id"),
        ("search", {"queries": ["a"], "documents": ["b" * 20_001]}, 413, "documents"),
        ("search", {"queries": ["a"] * 256, "documents": ["b" * 4_000] * 5}, 413, "queries"),
        ("alternatives", {"text": "A cat.", "prefix": "x " * 999}, 400, "prefix"),
        ("attention", {"text": "a", "model": "none"}, 404, "model"),
        ("walk", {"text": "a" * 101}, 400, "text"),
        ("walk", {"text": "a", "style": "other"}, 400, "style"),
        ("tokenize", {"text": "a", "side": "both"}, 400, "side"),
        ("tokenize", {"text": "a" * 20_001}, 413, "text"),
    ],
)
def test_errors_name_the_field(url, path, fields, status, field):
    code, error = error_of(f"{url}/{path}", **fields)
    assert (code, error["field"]) == (status, field)
    assert error["message"]


def test_an_unknown_field_is_answered_with_the_known_ones(url):
    _, error = error_of(f"{url}/tokenize", texts=["a"])
    assert error["message"] == (
        "texts: object contains unknown field `texts`; known: text, model, side"
    )


def test_missing_models_and_functions():
    with serve(Settings(limits=Limits(items=1, documents=1)), models=("embed",)) as address:
        assert error_of(f"{address}/api/walk", text="a")[0] == 404
        assert error_of(f"{address}/api/classify", texts=["a"])[0] == 404
        assert error_of(f"{address}/api/translate", text="a")[0] == 404
        assert error_of(f"{address}/api/embed", texts=["a", "b"])[0] == 400
        assert error_of(f"{address}/api/search", queries=["a"], documents=["a", "b"])[0] == 400


def test_damaged_model_is_an_error_of_the_service(url, monkeypatch):
    async def compute_nan(self, texts):
        refuse_nan([math.nan])

    monkeypatch.setattr(ServedModel, "classify", compute_nan)
    status, error = error_of(f"{url}/classify", texts=["a"])
    assert (status, error["code"]) == (500, "damaged_model")


def test_long_texts_of_options_are_not_tokenised_in_the_event_loop():
    def thread(inputs, **options):
        return threading.get_ident()

    pool = ModelPool(Scheduler(1), Limits())
    model = ServedModel("answer", SimpleNamespace(plan=thread), pool.scheduler, pool.limits)
    own, long = threading.get_ident(), "a" * 3_000
    assert asyncio.run(model.plan(["a"], context=["b"], prefix="c")) == own
    assert asyncio.run(model.plan(["a"], context=[long])) != own
    assert asyncio.run(model.plan(["a"], prefix=long)) != own


def test_service_whose_thread_has_ended_is_not_ready():
    pool = ModelPool(Scheduler(1), Limits())
    gateway = create_app(pool, Settings())
    assert not gateway.ready
    pool.ready = True
    assert gateway.ready
    pool.scheduler.stop()
    assert not gateway.ready
