"""`regard translate --json`: all details of a translation, and long texts in pieces."""

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
    """objects(folder, texts, "--history", beam=1): the JSON object of each text."""

    def run(folder, texts, *arguments, **options):
        code, out, err = verb("translate", folder, "--json", *arguments, stdin=texts, **options)
        assert (code, err) == (0, "")
        assert out.count("\n") == len(texts)
        return [json.loads(line) for line in out.split("\n")[:-1]]

    return run


@pytest.fixture(scope="session")
def written(texts):
    """The texts that are not blank."""
    return [text for text in texts if text.strip()]


@torch.no_grad()
def full_pass(translator, text, tokens, capture=None):
    """Log-probabilities [n, V] of the token at each position, without search and cache."""
    source = Packed.of([[*translator.task.source.encode(text), EOS]])
    target = Packed.of([[BOS, *tokens[:-1]]])
    return translator.transformer(source, target, capture=capture).double().log_softmax(-1)


def test_json_contains_tokens_and_scores_of_each_translation(folder, translator, texts, objects):
    predictions = translator.predict(texts)
    for text, record, prediction in zip(texts, objects(folder, texts), predictions, strict=True):
        assert set(record) == KEYS
        assert (record["text"], record["translation"]) == (text, prediction.text)
        assert record["tokens"] == translator.task.target.tokens(prediction.token_ids)
        assert record["stopped"] == prediction.stopped
        if not text.strip():
            assert (record["stopped"], record["tokens"], record["score"]) == ("empty", [], 0)
            continue
        places = range(len(prediction.token_ids))
        expected = full_pass(translator, text, prediction.token_ids)[
            places, prediction.token_ids
        ].tolist()
        assert record["logprobs"] == pytest.approx(expected, abs=1e-4)
        assert record["logprob"] == pytest.approx(sum(expected), abs=1e-3)
        penalty = ((5 + len(expected)) / 6) ** 0.6
        assert record["score"] == pytest.approx(record["logprob"] / penalty, abs=1e-4)


def test_json_preserves_line_ends_of_the_translation(byte_folder, byte_translator, texts, objects):
    options = {"temperature": 1.0, "seed": 2, "max_length": 30}
    records = objects(byte_folder, texts, **options)
    assert [record["translation"] for record in records] == byte_translator.translate(
        texts, **options
    )
    assert any("\n" in record["translation"] for record in records)


def test_details_do_not_change_translations_and_scores(folder, texts, objects):
    plain = objects(folder, texts, n_best=2)
    full = objects(folder, texts, "--history", "--attention", n_best=2, alternatives=3)
    for before, after in zip(plain, full, strict=True):
        assert {name: after[name] for name in before} == before
        if before["text"].strip():
            more = {"n_best", "history", "attention", "read_tokens", "source_tokens"}
            assert set(after) == KEYS | more | {"alternatives"}


@pytest.mark.parametrize("mode", [{"beam": 4}, {"temperature": 1}], ids=str)
def test_n_best_list_begins_with_the_translation(mode, folder, translator, written, objects, verb):
    records = objects(folder, written, n_best=3, **mode)
    for record in records:
        every = record["n_best"]
        assert every[0] == {name: record[name] for name in KEYS - {"text"}}
        assert all(set(entry) == KEYS - {"text"} for entry in every)
        # An untrained model writes bytes that are no text, so that texts may be duplicates.
        assert len({entry["translation"] for entry in every}) == len(every)
        assert 1 < len(every) <= 3
        scores = [entry["score"] for entry in every]
        assert scores == sorted(scores, reverse=True)
    rows = [
        "\t".join(one_line(entry["translation"]) for entry in record["n_best"])
        for record in records
    ]
    plain = verb("translate", folder, stdin=written, n_best=3, **mode)
    assert plain == (0, "".join(row + "\n" for row in rows), "")
    if "beam" in mode:  # the best of three is the best of one
        assert [record["translation"] for record in records] == translator.translate(written)


def test_alternatives_are_the_most_probable_tokens_of_each_position(
    folder, translator, texts, objects
):
    [record] = objects(folder, texts[:1], beam=1, alternatives=3)
    prediction = translator.predict(texts[0], beam=1)
    values, ids = full_pass(translator, texts[0], prediction.token_ids).topk(3)
    assert len(record["alternatives"]) == len(record["tokens"])
    for i, place in enumerate(record["alternatives"]):
        expected = translator.task.target.tokens(ids[i].tolist())
        assert [entry["token"] for entry in place] == expected
        assert [entry["logprob"] for entry in place] == pytest.approx(values[i].tolist(), abs=1e-4)
        assert place[0]["token"] == record["tokens"][i]  # greedy search takes the first
        assert place[0]["logprob"] == pytest.approx(record["logprobs"][i], abs=1e-4)


