"""The translation service: batches, languages, alternatives, and the real model."""

from __future__ import annotations

import asyncio
import lzma
import os
from pathlib import Path

import pytest

from regard.serve.document import Format
from regard.serve.errors import ServiceError
from regard.serve.models import ModelPool
from regard.serve.placeholders import find_placeholders
from regard.serve.scheduler import Scheduler
from regard.serve.settings import Limits
from regard.serve.translation import translate
from serve.live import boxed
from serve.scripted import ScriptedModel, copy, pool_of


def upper(text):
    return [text.upper()]


def run(pool, texts, source="en", target="de", **options):
    return asyncio.run(translate(pool, texts, source, target, **options))


@pytest.fixture(scope="module")
def box():
    """A pool with box:translate."""
    scheduler = Scheduler(Limits().queue_tokens)
    pool = ModelPool(scheduler, Limits())
    pool.add("translate", boxed("translate"))
    pool.ready = True
    scheduler.start()
    yield pool
    scheduler.stop()


def test_blank_texts_and_texts_without_letters_are_unchanged():
    model = ScriptedModel(upper)
    texts = ["", "  \n ", "123", "%s: {x}", "-"]
    assert [each.text for each in run(pool_of(model), texts)] == texts
    assert model.calls == []


def test_all_sentences_are_one_batch_and_white_space_is_kept():
    model = ScriptedModel(upper)
    texts = ["One dog. Two  dogs.\n\n Three\tcats ", "four", "\nfive."]
    results = [each.text for each in run(pool_of(model), texts)]
    assert results == [text.upper() for text in texts]
    assert model.calls == [["One dog.", "Two  dogs.", "Three\tcats", "four", "five."]]


def test_each_text_has_its_own_language():
    english, french = ScriptedModel(upper), ScriptedModel(lambda text: [text.title()], ("fr", "de"))
    texts = ["The dog is here.", "Le chien est dans la maison.", "Das ist ein Hund.", ""]
    results = run(pool_of(english, french), texts, "auto")
    assert [each.text for each in results] == [texts[0].upper(), texts[1].title(), texts[2], ""]
    assert [each.detected.language for each in results] == ["en", "fr", "de", "en"]
    assert (english.calls, french.calls) == ([[texts[0]]], [[texts[1]]])


def test_unknown_detected_language_uses_the_only_model():
    [result] = run(pool_of(ScriptedModel(upper)), ["¿Dónde está la biblioteca?"], "auto")
    assert result.text == "¿DÓNDE ESTÁ LA BIBLIOTECA?"
    assert result.detected.language == result.source == "es"


def test_language_pairs(box):
    assert run(box, ["Hallo {x}"], "de", "de")[0].text == "Hallo {x}"
    for source, target in [("de", "en"), ("en", "fr"), ("xx", "xx"), ("auto", "fr")]:
        with pytest.raises(ServiceError) as error:
            run(box, ["Hello"], source, target)
        assert error.value.status == 400


def test_alternatives_are_distinct_combinations():
    model = ScriptedModel(lambda text: [text, text.upper(), text.title()])
    [result] = run(pool_of(model), ["one dog. Two dogs."], alternatives=3)
    assert result.text == "one dog. Two dogs."
    assert result.alternatives == ["one dog. TWO DOGS.", "ONE DOG. Two dogs.", "one dog. Two Dogs."]


def test_added_full_stop_is_removed():
    model = ScriptedModel(lambda text: [text.upper().rstrip(".") + "."])
    texts = ["A heading", "A sentence.", "A question?", "{name} left"]
    assert [each.text for each in run(pool_of(model), texts)] == [
        "A HEADING", "A SENTENCE.", "A QUESTION?.", "{name} LEFT",
    ]  # fmt: skip


def test_hypotheses_equal_those_of_the_model(box):
    texts = ["A man rides a horse. The dog sleeps.", "Where is the station?\nIt is here."]
    expected = [each.text for each in boxed("translate").predict(texts)]
    assert [each.text for each in run(box, texts)] == expected


def test_batch_decodes_together(box):
    texts = [f"The {animal} is in the house." for animal in ["dog", "cat", "horse", "man"] * 5]
    before = box.scheduler.steps
    run(box, texts[:1])
    alone = box.scheduler.steps - before
    results = run(box, texts)
    assert len(results) == 20
    # One after the other, 20 texts would take 20 times as many steps.
    assert box.scheduler.steps - before - alone < 2 * alone


def test_real_model_puts_tags_at_the_right_words(box):
    texts = [
        "<p>A man is riding a <b>horse</b> in the <i>park</i>.</p>",
        "I have <strong>never</strong> seen such a <a href='x'>beautiful house</a> in my life.",
    ]
    results = [each.text for each in run(box, texts, form=Format("html"))]
    assert "<b>Pferd</b>" in results[0]
    assert "<i>Park</i>" in results[0]
    assert "<strong>nie</strong>" in results[1]
    assert "<a href='x'>schönes Haus</a>" in results[1]


def test_real_model_keeps_placeholders(box):
    texts = [
        "%1$s invited you to join %2$s.", "Welcome back, {name}! You have %d new messages.",
        "Download it (3.5 GB) from https://example.com/a?b=1 or ask a@b.org.",
        "It is 20 °C and 5 km to the station.", "Saved to ${HOME}/x; run `pip install y` &amp; go.",
    ]  # fmt: skip
    for text, result in zip(texts, run(box, texts), strict=True):
        for each in find_placeholders(text):
            assert result.text.count(text[each.start : each.end]) == 1


@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="needs the folder REGARD_DATA")
def test_detection_of_real_sentences():
    pool = pool_of(ScriptedModel(copy))
    from regard.serve.languages import detect

    for language in ("en", "de"):
        path = Path(os.environ["REGARD_DATA"], "newstest", f"newstest2014.{language}.xz")
        with lzma.open(path, "rt", encoding="utf-8") as file:
            sentences = [next(file) for _ in range(200)]
        correct = sum(detect(sentence, pool).language == language for sentence in sentences)
        assert correct >= 198


@pytest.mark.parametrize("markup", ["", "html"])
def test_early_check_of_the_queue_expects_no_more_tokens_than_the_text_has(markup):
    text = "A man is riding a bicycle, and two young children are playing outside. " * 20
    if markup:
        text = f"<style>{'a {b: c} ' * 2_000}</style><p>{text}</p>"
    checked, pool = [], pool_of(ScriptedModel(copy))
    pool.scheduler.check_room = checked.append
    run(pool, [text], form=Format(markup))
    read = text.partition("<p>")[2] if markup else text
    assert sum(checked) < 2 * len(boxed("translate").tokenizer.encode(read))
