"""Language detection and the names of languages."""

from __future__ import annotations

import pytest

from regard.serve.languages import detect, identifier, language_name, targets_by_source
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


def test_languages_of_the_service_are_more_probable():
    german, danish = (
        pool_of(ScriptedModel(copy, ("de", "en"))),
        pool_of(ScriptedModel(copy, ("da", "en"))),
    )
    assert detect("Hund", german).language == "de"
    assert detect("Hund", danish).language == "da"


def test_classifier_is_loaded_once():
    assert identifier() is identifier()
