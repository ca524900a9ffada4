"""A long text in pieces has the tokens and the vocabulary of the whole text."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text import pieces as module
from regard.text.pieces import pieces
from regard.text.tokenizer import Tokenizer

WORDS = [
    "the",
    " the",
    "then",
    "it's",
    "don't",
    "  ",
    "\n\n",
    "a1b2",
    "über",
    "日本語。",
    "x,y",
    "中文，好",
]
# All character classes of the pre-tokenizer's pattern, and characters that Python and the library
# may classify differently.
SIGNS = "ab1Z 's'll\n\t\r,.!-_。，、中语éß\u00a0\u0085\x1c\x1f\u2028\u3000\u200b\u180e\u0301²½Ⅷ٣🙂\u0e33\U00020000"
TOKENIZER = Tokenizer.learn([" ".join(WORDS) * 5, SIGNS * 5], "bpe", 400)
any_text = st.text(st.characters(exclude_categories=["Cs"]))
texts = st.lists(st.sampled_from([*WORDS, *SIGNS]) | any_text).map("".join)


@pytest.fixture
def small(monkeypatch):
    """Pieces of a few characters."""
    monkeypatch.setattr(module, "PIECE", 3)


@given(texts)
def test_pieces_have_the_words_of_the_whole_text(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 1)
        parts = list(pieces(text))
    assert "".join(parts) == text
    assert [word for part in parts for word in TOKENIZER.words(part)] == TOKENIZER.words(text)


def test_long_text_in_pieces_has_the_ids_of_the_whole_text(small):
    text = "".join(WORDS) * 20 + SIGNS
    assert len(list(pieces(text))) > 100
    encoded = TOKENIZER.encode_batch(["the", text, "", text + "!"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 10**6)
        assert encoded == TOKENIZER.encode_batch(["the", text, "", text + "!"])


@pytest.mark.parametrize("chunk", [("CHUNK_ITEMS", 3), ("CHUNK_CHARACTERS", 7)])
def test_ids_do_not_depend_on_chunk_size(chunk, small, monkeypatch):
    texts = ["".join(WORDS), "the then", "", "über 1"] * 3
    expected = TOKENIZER.encode_batch(texts)
    monkeypatch.setattr(module, *chunk)
    assert TOKENIZER.encode_batch(texts) == expected


def test_vocabulary_does_not_depend_on_piece_size(small):
    text = ["".join(WORDS) * 9 + "the theme then " * 5, SIGNS]
    learned = Tokenizer.learn(text, "bpe", 320)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 10**6)
        assert Tokenizer.learn(text, "bpe", 320).fingerprint == learned.fingerprint


def test_very_long_word_is_split(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 10)
    monkeypatch.setattr(module, "LONGEST_WORD", 20)
    assert [len(piece) for piece in pieces("a" * 100)] == [30, 30, 30, 10]
    assert [len(piece) for piece in pieces("a" * 30)] == [30]
    assert list(pieces("a" * 29 + " b")) == ["a" * 29, " b"]


PROGRAM = """
import resource, sys
from regard.text.tokenizer import Tokenizer
word = sys.argv[1]
tokenizer = Tokenizer.learn(["the cat sat on the mat, and 1 dog " * 9], "bpe", 300)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
text = word * (2_500_000 // len(word))
assert tokenizer.decode(tokenizer.encode(text)) == text
Tokenizer.learn([text], "bpe", 300)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("word", ["the cat sat on the mat,\n", "cat"])
def test_encoding_and_learning_long_text_use_bounded_memory(word):
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=True
    )
    assert (
        int(process.stdout) < 200
    )  # MB; over 500 MB if the library processed the whole text at once
