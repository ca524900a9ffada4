"""The search for the head that resolves a pronoun, in weights with a known best head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from regard.text.builtin import PRONOUN_PHRASES, PRONOUN_SENTENCE
from regard.text.tokenizer import Tokenizer
from regard.view.pronoun import (
    PronounHead,
    describe_heads,
    draw_pronoun,
    find_heads,
    places,
    read_sentences,
)

SIDES = [(side, text) for side in (0, 1) for text in (pair[side] for pair in PRONOUN_SENTENCE)]


@pytest.mark.parametrize("kind", ["bpe", "byte", "character"])
@pytest.mark.parametrize(("side", "text"), SIDES)
def test_tokens_of_a_phrase_decode_to_the_phrase(kind, side, text):
    lines = [english for english, _ in PRONOUN_SENTENCE] + [
        german for _, german in PRONOUN_SENTENCE
    ]
    tokenizer = Tokenizer.learn(lines, kind, 300, quiet=True)
    ids = tokenizer.encode(text)
    for phrase in PRONOUN_PHRASES[side]:
        chosen = places(tokenizer, text, phrase)
        assert tokenizer.decode([ids[i] for i in chosen]).strip() == phrase
    word = "it" if side == 0 else ("es" if "es" in text.split() else "sie")
    chosen = places(
        tokenizer, text, word if side == 0 else f"weil {word}", "" if side == 0 else "weil"
    )
    assert tokenizer.decode([ids[i] for i in chosen]).strip() == word


@pytest.fixture(scope="module")
def sentences(model):
    return read_sentences(model("translate", "encoder-decoder"))


def planted(sentences, name, head, right=(0.75, 0.875)):
    """The sentences, with a head of layer 2 that has the weights `right` on the correct phrases."""
    results = []
    for sentence, phrase, weight in zip(sentences, (0, 1), right, strict=True):
        stack = sentence.attention.stacks[name]
        weights = stack.weights.copy()
        rows, columns = sentence.rows[name], sentence.phrases[name][phrase]
        weights[1, head - 1, rows] = 0
        weights[1, head - 1, rows, columns[0]] = weight
        weights[1, head - 1, rows, 0 if 0 not in columns else -1] += 1 - weight
        stacks = {**sentence.attention.stacks, name: replace(stack, weights=weights)}
        results.append(replace(sentence, attention=replace(sentence.attention, stacks=stacks)))
    return tuple(results)


@pytest.mark.parametrize("name", ["encoder", "decoder", "cross"])
def test_the_head_that_resolves_the_pronoun_is_identified_in_every_stack(sentences, name, tmp_path):
    changed = planted(sentences, name, head=3)
    heads = find_heads(changed)
    assert len(heads) == 3 * 2 * 4
    best = heads[0]
    assert (best.stack, best.layer, best.head) == (name, 2, 3)
    assert best.weights[0][0] >= 0.75
    assert best.weights[1][1] >= 0.875
    text = "\n".join(describe_heads(heads))
    assert f"{best.name} shows it best (of 24 heads)." in text
    assert f"{best.weights[0][0]:.2f}, " in text
    assert ('In the encoder, at "it": no head shows it clearly' in text) == (name != "encoder")
    files = draw_pronoun(changed, best, tmp_path / "pronoun")
    assert [path.name for path in files] == ["pronoun.png", "pronoun.svg"]
    drawn = (tmp_path / "pronoun.svg").read_text(encoding="utf-8")
    animal = PRONOUN_PHRASES[1 if name == "decoder" else 0][0]
    assert f"{animal}: {best.weights[0][0]:.2f}" in drawn
    for english, _ in PRONOUN_SENTENCE:
        assert english.partition("'")[0] in drawn


def test_head_that_always_prefers_the_animal_is_not_selected():
    stubborn = PronounHead("encoder", 1, 1, ((0.9, 0.0), (0.9, 0.0)))
    faint = PronounHead("encoder", 1, 2, ((0.06, 0.05), (0.05, 0.06)))
    assert stubborn.margin == pytest.approx(-0.9)
    assert faint.margin == pytest.approx(0.01)


def test_the_report_states_that_no_head_resolves_the_pronoun(sentences):
    even = []
    for sentence in sentences:
        stacks = {
            name: replace(stack, weights=np.full_like(stack.weights, 1 / len(stack.columns)))
            for name, stack in sentence.attention.stacks.items()
        }
        even.append(replace(sentence, attention=replace(sentence.attention, stacks=stacks)))
    heads = find_heads(tuple(even))
    text = describe_heads(heads)
    assert text[0].startswith('What "it" refers to: no head shows it clearly; head ')
    assert any("The animal 0." in line or "Das Tier 0." in line for line in text)


def test_rows_write_the_pronoun_and_columns_are_the_phrases(sentences, model):
    spell = model("translate", "encoder-decoder").task.tokenizer
    for sentence, (_, german), word in zip(sentences, PRONOUN_SENTENCE, ("es", "sie"), strict=True):
        for name in ("decoder", "cross"):
            stack = sentence.attention.stacks[name]
            written = "".join(stack.writes[i] for i in sentence.rows[name])
            assert written.strip("▁") == word
        ids = spell.encode(german)
        columns = sentence.attention.stacks["decoder"].columns
        for chosen, phrase in zip(sentence.phrases["decoder"], PRONOUN_PHRASES[1], strict=True):
            read = [ids[i - 1] for i in chosen]
            assert spell.decode(read).strip() == phrase
            assert spell.tokens(read) == [columns[i] for i in chosen]
