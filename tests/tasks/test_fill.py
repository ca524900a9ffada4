"""fill: masking for training, predictions for masks, and evaluation."""

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
    """Rows that begin with <cls>, and otherwise have no special tokens."""
    random = np.random.default_rng(seed)
    return [np.array([CLS, *random.integers(len(SPECIALS), size, n)]) for n in lengths]


# ---- masking ----------------------------------------------------------------------------


def plausible(count, total, chance, deviations=4.5):
    """Whether a count is within so many standard deviations of its binomial mean."""
    return abs(count - total * chance) <= deviations * math.sqrt(total * chance * (1 - chance)) + 1


@pytest.mark.parametrize("mask", [0.15, 0.4])
def test_masking_follows_data_mask_and_the_80_10_10_rule(mask, bpe):
    task = Fill(bpe, mask=mask)
    rows = rows_of([200] * 100, bpe.size)
    tokens = np.concatenate(rows)
    batch = task.hide(rows, CPU, seed=7)
    inputs, where, labels = batch.source.tokens.numpy(), batch.where.numpy(), batch.labels.numpy()
    hidden_count = len(where)
    assert plausible(hidden_count, 20_000, mask)
    masked = inputs[where] == MASK
    unchanged = inputs[where] == labels
    replaced = ~masked & ~unchanged
    assert plausible(masked.sum(), hidden_count, 0.8)
    # A random token is the original one with this probability.
    same = 1 / (bpe.size - len(SPECIALS))
    assert plausible(unchanged.sum(), hidden_count, 0.1 + 0.1 * same)
    assert plausible(replaced.sum(), hidden_count, 0.1 - 0.1 * same)
    assert inputs[where][replaced].min() >= len(SPECIALS)
    # Random tokens are spread over the whole vocabulary.
    assert len(set(inputs[where][replaced].tolist())) > 0.3 * min(replaced.sum(), bpe.size)
    assert (labels == tokens[where]).all()
    untouched = np.setdiff1d(np.arange(len(tokens)), where)
    assert (inputs[untouched] == tokens[untouched]).all()


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    mask=st.floats(0.001, 0.9), seed=st.integers(0, 2**32 - 1), whole=st.booleans(),
)  # fmt: skip
def test_each_batch_has_labels_and_cls_is_never_masked(lengths, mask, seed, whole, bpe):
    task = Fill(bpe, mask=mask, whole_words=whole)
    rows = rows_of(lengths, bpe.size, seed)
    tokens = np.concatenate(rows)
    batch, again = (task.hide(rows, CPU, seed) for _ in range(2))
    where = batch.where.numpy()
    assert len(where) >= 1
    assert (np.diff(where) > 0).all()
    assert (batch.labels.numpy() == tokens[where]).all()
    assert CLS not in batch.labels
    inputs = batch.source.tokens.numpy()
    assert (inputs[tokens == CLS] == CLS).all()
    others = np.setdiff1d(np.arange(len(tokens)), where)
    assert (inputs[others] == tokens[others]).all()
    assert batch.source.lengths == tuple(n + 1 for n in lengths)
    assert torch.equal(batch.source.tokens, again.source.tokens)
    assert torch.equal(batch.where, again.where)


def test_different_seeds_mask_different_words(bpe):
    task, rows = Fill(bpe), rows_of([300], bpe.size)
    first, second = (task.hide(rows, CPU, seed).where.tolist() for seed in (1, 2))
    assert first != second


