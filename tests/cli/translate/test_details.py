"""`regard translate --json`: everything about an answer, for programs; and texts in pieces."""

import json

import pytest
import torch

from regard import AttentionCapture, Packed
from regard.tasks.common import one_line
from regard.tasks.joining import split_pieces
from regard.text import lines

BOS, EOS = 1, 2
KEYS = {"text", "translation", "tokens", "logprobs", "score", "logprob", "stopped"}


@pytest.fixture
def objects(verb):
    """objects(folder, texts, "--history", beam=1): what is said of each text, one object a line."""

    def ask(folder, texts, *arguments, **options):
        code, out, err = verb("translate", folder, "--json", *arguments, given=texts, **options)
        assert (code, err) == (0, "")
        assert out.count("\n") == len(texts)
        return [json.loads(line) for line in out.split("\n")[:-1]]

    return ask


@pytest.fixture(scope="session")
def written(texts):
    """Those that are not blank."""
    return [text for text in texts if text.strip()]


@torch.no_grad()
def full_pass(translator, text, tokens, capture=None):
    """Log-probabilities [n, V] of what comes at each place of an answer: no search, no cache."""
    source = Packed.of([[*translator.task.source.encode(text), EOS]])
    target = Packed.of([[BOS, *tokens[:-1]]])
    return translator.transformer(source, target, capture=capture).double().log_softmax(-1)


def test_json_tells_of_each_answer_what_the_model_says_of_it(folder, translator, texts, objects):
    answers = translator.predict(texts)
    for text, one, answer in zip(texts, objects(folder, texts), answers, strict=True):
        assert set(one) == KEYS
        assert (one["text"], one["translation"]) == (text, answer.text)
        assert one["tokens"] == translator.task.target.tokens(answer.token_ids)
        assert one["stopped"] == answer.stopped
        if not text.strip():
            assert (one["stopped"], one["tokens"], one["score"]) == ("empty", [], 0)
            continue
        places = range(len(answer.token_ids))
        expected = full_pass(translator, text, answer.token_ids)[places, answer.token_ids].tolist()
        assert one["logprobs"] == pytest.approx(expected, abs=1e-4)
        assert one["logprob"] == pytest.approx(sum(expected), abs=1e-3)
        penalty = ((5 + len(expected)) / 6) ** 0.6
        assert one["score"] == pytest.approx(one["logprob"] / penalty, abs=1e-4)


def test_json_holds_the_text_itself_with_its_line_ends(
    byte_folder, byte_translator, texts, objects
):
    options = {"temperature": 1.0, "seed": 2, "max_length": 30}
    told = objects(byte_folder, texts, **options)
    assert [one["translation"] for one in told] == byte_translator.translate(texts, **options)
    assert any("\n" in one["translation"] for one in told)


def test_details_change_neither_answers_nor_scores(folder, texts, objects):
    plain = objects(folder, texts, n_best=2)
    full = objects(folder, texts, "--history", "--attention", n_best=2, alternatives=3)
    for before, after in zip(plain, full, strict=True):
        assert {name: after[name] for name in before} == before
        if before["text"].strip():
            more = {"n_best", "history", "attention", "read_tokens", "source_tokens"}
            assert set(after) == KEYS | more | {"alternatives"}


@pytest.mark.parametrize("mode", [{"beam": 4}, {"temperature": 1}], ids=str)
def test_the_n_best_list_begins_with_the_answer(mode, folder, translator, written, objects, verb):
    told = objects(folder, written, n_best=3, **mode)
    for one in told:
        every = one["n_best"]
        assert every[0] == {name: one[name] for name in KEYS - {"text"}}
        assert all(set(other) == KEYS - {"text"} for other in every)
        # An untrained model writes bytes that are no text, so that texts may be duplicates.
        assert len({other["translation"] for other in every}) == len(every)
        assert 1 < len(every) <= 3
        scores = [other["score"] for other in every]
        assert scores == sorted(scores, reverse=True)
    rows = ["\t".join(one_line(other["translation"]) for other in one["n_best"]) for one in told]
    plain = verb("translate", folder, given=written, n_best=3, **mode)
    assert plain == (0, "".join(row + "\n" for row in rows), "")
    if "beam" in mode:  # the best of three is the best of one
        assert [one["translation"] for one in told] == translator.translate(written)


def test_alternatives_are_the_best_tokens_of_each_place(folder, translator, texts, objects):
    [one] = objects(folder, texts[:1], beam=1, alternatives=3)
    answer = translator.predict(texts[0], beam=1)
    values, ids = full_pass(translator, texts[0], answer.token_ids).topk(3)
    assert len(one["alternatives"]) == len(one["tokens"])
    for i, place in enumerate(one["alternatives"]):
        signs = translator.task.target.tokens(ids[i].tolist())
        assert [other["token"] for other in place] == signs
        assert [other["logprob"] for other in place] == pytest.approx(values[i].tolist(), abs=1e-4)
        assert place[0]["token"] == one["tokens"][i]  # greedy search takes the first
        assert place[0]["logprob"] == pytest.approx(one["logprobs"][i], abs=1e-4)


