"""A text of several sentences: each is translated, and the separators of the text are restored."""

import json

import pytest

from regard.tasks.common import one_line
from regard.text.corpus import Pair

SENTENCES = [
    "The dog slept.",
    "The old man saw Dr. Smith.",
    "Where is the house?",
    "“Stop!” she cried.",
]
PARAGRAPH = "The dog slept.  The old man saw Dr. Smith. Where is the house?\t“Stop!” she cried."
SHORT = "The dog slept. The cat slept."  # short enough for one input
MODES = [{"beam": 4}, {"beam": 1}, {"temperature": 1.0, "seed": 3}]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_sentence_is_translated_independently(mode, translator):
    first, second, third, fourth = translator.translate(SENTENCES, **mode)
    expected = f"{first}  {second} {third}\t{fourth}"
    assert translator.translate(PARAGRAPH, **mode) == expected
    assert translator.translate([SENTENCES[0], PARAGRAPH], **mode) == [first, expected]
    assert "".join(translator.stream(PARAGRAPH, **mode)) == expected


def test_line_breaks_are_restored_exactly(translator):
    first, second = translator.translate(SENTENCES[:2])
    text = f"\n {SENTENCES[0]}\r\n\n{SENTENCES[1]} {SENTENCES[0]}\n"
    expected = f"\n {first}\r\n\n{second} {first}\n"
    assert translator.translate(text) == expected
    assert "".join(translator.stream(text)) == expected
    assert translator.translate(SENTENCES[0] + "\n") == first + "\n"


@pytest.mark.parametrize("text", ["x", " The dog slept. ", "Dr. Smith slept", " \n ", ""])
def test_one_sentence_is_the_same_with_and_without_splitting(text, translator):
    split, whole = translator.predict(text), translator.predict(text, split=False)
    assert split == whole
    assert split.sentences == []


def test_a_text_that_is_not_split_is_one_input(translator):
    whole = translator.predict(SHORT, split=False)
    assert whole.sentences == whole.pieces == []
    ids = translator.task.source.encode(SHORT)
    assert list(whole.source_ids) == [*ids, translator.task.source.eos]
    assert "".join(translator.stream(SHORT, split=False)) == whole.text


def test_command_line_writes_one_line_for_each_line(folder, translator, verb):
    stdin = [SHORT, "", SENTENCES[0], SHORT]
    for arguments, split in (([], True), (["--no-split"], False)):
        expected = [one_line(text) for text in translator.translate(stdin, split=split)]
        lines = "".join(line + "\n" for line in expected)
        assert verb("translate", folder, *arguments, stdin=stdin) == (0, lines, "")
        assert verb("translate", folder, *arguments, *stdin) == (0, lines, "")
        assert verb("translate", folder, *arguments, "--stream", stdin=stdin) == (0, lines, "")
    assert translator.translate(SHORT) != translator.translate(SHORT, split=False)


def test_json_has_an_object_for_each_sentence(folder, translator, verb):
    arguments = ["--json", "--attention", "--history", "--alternatives", "2", "--n-best", "2"]
    code, out, err = verb("translate", folder, *arguments, stdin=[PARAGRAPH, SENTENCES[0]])
    assert (code, err) == (0, "")
    whole, single = map(json.loads, out.splitlines())
    alone = [
        json.loads(line)
        for line in verb("translate", folder, *arguments, stdin=SENTENCES)[1].splitlines()
    ]
    assert "sentences" not in single
    assert whole["sentences"] == alone
    assert whole["text"] == PARAGRAPH
    assert whole["translation"] == translator.translate(PARAGRAPH)
    assert whole["tokens"] == [token for record in alone for token in record["tokens"]]
    assert whole["score"] == pytest.approx(sum(record["score"] for record in alone))
    assert not {"attention", "history", "alternatives"} & set(whole)
    assert [record["translation"] for record in whole["n_best"]] == [
        prediction.text for prediction in translator.predict(PARAGRAPH, n_best=2).n_best
    ]


def test_n_best_list_has_the_best_combinations(translator):
    text = " ".join(SENTENCES[:2])
    first, second = (translator.predict(sentence, n_best=3) for sentence in SENTENCES[:2])
    every = [
        (a.score + b.score, f"{a.text} {b.text}")
        for a in first.n_best for b in second.n_best
    ]  # fmt: skip
    expected = sorted(every, reverse=True)[:3]
    predictions = translator.translate(text, n_best=3)
    assert [prediction.text for prediction in predictions] == [text for _, text in expected]
    assert [prediction.score for prediction in predictions] == pytest.approx(
        [score for score, _ in expected]
    )


def test_only_the_first_sentence_begins_with_the_prefix(translator):
    prediction = translator.predict(PARAGRAPH, prefix="Süß")
    assert prediction.text.startswith("Süß")
    first, *more = prediction.sentences
    assert first.text == translator.translate(SENTENCES[0], prefix="Süß")
    assert [sentence.text for sentence in more] == translator.translate(SENTENCES[1:])
    assert "".join(translator.stream(PARAGRAPH, prefix="Süß")) == prediction.text


def test_a_long_sentence_of_a_paragraph_is_translated_in_pieces(translator, long_text):
    text, messages = f"{SENTENCES[0]} {long_text.capitalize()}.", []
    text = text.replace(" 0 ", " Zero ")  # a sentence begins here
    prediction = translator.predict(text, warn=lambda i, message: messages.append((i, message)))
    short, long = prediction.sentences
    assert short.text == translator.translate(SENTENCES[0])
    assert len(long.pieces) > 1
    rule = "longer than the 40 tokens that the model was trained on: translated in"
    assert messages == [(0, f"{rule} {1 + len(long.pieces)} pieces")]
    quiet = {"warn": lambda i, message: None}
    assert "".join(translator.stream(text, **quiet)) == prediction.text


def test_an_evaluation_does_not_split(translator):
    examples = [Pair(1, SHORT, "x"), Pair(2, SENTENCES[0], "x")]
    expected = translator.translate([SHORT, SENTENCES[0]], split=False)
    assert translator.evaluate_examples(examples).answers == expected