def words_of(tokenizer, ids):
    """The positions of the tokens of each word, computed from the text alone: two adjacent tokens
    belong to the same word if a word character follows a word character."""
    groups, text = [], ""
    for place, id in enumerate(ids):
        piece = tokenizer.decode([id])
        inside = bool(re.search(r"\w$", text)) and bool(re.match(r"\w", piece))
        groups[-1].append(place) if groups and inside else groups.append([place])
        text += piece
    return groups


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_whole_word_masking_hides_all_tokens_of_a_word(kind):
    lines = [english for english, _ in builtin_corpus("train", 400)]
    tokenizer = Tokenizer.learn(
        lines, kind, 300, quiet=True
    )  # few merges, so that words have several tokens
    rows = [np.array([CLS, *tokenizer.encode(line)]) for line in lines[:120]]
    task = Fill(tokenizer, whole_words=True)
    batch = task.hide(rows, CPU, seed=3)
    hidden = set(batch.where.tolist())
    start, several, together, words = 0, 0, 0, 0
    for row in rows:
        groups = words_of(tokenizer, row[1:].tolist())
        starts = [0, *(1 + group[0] for group in groups for _ in group)]
        assert tokenizer.word_starts(row).tolist() == starts
        for group in groups:
            places = {start + 1 + place for place in group}
            assert not places & hidden or places <= hidden
            words += 1
            several += len(group) > 1
            together += len(group) > 1 and places <= hidden
        start += len(row)
    assert several > 300  # enough words of several tokens
    assert plausible(together, several, 0.15)
    without = Fill(tokenizer).hide(rows, CPU, seed=3)
    assert not task.hide(rows, CPU, 3).where.equal(without.where)


def test_windows_begin_with_cls_and_contain_all_tokens(configure, bpe, data, tmp_path):
    config = configure("fill", data={"max_length": 20})
    task = Fill(bpe, "encoder", 20)
    store, _ = task.build([data["fill"][0][0]], tmp_path, config, True)
    every = np.arange(len(task.windows(store).starts))
    batch = task.batch(store, every, CPU)
    rows = [row.tolist() for row in batch.source.split(batch.source.tokens)]
    assert [len(row) for row in rows] == task.sizes(store)[0].tolist()
    assert max(map(len, rows)) == 20
    tokens = batch.source.tokens.clone()
    tokens[batch.where] = batch.labels  # restore the masked tokens
    restored = [row[1:].tolist() for row in batch.source.split(tokens)]
    texts = [text for _, text in read_documents(data["fill"][0][0])]
    assert [*chain(*restored)] == [*chain(*map(bpe.encode, texts))]
    assert {row[0] for row in rows} == {CLS}


# ---- prediction -------------------------------------------------------------------------


@torch.no_grad()
def probabilities(model, ids):
    """[masks, V]: the probabilities at each <mask>, without special tokens."""
    logits = model.transformer(Packed.of([ids])).double()[
        [i for i, t in enumerate(ids) if t == MASK]
    ]
    logits[:, : len(SPECIALS)] = -math.inf
    return logits.softmax(-1)


def encoded(tokenizer, text):
    """Token ids with <cls> first; with BPE a space before <mask> is part of the masked word."""
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
def test_candidates_are_the_most_probable_tokens(vocabulary, loaded):
    model = loaded("fill", None, vocabulary=vocabulary)
    tokenizer = model.task.tokenizer
    for text, filled in zip(TEXTS, model.fill(TEXTS, top=7), strict=True):
        expected = probabilities(model, encoded(tokenizer, text))
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


def test_probabilities_of_all_candidates_sum_to_one_without_special_tokens(loaded):
    model = loaded("fill")
    size = model.task.tokenizer.size
    filled = model.fill("The <mask> slept.", top=10_000)
    [gap] = filled.gaps
    assert len(gap.candidates) == size - len(SPECIALS)
    assert sum(p for _, p in gap.candidates) == pytest.approx(1, abs=1e-4)
    assert all(word for word, _ in gap.candidates)


@contextmanager
def best(model, word):
    """Make one token the most probable one at every position."""
    [token] = model.task.tokenizer.encode(word)
    bias = model.transformer.head.bias.data
    before, bias[token] = float(bias[token]), 100.0
    yield
    bias[token] = before


def test_space_before_a_mask_belongs_to_the_word(loaded):
    model = loaded("fill")
    texts = ["saw <mask> dog", "<mask> dog", "saw<mask>dog", "saw  <mask> <mask>.", "saw\n<mask>"]
    with best(model, " the"):
        assert [filled.text for filled in model.fill(texts)] == [
            "saw the dog", " the dog", "saw thedog", "saw  the the.", "saw\n the",
        ]  # fmt: skip
    with best(model, "."):
        assert model.fill("slept<mask> a <mask>").text == "slept. a ."


