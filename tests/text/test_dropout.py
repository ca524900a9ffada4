"""BPE-dropout: the distribution of segmentations, and equal results in C++ and Python."""

import lzma
import os
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from learned import BPE, BYTE, LINES
from regard.errors import InputError
from regard.ops.cpu import build as native
from regard.text.dropout import CHARACTERS, Dropout, classes
from regard.text.tokenizer import SPECIALS, Tokenizer

SEP, EOS = Tokenizer.sep, Tokenizer.eos
ENGINES = ["python", *(["native"] if native.library("bpe") else [])]

any_text = st.text(st.characters(exclude_categories=["Cs"]))
# Difficult word boundaries: all kinds of whitespace, and ' before letters.
signs = st.text(st.sampled_from("aé1²!'’strevmlld \t\n\u00a0\u3000日🙂\ufffd"))
words = st.sampled_from([*" ".join(LINES).split(), "running", "übergrün", "  ", "\n", "'s"])
sentences = st.lists(words | any_text | signs).map(" ".join)


@pytest.fixture(params=ENGINES)
def cut(request, monkeypatch):
    """cut(text, p, seed): the tokens of a text, computed in C++ or in Python."""
    if request.param == "python":
        monkeypatch.setenv("REGARD_NATIVE", "off")
    return recut


def recut(text, dropout, seed, number=0, tokenizer=BPE):
    row = np.array(tokenizer.encode(text), np.uint16)
    return Dropout(tokenizer, dropout)([row], np.array([number]), seed)[0].tolist()


def both(tokenizer, rows, dropout, seed):
    """The results of C++ and of Python."""
    cut, numbers = Dropout(tokenizer, dropout), np.arange(len(rows)) + seed % 1000
    native_rows = cut(rows, numbers, seed)
    with native.without():
        return [row.tolist() for row in native_rows], [
            row.tolist() for row in cut(rows, numbers, seed)
        ]


@given(st.lists(st.lists(sentences), min_size=1), st.floats(0, 1), st.integers(0, 2**33))
@example([["it's 's 'll'd''ve  'm!'t", "a \u00a0\u00a0 b\u3000c \n"]], 0.5, 2**33)
@example([["x" * 3000]], 0.01, 1)
def test_native_code_equals_python(batch, dropout, seed):
    rows = [
        np.array([id for text in texts for id in [*BPE.encode(text), SEP]] + [EOS], np.uint16)
        for texts in batch
    ]
    native_rows, reference = both(BPE, rows, dropout, seed)
    assert native_rows == reference


def test_native_code_equals_python_on_multi30k():
    if "REGARD_DATA" not in os.environ:
        pytest.skip("REGARD_DATA is not set")
    folder = Path(os.environ["REGARD_DATA"]) / "multi30k"
    files = [folder / f"val.{language}.xz" for language in ("en", "de")]
    texts = "".join(lzma.decompress(path.read_bytes()).decode() for path in files).split("\n")
    tokenizer = Tokenizer.learn(texts, "bpe", 8000)
    rows = [np.array(ids) for ids in tokenizer.encode_batch(texts)]
    native_rows, reference = both(tokenizer, rows, 0.1, 3)
    assert native_rows == reference
    with native.without():
        whole = Dropout(tokenizer, 0.0)(rows, np.arange(len(rows)), 3)
    assert all(map(np.array_equal, whole, rows))


def test_character_classes_match_the_library():
    known = classes()
    for sign, kind in zip("aß日1²٣!€🙂\u0301 \n\u00a0\u3000", "00011122223333", strict=True):
        assert known[ord(sign)] == int(kind), repr(sign)
    # Characters beyond the table count as other signs.
    for code in (CHARACTERS, 0xE0100, 0xF0000, 0x10FFFF):
        assert len(BPE.words("!" + chr(code))) == 1


@given(sentences, st.integers(0, 2**32))
def test_zero_dropout_equals_the_library(text, seed):
    with native.without():
        assert recut(text, 0.0, seed) == BPE.encode(text)
    assert recut(text, 0.0, seed) == BPE.encode(text)


