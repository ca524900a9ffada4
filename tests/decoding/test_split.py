"""A long text is split between sentences, otherwise between words, otherwise between characters."""

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.tasks.joining import split_pieces
from regard.tasks.translate import Translate
from regard.text.tokenizer import Tokenizer

LINES = ["Das alte Haus steht am Fluss. Ein Hund läuft über die Straße!", "Haus Hund Fluss Straße"]


@cache
def tokenizer(kind):
    return Tokenizer.learn(LINES * 20, kind, 330, quiet=True)


def counter(kind):
    return lambda text: len(tokenizer(kind).encode(text))


WORDS = st.sampled_from(
    ["Haus", "Hund.", "Straße", "läuft!", "日本語。", "a", "😀😀", "…", "x" * 40, "Ein?"]
)
SPACES = st.sampled_from([" ", " ", "  ", "\n", "\t "])
TEXTS = st.lists(st.tuples(WORDS, SPACES), min_size=1, max_size=30).map(
    lambda pairs: "".join(word + space for word, space in pairs)
)


@pytest.mark.parametrize("kind", ["bpe", "byte", "character"])
@given(text=st.one_of(TEXTS, st.text(min_size=1, max_size=60)), limit=st.integers(4, 40))
@example(text="Haus Hund Haus Hund", limit=4)
@example(text="x" * 41, limit=4)
def test_pieces_fit_limit_and_preserve_text(kind, text, limit):
    count = counter(kind)
    pieces = split_pieces(text, count, limit)
    assert all(count(piece) <= limit for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    words = text.split()
    if all(count(" " + word) <= limit and count(word) <= limit for word in words):
        assert " ".join(pieces).split() == words


def test_text_within_limit_is_not_split():
    text = "  Ein Hund.  Und \n noch  einer! "
    assert split_pieces(text, len, len(text)) == [text]


def test_text_is_split_between_sentences_if_that_suffices():
    text = "Eins zwei. Drei vier! Fünf sechs? Sieben acht… 九十。 Elf."
    assert split_pieces(text, len, 12) == [
        "Eins zwei.",
        "Drei vier!",
        "Fünf sechs?",
        "Sieben acht…",
        "九十。 Elf.",
    ]
    assert split_pieces(text, len, 25) == [
        "Eins zwei. Drei vier!",
        "Fünf sechs? Sieben acht…",
        "九十。 Elf.",
    ]


def test_only_long_sentences_are_split_between_words():
    text = "Kurz hier. Das ist ein langer Satz mit Wörtern. Kurz da."
    pieces = split_pieces(text, len, 20)
    assert pieces[0] == "Kurz hier."
    assert pieces[-1] == "Kurz da."
    assert len(pieces) > 3
    assert " ".join(pieces) == text


def test_period_inside_a_word_does_not_end_a_sentence():
    assert split_pieces("Version 3.11 ist da. Gut so.", len, 21) == [
        "Version 3.11 ist da.",
        "Gut so.",
    ]


@pytest.mark.parametrize("letter", ["x", "ß", "語", "😀"])
@pytest.mark.parametrize("kind", ["bpe", "byte", "character"])
def test_very_long_word_is_split_between_characters(kind, letter):
    count, word = counter(kind), letter * 10_000
    for text in (word, f"Ein {word} Hund."):
        pieces = split_pieces(text, count, 100)
        assert all(0 < count(piece) <= 100 for piece in pieces)
        assert "".join("".join(pieces).split()) == "".join(text.split())


def test_white_space_gives_no_pieces():
    assert "".join(split_pieces(" \n" * 500, len, 10)).strip() == ""
    assert Translate(tokenizer("byte"), tokenizer("byte")).requests([" \n" * 500], 20) == [[]]


@pytest.mark.parametrize("kind", ["bpe", "byte", "character"])
def test_requests_end_with_eos_and_respect_limit(kind):
    task = Translate(tokenizer(kind), tokenizer(kind))
    texts = ["", "  \n", "Haus", "Das Haus. " * 30, "Haus Hund " * 40, "x" * 500, "Das Haus steht"]
    for longest in (8, 20, 64):
        groups = task.requests(texts, longest, prefix="Ein")
        assert [len(group) for group in groups[:3]] == [0, 0, 1]
        assert min(len(group) for group in groups[3:6]) > 1
        for group in groups[2:]:
            assert [bool(request.prefix) for request in group] == [True] + [False] * (
                len(group) - 1
            )
            for request in group:
                assert 1 < len(request.source) <= longest
                assert list(request.source).index(Tokenizer.eos) == len(request.source) - 1
