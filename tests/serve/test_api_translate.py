"""/api/translate and /api/alternatives return what the Python interface returns, with offsets."""

from __future__ import annotations

import base64
import dataclasses

import numpy as np
import pytest

from regard import Model
from regard.serve.api_common import token_spans
from regard.serve.settings import Limits, Settings
from regard.text.tokenizer import Tokenizer
from serve.api_calls import error_of, post
from serve.live import boxed, serve

TEXT = "Two dogs are playing in the snow.  A café is open. 🙂\n\n- A man sleeps!\n"
SENTENCE = "Two dogs are playing in the snow."


@pytest.fixture(scope="module")
def url():
    with serve(models=("translate",)) as address:
        yield f"{address}/api"


def surface(token):
    return token["text"].replace("▁", " ")


def is_whole(token):
    """Whether a token is neither a special token nor a part of a character."""
    return not token["text"].startswith(("<", "\\x"))


def test_sentences_equal_those_of_the_python_interface(url):
    options = {"n_best": 3, "beam": 5, "length_penalty": 0.5, "alternatives": 4, "history": True}
    result = post(f"{url}/translate", text=TEXT, **options)
    expected = boxed("translate").predict(TEXT, **options)
    assert result["translation"] == expected.text
    assert (result["model"], result["source"], result["target"]) == ("translate", "en", "de")
    assert result["detected"]["language"] == "en"
    assert len(result["sentences"]) == len(expected.sentences)
    for sentence, other in zip(result["sentences"], expected.sentences, strict=True):
        assert sentence["translation"] == other.text
        assert sentence["score"] == pytest.approx(other.score, abs=1e-4)
        assert [token["text"] for token in sentence["tokens"]] == other.tokens
        assert [token["text"] for token in sentence["source_tokens"]] == other.source_tokens
        logprobs = [token["logprob"] for token in sentence["tokens"]]
        assert logprobs == pytest.approx(other.logprobs, abs=1e-4)
        for token, best in zip(sentence["tokens"], other.alternatives, strict=True):
            names = other.tokenizers[1].tokens([id for id, _ in best])
            assert [each["text"] for each in token["alternatives"]] == names
        assert [each["translation"] for each in sentence["n_best"]] == [
            each.text for each in other.n_best
        ]
        fates = [[candidate["fate"] for candidate in step] for step in sentence["history"]]
        assert fates == [[candidate.fate for candidate in step] for step in other.history]


def test_text_in_the_target_language_is_its_own_translation(url):
    text = "Die beiden Hunde spielen heute im Schnee."
    result = post(f"{url}/translate", text=text)
    assert (result["translation"], result["sentences"]) == (text, [])
    assert result["source"] == result["target"] == result["detected"]["language"] == "de"
    forced = post(f"{url}/translate", text=text, source="en")
    assert (forced["source"], forced["detected"], len(forced["sentences"])) == ("en", None, 1)
    assert post(f"{url}/translate", text=text, model="translate")["sentences"]


def test_model_of_the_detected_language_is_chosen():
    pool = {"en-de": boxed("translate"), "fr-de": boxed("translate")}
    with serve(models=pool) as address:
        for text, model in (
            ("The two dogs are playing together.", "en-de"),
            ("Les deux chiens jouent dans la neige aujourd'hui.", "fr-de"),
            ("Los dos perros juegan hoy en la nieve.", "en-de"),
        ):
            assert post(f"{address}/api/translate", text=text, target="de")["model"] == model
        chosen = post(f"{address}/api/translate", text="a", source="fr")
        assert (chosen["model"], chosen["detected"]) == ("fr-de", None)
        assert error_of(f"{address}/api/translate", text="a", target="fr")[1]["field"] == "target"