@given(sentences, st.floats(0, 1), st.integers(0, 2**32))
def test_dropout_keeps_the_text_and_depends_on_its_seed(text, dropout, seed):
    ids = recut(text, dropout, seed)
    assert BPE.decode(ids) == text
    assert ids == recut(text, dropout, seed)


def test_dropout_produces_different_segmentations(cut):
    for ways in (
        {tuple(cut(" running", 0.3, seed)) for seed in range(50)},
        {tuple(cut(" running", 0.3, 1, number)) for number in range(50)},
    ):
        assert len(ways) > 3
        assert tuple(BPE.encode(" running")) in ways


def test_row_does_not_depend_on_other_rows(cut):
    rows = [np.array(BPE.encode(line)) for line in LINES]
    numbers = np.arange(len(rows))
    together = Dropout(BPE, 0.3)(rows, numbers, 5)
    for i, row in enumerate(together):
        assert row.tolist() == cut(LINES[i], 0.3, 5, i)


def test_special_tokens_are_kept_as_boundaries(cut):
    row = [*BPE.encode("it"), SEP, *BPE.encode("'s a dog"), SEP, SEP, EOS]
    result = Dropout(BPE, 0.5)([np.array(row)], np.array([0]), 1)[0]
    assert [id for id in result if id < len(SPECIALS)] == [SEP, SEP, SEP, EOS]
    first, second, *_ = np.split(result, np.flatnonzero(result == SEP))
    assert (BPE.decode(first.tolist()), BPE.decode(second.tolist())) == ("it", "'s a dog")


def outcomes(tokens, merges, p):
    """The probability of each segmentation of a word by the definition in the paper: at each step
    each possible merge is dropped with probability p, and the best of the others is applied."""
    possible = [
        (merges.index((a, b)), i) for i, (a, b) in enumerate(pairwise(tokens)) if (a, b) in merges
    ]
    result = {}
    for selected in product((False, True), repeat=len(possible)):
        chance = np.prod([1 - p if keep else p for keep in selected])
        left = sorted(merge for merge, keep in zip(possible, selected, strict=True) if keep)
        if not left:
            result[tokens] = result.get(tokens, 0) + chance
            continue
        i = left[0][1]
        joined = (*tokens[:i], tokens[i] + tokens[i + 1], *tokens[i + 2 :])
        for way, next_chance in outcomes(joined, merges, p).items():
            result[way] = result.get(way, 0) + chance * next_chance
    return result


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_segmentation_probabilities_match_the_paper(cut, p):
    merges = [("a", "b"), ("b", "a"), ("ab", "a"), ("aba", "b"), ("ab", "ab")]
    tokenizer = Tokenizer("bpe", [" ".join(merge) for merge in merges])
    row, times = np.array(tokenizer.encode("ababa")), 20_000
    rows = Dropout(tokenizer, p)([row] * times, np.arange(times), 11)
    ways, counts = np.unique(["|".join(tokenizer.tokens(row)) for row in rows], return_counts=True)
    frequencies = dict(zip(ways.tolist(), (counts / times).tolist(), strict=True))
    expected = {
        "|".join(way): chance for way, chance in outcomes(tuple("ababa"), merges, p).items()
    }
    assert sum(expected.values()) == pytest.approx(1)
    assert set(frequencies) <= set(expected)
    for way, chance in expected.items():  # five standard deviations
        assert (
            abs(frequencies.get(way, 0) - chance)
            < 5 * (chance * (1 - chance) / times) ** 0.5 + 1e-4
        )


def test_dropping_every_merge_leaves_single_bytes(cut):
    assert cut("grün", 1.0, 0) == BYTE.encode("grün")


def test_long_word_is_merged_in_reasonable_time(cut):
    text = "ab" * 50_000  # one word; a loop of n² steps would take minutes
    assert BPE.decode(cut(text, 1e-3, 0)) == text


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan")])
def test_dropout_outside_0_to_1_is_refused(dropout):
    with pytest.raises(InputError, match="a probability from 0 to 1"):
        Dropout(BPE, dropout)


def test_dropout_has_no_effect_without_merges():
    for tokenizer in (BYTE, Tokenizer.learn(LINES, "character", 100)):
        assert recut("Hund", 0.5, 0, tokenizer=tokenizer) == tokenizer.encode("Hund")