def test_attention_has_all_layers_and_heads(folder, translator, written, objects):
    answers = translator.predict(written)
    for one, answer in zip(objects(folder, written, "--attention"), answers, strict=True):
        source, read = one["source_tokens"], one["read_tokens"]
        tokenizer = translator.task.source
        assert source == tokenizer.tokens([*tokenizer.encode(one["text"]), EOS])
        assert read == ["<bos>", *one["tokens"][:-1]]
        capture = AttentionCapture()
        full_pass(translator, one["text"], answer.token_ids, capture)
        sides = {"encoder": (source, source), "decoder": (read, read), "cross": (read, source)}
        assert set(one["attention"]) == set(sides)
        for part, (queries, keys) in sides.items():
            found = torch.tensor(one["attention"][part])
            assert found.shape == (2, 4, len(queries), len(keys))  # layers, heads
            assert (found.sum(-1) - 1).abs().max() < 1e-4
            expected = torch.stack([layer[0] for layer in getattr(capture, part)])
            assert (found - expected).abs().max() < 1e-4
        assert torch.tensor(one["attention"]["decoder"]).triu(1).max() == 0  # nothing from ahead


def replay(history):
    """Follow a history: the tokens of every hypothesis that was kept or has ended, and its score."""
    kept, found = [((), 0.0)] * len(history[0]), {}  # samples begin side by side
    for step in history:
        now = []
        for one in step:
            tokens, score = kept[one["parent"]]
            tokens, score = (*tokens, one["token"]), score + one["logprob"]
            assert one["score"] == pytest.approx(score, abs=1e-4)
            if one["fate"] == "kept":
                now.append((tokens, score))
            if one["fate"] != "pruned":
                found[tokens] = score
        kept = now
    return found


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("which", ["folder", "byte_folder"])
def test_the_history_tells_how_the_answer_was_found(which, beam, written, objects, request):
    folder, fates = request.getfixturevalue(which), set()
    for one in objects(folder, written, "--history", beam=beam):
        assert len(one["history"]) >= len(one["tokens"])
        for step in one["history"]:
            assert len(step) <= 2 * beam
            assert sum(candidate["fate"] == "kept" for candidate in step) <= beam
            for candidate in step:
                assert set(candidate) == {"token", "parent", "logprob", "score", "fate"}
                assert (candidate["token"] == "<eos>") >= (candidate["fate"] == "ended")
                fates.add(candidate["fate"])
        found = replay(one["history"])
        assert found[tuple(one["tokens"])] == pytest.approx(one["logprob"], abs=1e-4)
    assert {"kept", "pruned"} <= fates


def test_the_history_of_samples_can_be_followed_when_one_has_ended(byte_folder, written, objects):
    for one in objects(byte_folder, written, "--history", temperature=2, n_best=4, max_length=60):
        found = replay(one["history"])
        for other in one["n_best"]:
            assert found[tuple(other["tokens"])] == pytest.approx(other["logprob"], abs=1e-4)


def test_a_text_that_is_too_long_is_translated_in_pieces_and_said_to_be(
    folder, translator, long_text, verb, monkeypatch
):
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    texts = ["The dog slept.", "", "The cat.", long_text, "The end."]
    said = []
    with pytest.warns(UserWarning, match="longer") as caught:
        answers = translator.predict(texts)
    pieces = answers[3].pieces
    assert [len(answer.pieces) > 1 for answer in answers] == [False, False, False, True, False]
    assert answers[3].text == " ".join(piece.text for piece in pieces)
    rule = f"longer than the 40 tokens that the model was trained on: translated in {len(pieces)} pieces"
    assert [str(one.message) for one in caught] == [f"text 4 is {rule}"]
    translator.predict(texts, warn=lambda i, what: said.append((i, what)))
    assert said == [(3, rule)]
    plain = "".join(one_line(answer.text) + "\n" for answer in answers)
    warning = f"regard: standard input:4: {rule}\n"
    assert verb("translate", folder, given=texts) == (0, plain, warning)
    assert verb("translate", folder, *texts) == (0, plain, f"regard: text:4: {rule}\n")
    code, out, err = verb("translate", folder, "--json", given=texts)
    assert (code, err) == (0, warning)
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["translation"] for one in told] == [answer.text for answer in answers]
    assert ["pieces" in one for one in told] == [False, False, False, True, False]
    assert [one["translation"] for one in told[3]["pieces"]] == [piece.text for piece in pieces]
    assert all(set(one) == KEYS for one in told[3]["pieces"])


@pytest.mark.parametrize("text", ["a" * 1000, "é" * 500, "日本" * 300, "x1-é日" * 200])
def test_a_word_without_end_is_cut_into_few_pieces(text):
    """The time to translate it grows with the number of pieces, each of which has its own limit."""
    tokens = len(text.encode())  # as many as there can be: one a byte
    pieces = split_pieces(text, lambda part: len(part.encode()), 127)
    assert "".join(pieces) == text
    assert max(len(piece.encode()) for piece in pieces) <= 127
    assert len(pieces) <= 1.7 * tokens / 127