def test_offsets_count_code_points_of_text_and_translation(url):
    result = post(f"{url}/translate", text=TEXT)
    translation, text_end, translation_end = result["translation"], 0, 0
    for sentence in result["sentences"]:
        start, begin = sentence["start"], sentence["translation_start"]
        assert TEXT[start:].startswith(sentence["text"])
        assert translation[begin:].startswith(sentence["translation"])
        assert not TEXT[text_end:start].strip()
        assert not translation[translation_end:begin].strip()
        text_end, translation_end = (
            start + len(sentence["text"]),
            begin + len(sentence["translation"]),
        )
        for side, whole in (("source_tokens", TEXT), ("tokens", translation)):
            for token in filter(is_whole, sentence[side]):
                assert whole[token["start"] : token["end"]] == surface(token)
        for side in ("source_tokens", "tokens"):
            last = sentence[side][-1]
            assert last["text"] == "<eos>"
            assert last["start"] == last["end"]
    assert not TEXT[text_end:].strip()
    assert any("\\x" in token["text"] for s in result["sentences"] for token in s["source_tokens"])


def test_tokens_within_a_character_overlap():
    byte = Tokenizer("byte")
    ids = [*byte.encode("aé🙂"), Tokenizer.eos]
    assert token_spans(byte, ids) == [(0, 1), (1, 2), (1, 2), *[(2, 3)] * 4, (3, 3)]
    broken = [*byte.encode("é")[:1], *byte.encode("]"), *byte.encode("🙂")[:2], Tokenizer.eos]
    assert byte.decode(broken) == "\ufffd]\ufffd"
    assert token_spans(byte, broken) == [(0, 1), (1, 2), (2, 3), (2, 3), (3, 3)]


def test_pieces_of_a_long_sentence_are_located_in_the_text(url):
    text = "the dog,  the cat, " * 60
    result = post(f"{url}/translate", text=text)
    parts = result["sentences"]
    assert len(parts) > 1
    assert result["translation"] == boxed("translate").translate(text, warn=lambda *_: None)
    assert "".join("".join(part["text"] for part in parts).split()) == "".join(text.split())
    for part in parts:
        assert text[part["start"] :].startswith(part["text"])
        for token in filter(is_whole, part["source_tokens"]):
            assert text[token["start"] : token["end"]].strip() == surface(token).strip()


def test_attention_weights_are_those_of_the_model(url):
    result = post(f"{url}/translate", text=SENTENCE, attention=True)
    expected = boxed("translate").predict(SENTENCE, attention=True).attention
    [sentence] = result["sentences"]
    attention = sentence["attention"]
    n, m = len(sentence["tokens"]), len(sentence["source_tokens"])
    assert (attention["rows"], attention["columns"], attention["heads"]) == (n, m, 4)
    shapes = {"cross": (3, n, m), "decoder": (3, n, n), "encoder": (6, m, m)}
    assert (attention["layers"], attention["encoder_layers"]) == (3, 6)
    assert attention["parts"].keys() == shapes.keys()
    for name, (layers, rows, columns) in shapes.items():
        numbers = np.frombuffer(base64.b64decode(attention["parts"][name]), "<u2") / 65535
        weights = numbers.reshape(layers, 4, rows, columns)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-3)
        np.testing.assert_allclose(
            weights, np.stack([each.numpy() for each in expected[name]]), atol=2e-5
        )


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_empty_texts_have_no_sentences(url, text):
    result = post(f"{url}/translate", text=text, attention=True, n_best=2)
    assert result["sentences"] == []
    assert result["translation"] == boxed("translate").translate(text)


def test_translation_begins_with_the_prefix(url):
    result = post(f"{url}/translate", text=SENTENCE, prefix="Drei Katzen")
    assert result["translation"].startswith("Drei Katzen")
    assert result["translation"] == boxed("translate").translate(SENTENCE, prefix="Drei Katzen")


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"text": 1}, 400, "text"),
        ({"text": "a", "n_best": 11}, 400, "n_best"),
        ({"text": "a", "n_best": 5, "beam": 2}, 400, "n_best"),
        ({"text": "a", "beam": 0}, 400, "beam"),
        ({"text": "a", "target": "fr"}, 400, "target"),
        ({"text": "a", "source": "de"}, 400, "source"),
        ({"text": "a", "model": "other"}, 404, "model"),
        ({"text": "a", "max_length": 1_001}, 400, "max_length"),
        ({"text": "a" * 20_001}, 413, "text"),
        ({"text": "a " * 1_001, "attention": True}, 413, "attention"),
        ({"text": "a " * 1_001, "alternatives": 1}, 413, "alternatives"),
        ({"text": "the dog " * 240, "attention": True}, 413, "attention"),
    ],
)
def test_errors_name_the_field(url, fields, status, field):
    code, error = error_of(f"{url}/translate", **fields)
    assert (code, error["field"]) == (status, field)
    assert field in error["message"]


