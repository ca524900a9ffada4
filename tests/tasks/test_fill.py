"""fill: which words are hidden and how, and what is guessed in their place."""

import json
import math
import re
from contextlib import contextmanager
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError, Packed
from regard.tasks.fill import Fill
from regard.text.builtin import builtin_corpus
from regard.text.corpus import read_documents
from regard.text.tokenizer import SPECIALS, Tokenizer

CLS, MASK, UNK = Tokenizer.cls, Tokenizer.mask, Tokenizer.unk
CPU = torch.device("cpu")


def rows_of(lengths, size=500, seed=0):
    """Rows that begin with <cls>, of tokens that are none of the special ones."""
    random = np.random.default_rng(seed)
    return [np.array([CLS, *random.integers(len(SPECIALS), size, n)]) for n in lengths]


# ---- hiding -----------------------------------------------------------------------------


def within(count, total, chance, deviations=4.5):
    """Whether a count is what a coin of this chance would give."""
    return abs(count - total * chance) <= deviations * math.sqrt(total * chance * (1 - chance)) + 1


@pytest.mark.parametrize("mask", [0.15, 0.4])
def test_so_many_tokens_are_hidden_as_data_mask_says_in_three_ways(mask, bpe):
    task = Fill(bpe, mask=mask)
    rows = rows_of([200] * 100, bpe.size)
    tokens = np.concatenate(rows)
    batch = task.hide(rows, CPU, seed=7)
    shown, where, labels = batch.source.tokens.numpy(), batch.where.numpy(), batch.labels.numpy()
    asked = len(where)
    assert within(asked, 20_000, mask)
    masked = shown[where] == MASK
    kept = shown[where] == labels
    other = ~masked & ~kept
    assert within(masked.sum(), asked, 0.8)
    # Any token may be the same one by chance: one in so many words.
    same = 1 / (bpe.size - len(SPECIALS))
    assert within(kept.sum(), asked, 0.1 + 0.1 * same)
    assert within(other.sum(), asked, 0.1 - 0.1 * same)
    assert shown[where][other].min() >= len(SPECIALS)
    # What any token is, is spread over the whole vocabulary.
    assert len(set(shown[where][other].tolist())) > 0.3 * min(other.sum(), bpe.size)
    assert (labels == tokens[where]).all()
    untouched = np.setdiff1d(np.arange(len(tokens)), where)
    assert (shown[untouched] == tokens[untouched]).all()


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    mask=st.floats(0.001, 0.9), seed=st.integers(0, 2**32 - 1), whole=st.booleans(),
)  # fmt: skip
def test_for_all_rows_something_is_asked_for_and_never_cls(lengths, mask, seed, whole, bpe):
    task = Fill(bpe, mask=mask, whole_words=whole)
    rows = rows_of(lengths, bpe.size, seed)
    tokens = np.concatenate(rows)
    batch, again = (task.hide(rows, CPU, seed) for _ in range(2))
    where = batch.where.numpy()
    assert len(where) >= 1
    assert (np.diff(where) > 0).all()
    assert (batch.labels.numpy() == tokens[where]).all()
    assert CLS not in batch.labels
    shown = batch.source.tokens.numpy()
    assert (shown[tokens == CLS] == CLS).all()
    others = np.setdiff1d(np.arange(len(tokens)), where)
    assert (shown[others] == tokens[others]).all()
    assert batch.source.lengths == tuple(n + 1 for n in lengths)
    for one, other in ((batch.source.tokens, again.source.tokens), (batch.where, again.where)):
        assert torch.equal(one, other)


def test_another_seed_hides_other_words(bpe):
    task, rows = Fill(bpe), rows_of([300], bpe.size)
    one, other = (task.hide(rows, CPU, seed).where.tolist() for seed in (1, 2))
    assert one != other


def words_of(tokenizer, ids):
    """Which tokens make up one word, by the text alone: each token's characters are looked up in
    the text, and two neighbours belong together where a letter follows a letter."""
    groups, text = [], ""
    for place, id in enumerate(ids):
        piece = tokenizer.decode([id])
        inside = bool(re.search(r"\w$", text)) and bool(re.match(r"\w", piece))
        groups[-1].append(place) if groups and inside else groups.append([place])
        text += piece
    return groups


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_of_a_word_all_tokens_are_hidden_or_none(kind):
    lines = [english for english, _ in builtin_corpus("train", 400)]
    tokenizer = Tokenizer.learn(lines, kind, 300, quiet=True)  # few merges: words in many pieces
    rows = [np.array([CLS, *tokenizer.encode(line)]) for line in lines[:120]]
    task = Fill(tokenizer, whole_words=True)
    batch = task.hide(rows, CPU, seed=3)
    hidden = set(batch.where.tolist())
    start, several, together, words = 0, 0, 0, 0
    for row in rows:
        groups = words_of(tokenizer, row[1:].tolist())
        starts = [0, *(1 + group[0] for group in groups for _ in group)]
        assert tokenizer.word_starts(row).tolist() == starts  # and no two words are one
        for group in groups:
            places = {start + 1 + place for place in group}
            assert not places & hidden or places <= hidden
            words += 1
            several += len(group) > 1
            together += len(group) > 1 and places <= hidden
        start += len(row)
    assert several > 300  # there was something to get wrong
    assert within(together, several, 0.15)
    without = Fill(tokenizer).hide(rows, CPU, seed=3)
    assert not task.hide(rows, CPU, 3).where.equal(without.where)


