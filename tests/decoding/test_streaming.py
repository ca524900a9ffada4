"""Translations as texts: whole, bit by bit, and in pieces."""

from functools import cache

import pytest
import torch

from regard.config.sections import DecodingConfig
from regard.decoding.search import Details
from regard.tasks.translate import Translate
from regard.text.tokenizer import Tokenizer

LINES = ["Das alte Haus steht am Fluss. Ein Hund läuft über die Straße!", "Grüße, 日本語 😀 süß €"]
TEXTS = ["Hund", "Grüß 日 😀", "Ein Haus. Am Fluß"]
MODES = [
    {"beam": 1},
    {"beam": 4},
    {"beam": 3, "n_best": 2, "no_repeat": 3},
    {"beam": 1, "temperature": 1.0},
    {"beam": 1, "temperature": 1.0, "top_k": 8, "n_best": 2},
]


@pytest.fixture(scope="session")
def translator(net):
    """translator("byte"): a task and a model that says bytes of characters of one to four bytes,
    in any order: some are text, some are not."""

    @cache
    def make(kind):
        tokenizer = Tokenizer.learn(LINES * 20, kind, 300, quiet=True)
        size = tokenizer.size
        one = net(seed=3, vocabulary_size=size, norm_first=True, dtype=torch.float32)
        said = {tokenizer.eos, *tokenizer.encode("é€😀a ß")}
        if kind != "character":
            said |= {byte + 6 for byte in "é€😀a ".encode()}
        # One feature of the last layer is always 1, and its weight is low for all other tokens.
        norm, weight = one.decoder.final_norm, one.head.output.weight.data
        norm.weight.data[0], norm.bias.data[0] = 0.0, 1.0
        weight[:, 0] = -20.0
        weight[sorted(said), 0] = 0.0
        weight[tokenizer.eos, 0] = -1.0
        return Translate(tokenizer, tokenizer), one

    return make


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("kind", ["byte", "bpe", "character"])
def test_the_bits_of_a_stream_make_up_the_answer(kind, mode, translator):
    task, one = translator(kind)
    options = DecodingConfig(max_length=4, **mode)
    for longest, prefix in ((1000, ""), (12, "ß😀")):
        answers = task.translate(one, TEXTS, options, longest, prefix)
        for text, answer in zip(TEXTS, answers, strict=True):
            requests = task.requests([text], longest, prefix)[0]
            bits = list(task.stream(one, requests, options))
            assert "".join(bits) == answer.text
            assert all(bits)


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_characters_of_several_bytes_come_whole_and_one_by_one(kind, translator):
    task, one = translator(kind)
    found = set()
    for seed in range(8):
        options = DecodingConfig(beam=1, temperature=1.0, seed=seed, max_length=40, min_length=30)
        bits = list(task.stream(one, task.requests(["Ein Hund"])[0], options))
        assert len(bits) > 5
        found |= set("".join(bits))
    assert {len(sign.encode()) for sign in found - {"\ufffd"}} == {1, 2, 3, 4}
    assert "\ufffd" in found  # what is no text shows as such, and is not lost


def test_a_stream_of_nothing_is_nothing(translator):
    task, one = translator("byte")
    assert list(task.stream(one, task.requests([" \n"], 100, "Süß")[0], DecodingConfig())) == []
    answers = task.translate(one, ["", " \n"], DecodingConfig(), 100, "Süß")
    assert [(a.token_ids, a.text, a.stopped, a.score) for a in answers] == [
        ([], "", "empty", 0)
    ] * 2
    assert task.translate(one, [], DecodingConfig(), 100) == []


@pytest.mark.parametrize("kind", ["byte", "bpe", "character"])
def test_texts_of_answers_are_their_tokens_and_begin_with_the_prefix(kind, translator, all_of):
    task, one = translator(kind)
    options = DecodingConfig(beam=3, n_best=3, max_length=9)
    for answer in task.translate(one, TEXTS, options, 1000, "Süß", Details(alternatives=2)):
        for other in all_of(answer):
            assert other.text == task.target.decode(other.token_ids)
            assert other.text.startswith("Süß")
        assert len(answer.alternatives) == len(answer.token_ids)


def test_an_answer_in_pieces_is_made_of_the_answers_to_the_pieces(translator):
    task, one = translator("byte")
    options, text = DecodingConfig(beam=2, max_length=9), "Das Haus. Der Hund! Ein Fluss?"
    whole = task.translate(one, ["x", text, "Haus"], options, 12)[1]
    alone = task.translate(one, ["Das Haus.", "Der Hund!", "Ein Fluss?"], options, 12)
    assert len(whole.pieces) == 3
    for piece, other in zip(whole.pieces, alone, strict=True):
        assert (piece.token_ids, piece.text) == (other.token_ids, other.text)
    assert whole.text == " ".join(other.text for other in alone)
    assert whole.token_ids == [token for other in alone for token in other.token_ids]
    assert whole.logprob == pytest.approx(sum(other.logprob for other in alone), abs=1e-4)
    assert whole.score == pytest.approx(sum(other.score for other in alone), abs=1e-4)


def test_the_score_of_a_given_translation_is_that_of_the_search(translator):
    task, one = translator("character")
    options = DecodingConfig(beam=1, temperature=1.0, length_penalty=0.0)
    answers = task.translate(one, TEXTS, options, 1000)
    assert {answer.stopped for answer in answers} == {"end"}
    given = task.score(one, [(text, a.text) for text, a in zip(TEXTS, answers, strict=True)])
    for answer, scored in zip(answers, given, strict=True):
        assert (scored.token_ids, scored.text, scored.stopped) == (
            answer.token_ids,
            answer.text,
            "given",
        )
        assert scored.score == pytest.approx(answer.score, abs=1e-4)
    assert task.score(one, []) == []