def test_character_model_keeps_the_space_before_a_mask(loaded):
    model = loaded("fill", None, vocabulary="character")
    with best(model, " "):
        assert [f.text for f in model.fill(["a <mask>b", "a<mask>b"])] == ["a  b", "a b"]
    with best(model, "d"):
        assert model.fill("The <mask>og").text == "The dog"
    assert model.task.encode_parts(["The ", "日"], 99, "here")[-2:] == [MASK, UNK]


def test_result_does_not_depend_on_the_other_texts_of_the_batch(loaded):
    model = loaded("fill")
    together = model.fill(TEXTS * 3)
    for text, filled in zip(TEXTS * 3, together, strict=True):
        alone = model.fill(text)
        assert filled.text == alone.text
        for gap, other in zip(filled.gaps, alone.gaps, strict=True):
            assert [p for _, p in gap.candidates] == pytest.approx(
                [p for _, p in other.candidates], abs=1e-6
            )


def test_text_without_a_mask_is_refused_with_its_number(loaded, call):
    model = loaded("fill")
    with pytest.raises(InputError, match="text 2: there is no <mask> to fill"):
        model.fill(["a <mask>", "none"])
    lines = ["The <mask> slept.", "<mask>", "no mask", "<mask>"]
    code, out, err = call("fill", "-m", model.folder, stdin=lines)
    assert (code, err) == (
        2,
        "regard: standard input:3: there is no <mask> to fill: write it in place of a word\n",
    )
    assert out.count("\n") == 2  # the lines before it have results
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


def test_text_that_is_too_long_is_refused_with_its_line(loaded, call):
    model = loaded("fill", None, vocabulary="character")
    fits = "<mask>" + "a" * (model.longest - 2)
    code, _, err = call("fill", "-m", model.folder, stdin=[fits, fits + "a"])
    assert (code, err.count("\n")) == (2, 1)
    assert "standard input:2: 65 tokens, but the model was trained on at most 64" in err
    assert len(model.fill(fits).gaps) == 1


def test_json_lists_the_candidates_of_each_gap(loaded, call):
    model = loaded("fill")
    code, out, err = call("fill", "-m", model.folder, "--top", 3, "--json", stdin=TEXTS)
    assert (code, err) == (0, "")
    for line, text, filled in zip(out.splitlines(), TEXTS, model.fill(TEXTS, top=3), strict=True):
        output = json.loads(line)
        assert (output["text"], output["filled"]) == (text, filled.text)
        candidates = [[(c["word"], c["probability"]) for c in gap] for gap in output["gaps"]]
        assert candidates == [gap.candidates for gap in filled.gaps]
    code, out, _ = call("fill", "-m", model.folder, "--top", 3, stdin=TEXTS)
    lines = out.split("\n")[:-1]
    assert [line.count("\t") for line in lines] == [text.count("<mask>") for text in TEXTS]
    code, out, err = call("fill", "-m", model.folder, "--top", 0, "<mask>")
    assert (code, out, err) == (2, "", "regard: --top must be at least 1, not 0\n")


# ---- evaluation -------------------------------------------------------------------------


@torch.no_grad()
def test_perplexity_and_accuracy_match_a_direct_computation(loaded, data):
    model = loaded("fill")
    examples = list(read_documents(data["fill"][1][0]))
    evaluation = model.task.evaluate(model.transformer, examples, model.config)
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
    assert evaluation.scores["perplexity"] == pytest.approx(math.exp(loss), rel=1e-3)
    assert evaluation.scores["accuracy"] == pytest.approx(float(right), abs=1e-4)
    assert (evaluation.scores["hidden"], evaluation.count) == (len(batch.labels), len(rows))


def test_intervals_are_finite_if_a_resampled_test_set_has_no_masked_token(loaded, tmp_path, call):
    """Short documents have so few masked words that some resampled test sets have none."""
    (tmp_path / "short.txt").write_text("dog\n\ncat\n\nold\n\na\n")
    model = loaded("fill")
    code, out, _ = call("evaluate", "-m", model.folder, "--data", tmp_path / "short.txt", "--json")
    assert code == 0
    output = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert 0 < output["hidden"] < 4
    assert all(math.isfinite(end) for ends in output["intervals"].values() for end in ends)
