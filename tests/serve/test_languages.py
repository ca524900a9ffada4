"""Language detection and the names of languages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from regard.errors import InputError
from regard.serve.languages import detect, identifier, language_name, targets_by_source
from regard.serve.models import languages_of
from serve.scripted import ScriptedModel, copy, pool_of

POOL = pool_of(
    ScriptedModel(copy), ScriptedModel(copy, ("en", "fr")), ScriptedModel(copy, ("de", "en"))
)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The weather is nice today.", "en"),
        ("Das Wetter ist heute schön.", "de"),
        ("Il fait beau aujourd'hui.", "fr"),
        ("¿Dónde está la biblioteca?", "es"),
        ("Сегодня хорошая погода.", "ru"),
        ("今日はいい天気ですね。", "ja"),
        ("Hello World", "en"),
        ("Hallo Welt", "de"),
        ("hello", "en"),
        ("THE WEATHER IS NICE", "en"),
    ],
)
def test_detect(text, language):
    assert detect(text, POOL).language == language
    assert 0 < detect(text, POOL).confidence <= 100


def test_long_texts_are_certain():
    assert (
        detect("The weather is nice today, and we are going to the park. " * 200, POOL).confidence
        > 99
    )


@pytest.mark.parametrize("text", ["", "  \n", "123", "?!", "%", "\U0001f600"])
def test_text_without_letters_has_the_first_language(text):
    assert detect(text, POOL) == detect("", POOL)
    assert (detect(text, POOL).language, detect(text, POOL).confidence) == ("en", 0)


def test_languages_of_the_service():
    assert targets_by_source(POOL) == {"en": ["de", "fr"], "de": ["en"]}
    assert detect("", pool_of()).language == "en"
    assert (language_name("de"), language_name("tlh")) == ("German", "tlh")


@pytest.mark.parametrize(
    ("name", "files", "languages"),
    [
        ("en-de", ["a.fr", "a.it"], ("en", "de")),
        ("run", ["train.en", "train.de"], ("en", "de")),
        ("run", ["train.en.gz", "train.de.xz"], ("en", "de")),
        ("run", ["train.en.txt", "train.de.txt"], ("en", "de")),
        ("run", ["en.txt", "de.txt"], None),
        ("run", ["a.en", "b.en"], None),
        ("run", ["pairs.tsv"], None),
    ],
)
def test_languages_of_a_model(name, files, languages):
    model = SimpleNamespace(config=SimpleNamespace(data=SimpleNamespace(train=files)))
    if languages is None:
        with pytest.raises(InputError, match=r"write -m en-de=MODEL"):
            languages_of(name, model)
    else:
        assert languages_of(name, model) == languages


def test_languages_of_the_service_are_more_probable():
    german, danish = (
        pool_of(ScriptedModel(copy, ("de", "en"))),
        pool_of(ScriptedModel(copy, ("da", "en"))),
    )
    assert detect("Hund", german).language == "de"
    assert detect("Hund", danish).language == "da"


def test_classifier_is_loaded_once():
    assert identifier() is identifier()