def test_a_store_has_no_end_and_a_window_begins_with_cls(configure, bpe, data, tmp_path):
    config = configure("fill", data={"max_length": 20})
    task = Fill(bpe, "encoder", 20)
    store, _ = task.build([data["fill"][0][0]], tmp_path, config, True)
    every = np.arange(len(task.windows(store).starts))
    batch = task.batch(store, every, CPU)
    rows = [row.tolist() for row in batch.source.split(batch.source.tokens)]
    assert [len(row) for row in rows] == task.sizes(store)[0].tolist()
    assert max(map(len, rows)) == 20
    tokens = batch.source.tokens.clone()
    tokens[batch.where] = batch.labels  # what was hidden is put back
    found = [row[1:].tolist() for row in batch.source.split(tokens)]
    texts = [text for _, text in read_documents(data["fill"][0][0])]
    assert [*chain(*found)] == [*chain(*map(bpe.encode, texts))]
    assert {row[0] for row in rows} == {CLS}


# ---- guessing ---------------------------------------------------------------------------


@torch.no_grad()
def odds(model, ids):
    """[masks, V]: the probabilities at each <mask>, special tokens left out."""
    logits = model.transformer(Packed.of([ids])).double()[
        [i for i, t in enumerate(ids) if t == MASK]
    ]
    logits[:, : len(SPECIALS)] = -math.inf
    return logits.softmax(-1)


def encoded(tokenizer, text):
    """A blank before a mask belongs to the hidden word where words bring their blank along."""
    if tokenizer.kind == "bpe":
        text = text.replace(" <mask>", "<mask>")
    ids = [CLS]
    for i, part in enumerate(text.split("<mask>")):
        ids += [MASK] * (i > 0) + tokenizer.encode(part)
    return ids


TEXTS = [
    "The <mask> slept.",
    "<mask>",
    "The old <mask> saw <mask><mask>.",
    "<mask> dog <mask> <mask>",
]


@pytest.mark.parametrize("vocabulary", ["bpe", "character"])
def test_candidates_are_the_best_of_the_models_own_odds(vocabulary, loaded):
    model = loaded("fill", None, vocabulary=vocabulary)
    tokenizer = model.task.tokenizer
    for text, filled in zip(TEXTS, model.fill(TEXTS, top=7), strict=True):
        expected = odds(model, encoded(tokenizer, text))
        assert len(filled.gaps) == text.count("<mask>") == len(expected)
        for gap, row in zip(filled.gaps, expected, strict=True):
            best = row.topk(7)
            assert [p for _, p in gap.candidates] == pytest.approx(best.values.tolist(), abs=1e-5)
            assert [w for w, _ in gap.candidates] == [
                tokenizer.decode([t]) for t in best.indices.tolist()
            ]
            values = [p for _, p in gap.candidates]
            assert values == sorted(values, reverse=True)
            assert 0 < sum(values) <= 1 + 1e-6
        for gap in filled.gaps:
            word = gap.candidates[0][0]
            blank = " " if vocabulary == "bpe" and word[0] == " " else ""
            before, _, after = text.partition("<mask>")
            text = before.removesuffix(blank) + word + after
        assert filled.text == text


def test_all_words_together_have_all_the_probability_and_none_is_special(loaded):
    model = loaded("fill")
    size = model.task.tokenizer.size
    filled = model.fill("The <mask> slept.", top=10_000)
    [gap] = filled.gaps
    assert len(gap.candidates) == size - len(SPECIALS)
    assert sum(p for _, p in gap.candidates) == pytest.approx(1, abs=1e-4)
    assert all(word for word, _ in gap.candidates)


@contextmanager
def best(model, word):
    """One token is the best guess everywhere."""
    [token] = model.task.tokenizer.encode(word)
    bias = model.transformer.head.bias.data
    before, bias[token] = float(bias[token]), 100.0
    yield
    bias[token] = before


def test_the_blank_before_a_mask_belongs_to_the_word(loaded):
    model = loaded("fill")
    texts = ["saw <mask> dog", "<mask> dog", "saw<mask>dog", "saw  <mask> <mask>.", "saw\n<mask>"]
    with best(model, " the"):
        assert [filled.text for filled in model.fill(texts)] == [
            "saw the dog", " the dog", "saw thedog", "saw  the the.", "saw\n the",
        ]  # fmt: skip
    with best(model, "."):
        assert model.fill("slept<mask> a <mask>").text == "slept. a ."