def test_limits_of_the_settings():
    limits = Limits(characters=10, new_tokens=20)
    with serve(Settings(limits=limits), models=("translate",)) as address:
        assert error_of(f"{address}/api/translate", text="x" * 11)[0] == 413
        assert error_of(f"{address}/api/translate", text="x", max_length=21)[0] == 400
        assert post(f"{address}/api/translate", text="x" * 10, max_length=20)["translation"]


# ---- alternatives -------------------------------------------------------------------------


def test_alternatives_are_different_words_with_complete_translations(url):
    result = post(f"{url}/alternatives", text=SENTENCE, prefix="Zwei ", count=4)
    words = result["alternatives"]
    assert len({each["word"] for each in words}) == 4
    assert words[0]["translation"] == boxed("translate").translate(SENTENCE)
    logprobs = [each["logprob"] for each in words]
    assert logprobs == sorted(logprobs, reverse=True)
    for each in words:
        assert each["prefix"] == f"Zwei {each['word']}"
        assert each["translation"].startswith(each["prefix"])
        assert not each["translation"][len(each["prefix"]) :][:1].isalnum()


def test_log_probability_is_that_of_the_whole_word(url):
    [first, *_] = post(f"{url}/alternatives", text=SENTENCE, prefix="Zwei ")["alternatives"]
    prediction = boxed("translate").predict(SENTENCE)
    assert prediction.tokens[:4] == ["Zwei", "▁H", "unde", "▁spielen"]
    assert (first["word"], first["translation"]) == ("Hunde", prediction.text)
    assert first["logprob"] == pytest.approx(sum(prediction.logprobs[1:3]), abs=1e-4)


def test_alternatives_at_the_start_begin_without_a_space(url):
    words = post(f"{url}/alternatives", text=SENTENCE, prefix="")["alternatives"]
    assert words[0]["word"] == "Zwei"
    assert all(each["translation"].startswith(each["word"]) for each in words)


def test_prefix_without_a_space_is_a_whole_word_if_the_model_ends_it(url):
    spaced, bare = (
        post(f"{url}/alternatives", text=SENTENCE, prefix=prefix)["alternatives"]
        for prefix in ("Zwei ", "Zwei")
    )
    assert spaced == bare


def test_prefix_within_a_word_is_completed_with_the_tokens_of_the_model(url):
    words = post(f"{url}/alternatives", text=SENTENCE, prefix="Zwei Hunde sp")["alternatives"]
    assert words[0]["word"] == "spielen"
    assert words[0]["translation"] == boxed("translate").translate(SENTENCE)
    assert all(each["word"].startswith("sp") for each in words)


def test_models_of_characters_have_alternatives():
    model = boxed("translate")
    characters = Tokenizer("character", sorted(set("abcdefghijklmnop .")))
    size = {"vocabulary_size": characters.size, "source_vocabulary_size": characters.size}
    config = dataclasses.replace(
        model.config, model=dataclasses.replace(model.config.model, **size)
    )
    task = type(model.task).make(config, (characters, characters))
    small = Model(config, type(model.transformer)(config.model), task)
    with serve(models={"en-de": small}) as address:
        words = post(f"{address}/api/alternatives", text="a b", prefix="a ", count=2)
    assert len(words["alternatives"]) == 2
    assert all(each["translation"].startswith("a ") for each in words["alternatives"])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": " "}, "text"),
        ({"text": "the dog " * 200}, "text"),
        ({"text": "a", "prefix": 3}, "prefix"),
        ({"text": "a", "count": 11}, "count"),
    ],
)
def test_errors_of_alternatives_name_the_field(url, fields, field):
    code, error = error_of(f"{url}/alternatives", **fields)
    assert (code, error["field"]) == (400, field)