def test_attention_has_all_layers_and_heads(folder, translator, written, objects):
    predictions = translator.predict(written)
    for record, prediction in zip(
        objects(folder, written, "--attention"), predictions, strict=True
    ):
        source, read = record["source_tokens"], record["read_tokens"]
        tokenizer = translator.task.source
        assert source == tokenizer.tokens([*tokenizer.encode(record["text"]), EOS])
        assert read == ["<bos>", *record["tokens"][:-1]]
        capture = AttentionCapture()
        full_pass(translator, record["text"], prediction.token_ids, capture)
        sides = {"encoder": (source, source), "decoder": (read, read), "cross": (read, source)}
        assert set(record["attention"]) == set(sides)
        for part, (queries, keys) in sides.items():
            weights = torch.tensor(record["attention"][part])
            assert weights.shape == (2, 4, len(queries), len(keys))  # layers, heads
            assert (weights.sum(-1) - 1).abs().max() < 1e-4
            expected = torch.stack([layer[0] for layer in getattr(capture, part)])
            assert (weights - expected).abs().max() < 1e-4
        assert (
            torch.tensor(record["attention"]["decoder"]).triu(1).max() == 0
        )  # no weight for later tokens


def replay(history):
    """The score of every hypothesis of a history that was kept or has ended, by its tokens."""
    hypotheses, scores = [((), 0.0)] * len(history[0]), {}  # samples start in parallel
    for step in history:
        now = []
        for record in step:
            tokens, score = hypotheses[record["parent"]]
            tokens, score = (*tokens, record["token"]), score + record["logprob"]
            assert record["score"] == pytest.approx(score, abs=1e-4)
            if record["fate"] == "kept":
                now.append((tokens, score))
            if record["fate"] != "pruned":
                scores[tokens] = score
        hypotheses = now
    return scores


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("which", ["folder", "byte_folder"])
def test_history_contains_every_step_of_the_search(which, beam, written, objects, request):
    folder, fates = request.getfixturevalue(which), set()
    for record in objects(folder, written, "--history", beam=beam):
        assert len(record["history"]) >= len(record["tokens"])
        for step in record["history"]:
            assert len(step) <= 2 * beam
            assert sum(candidate["fate"] == "kept" for candidate in step) <= beam
            for candidate in step:
                assert set(candidate) == {"token", "parent", "logprob", "score", "fate"}
                assert (candidate["token"] == "<eos>") >= (candidate["fate"] == "ended")
                fates.add(candidate["fate"])
        scores = replay(record["history"])
        assert scores[tuple(record["tokens"])] == pytest.approx(record["logprob"], abs=1e-4)
    assert {"kept", "pruned"} <= fates


def test_history_of_samples_is_complete_after_a_sample_has_ended(byte_folder, written, objects):
    for record in objects(
        byte_folder, written, "--history", temperature=2, n_best=4, max_length=60
    ):
        scores = replay(record["history"])
        for entry in record["n_best"]:
            assert scores[tuple(entry["tokens"])] == pytest.approx(entry["logprob"], abs=1e-4)


def test_too_long_text_is_translated_in_pieces_with_a_warning(
    folder, translator, long_text, verb, monkeypatch
):
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    texts = ["The dog slept.", "", "The cat.", long_text, "The end."]
    messages = []
    with pytest.warns(UserWarning, match="longer") as caught:
        predictions = translator.predict(texts)
    pieces = predictions[3].pieces
    assert [len(prediction.pieces) > 1 for prediction in predictions] == [
        False,
        False,
        False,
        True,
        False,
    ]
    assert predictions[3].text == " ".join(piece.text for piece in pieces)
    rule = f"longer than the 40 tokens that the model was trained on: translated in {len(pieces)} pieces"
    assert [str(warning.message) for warning in caught] == [f"text 4 is {rule}"]
    translator.predict(texts, warn=lambda i, message: messages.append((i, message)))
    assert messages == [(3, rule)]
    plain = "".join(one_line(prediction.text) + "\n" for prediction in predictions)
    warning = f"regard: standard input:4: {rule}\n"
    assert verb("translate", folder, stdin=texts) == (0, plain, warning)
    assert verb("translate", folder, *texts) == (0, plain, f"regard: text:4: {rule}\n")
    code, out, err = verb("translate", folder, "--json", stdin=texts)
    assert (code, err) == (0, warning)
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["translation"] for record in records] == [
        prediction.text for prediction in predictions
    ]
    assert ["pieces" in record for record in records] == [False, False, False, True, False]
    assert [record["translation"] for record in records[3]["pieces"]] == [
        piece.text for piece in pieces
    ]
    assert all(set(record) == KEYS for record in records[3]["pieces"])


@pytest.mark.parametrize("text", ["a" * 1000, "é" * 500, "日本" * 300, "x1-é日" * 200])
def test_very_long_word_is_split_into_few_pieces(text):
    """The time of a translation grows with the number of pieces."""
    tokens = len(text.encode())  # at most one per byte
    pieces = split_pieces(text, lambda part: len(part.encode()), 127)
    assert "".join(pieces) == text
    assert max(len(piece.encode()) for piece in pieces) <= 127
    assert len(pieces) <= 1.7 * tokens / 127