def test_characters_have_no_blank_of_their_own(loaded):
    model = loaded("fill", None, vocabulary="character")
    with best(model, " "):
        assert [f.text for f in model.fill(["a <mask>b", "a<mask>b"])] == ["a  b", "a b"]
    with best(model, "d"):
        assert model.fill("The <mask>og").text == "The dog"
    assert model.task.encode_parts(["The ", "日"], 99, "here")[-2:] == [MASK, UNK]


def test_a_text_is_filled_the_same_whoever_is_beside_it(loaded):
    model = loaded("fill")
    together = model.fill(TEXTS * 3)
    for text, filled in zip(TEXTS * 3, together, strict=True):
        alone = model.fill(text)
        assert filled.text == alone.text
        for gap, other in zip(filled.gaps, alone.gaps, strict=True):
            assert [p for _, p in gap.candidates] == pytest.approx(
                [p for _, p in other.candidates], abs=1e-6
            )


def test_a_text_without_a_mask_is_named(loaded, call):
    model = loaded("fill")
    with pytest.raises(InputError, match="text 2: there is no <mask> to fill"):
        model.fill(["a <mask>", "none"])
    given = ["The <mask> slept.", "<mask>", "no mask", "<mask>"]
    code, out, err = call("fill", "-m", model.folder, stdin=given)
    assert (code, err) == (
        2,
        "regard: standard input:3: there is no <mask> to fill: write it in place of a word\n",
    )
    assert out.count("\n") == 2  # those before it are answered
    code, out, err = call("fill", "-m", model.folder, stdin=["<mask>", ""])
    assert (code, err) == (
        2,
        "regard: standard input:2: there is no <mask> to fill: write it in place of a word\n",
    )
    code, out, err = call("fill", "-m", model.folder, "no mask")
    assert (code, out, err) == (
        2,
        "",
        "regard: text:1: there is no <mask> to fill: write it in place of a word\n",
    )


def test_a_text_that_is_too_long_to_be_read_whole_is_named(loaded, call):
    model = loaded("fill", None, vocabulary="character")
    fits = "<mask>" + "a" * (model.longest - 2)
    code, _, err = call("fill", "-m", model.folder, stdin=[fits, fits + "a"])
    assert (code, err.count("\n")) == (2, 1)
    assert "standard input:2: 65 tokens, but the model was trained on at most 64" in err
    assert len(model.fill(fits).gaps) == 1


def test_json_has_every_gap_with_its_words(loaded, call):
    model = loaded("fill")
    code, out, err = call("fill", "-m", model.folder, "--top", 3, "--json", stdin=TEXTS)
    assert (code, err) == (0, "")
    for line, text, filled in zip(out.splitlines(), TEXTS, model.fill(TEXTS, top=3), strict=True):
        told = json.loads(line)
        assert (told["text"], told["filled"]) == (text, filled.text)
        found = [[(c["word"], c["probability"]) for c in gap] for gap in told["gaps"]]
        assert found == [gap.candidates for gap in filled.gaps]
    code, out, _ = call("fill", "-m", model.folder, "--top", 3, stdin=TEXTS)
    lines = out.split("\n")[:-1]
    assert [line.count("\t") for line in lines] == [text.count("<mask>") for text in TEXTS]
    code, out, err = call("fill", "-m", model.folder, "--top", 0, "<mask>")
    assert (code, out, err) == (2, "", "regard: --top must be at least 1, not 0\n")


# ---- how well ---------------------------------------------------------------------------


@torch.no_grad()
def test_perplexity_and_accuracy_are_those_of_the_hidden_words(loaded, data):
    model = loaded("fill")
    examples = list(read_documents(data["fill"][1][0]))
    found = model.task.evaluate(model.transformer, examples, model.config)
    size = model.longest - 1
    rows = [
        np.array([CLS, *ids[start : start + size]])
        for ids in map(model.task.tokenizer.encode, (text for _, text in examples))
        for start in range(0, len(ids), size)
    ]
    rows.sort(key=lambda row: -len(row))
    batch = model.task.hide(rows, CPU, 2026)  # all fit into one batch, the longest first
    logits = model.transformer(batch.source)[batch.where].double()
    loss = torch.nn.functional.cross_entropy(logits, batch.labels)
    right = (logits.argmax(-1) == batch.labels).double().mean()
    assert found.scores["perplexity"] == pytest.approx(math.exp(loss), rel=1e-3)
    assert found.scores["accuracy"] == pytest.approx(float(right), abs=1e-4)
    assert (found.scores["hidden"], found.count) == (len(batch.labels), len(rows))


def test_the_figures_stay_numbers_where_a_resampled_test_set_has_nothing_hidden(
    loaded, tmp_path, call
):
    """Two short documents, of which hardly a word is hidden: some draws have none at all."""
    (tmp_path / "short.txt").write_text("dog\n\ncat\n\nold\n\na\n")
    model = loaded("fill")
    code, out, _ = call("evaluate", "-m", model.folder, "--data", tmp_path / "short.txt", "--json")
    assert code == 0
    told = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert 0 < told["hidden"] < 4
    assert all(math.isfinite(end) for ends in told["intervals"].values() for end in ends)
