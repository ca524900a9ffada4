"""Translations as texts: complete, streamed, and of split inputs."""

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
    """translator("byte"): a task and a model that generates bytes of characters of one to four bytes
    in any order, so that some outputs are not valid UTF-8."""

    @cache
    def make(kind):
        tokenizer = Tokenizer.learn(LINES * 20, kind, 300, quiet=True)
        size = tokenizer.size
        transformer = net(seed=3, vocabulary_size=size, norm_first=True, dtype=torch.float32)
        possible = {tokenizer.eos, *tokenizer.encode("é€😀a ß")}
        if kind != "character":
            possible |= {byte + 6 for byte in "é€😀a ".encode()}
        # One feature of the last layer is always 1, and its weight is low for all other tokens.
        norm, weight = transformer.decoder.final_norm, transformer.head.output.weight.data
        norm.weight.data[0], norm.bias.data[0] = 0.0, 1.0
        weight[:, 0] = -20.0
        weight[sorted(possible), 0] = 0.0
        weight[tokenizer.eos, 0] = -1.0
        return Translate(tokenizer, tokenizer), transformer

    return make


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("kind", ["byte", "bpe", "character"])
def test_streamed_parts_join_to_the_prediction(kind, mode, translator):
    task, transformer = translator(kind)
    options = DecodingConfig(max_length=4, **mode)
    for longest, prefix in ((1000, ""), (12, "ß😀")):
        answers = task.translate(transformer, TEXTS, options, longest, prefix)
        for text, answer in zip(TEXTS, answers, strict=True):
            requests = task.requests([text], longest, prefix)[0]
            bits = list(task.stream(transformer, requests, options))
            assert "".join(bits) == answer.text
            assert all(bits)


@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_multibyte_characters_are_streamed_whole(kind, translator):
    task, transformer = translator(kind)
    characters = set()
    for seed in range(8):
        options = DecodingConfig(beam=1, temperature=1.0, seed=seed, max_length=40, min_length=30)
        bits = list(task.stream(transformer, task.requests(["Ein Hund"])[0], options))
        assert len(bits) > 5
        characters |= set("".join(bits))
    assert {len(sign.encode()) for sign in characters - {"\ufffd"}} == {1, 2, 3, 4}
    assert "\ufffd" in characters  # invalid bytes are shown as U+FFFD


def test_stream_of_empty_text_is_empty(translator):
    task, transformer = translator("byte")
    assert (
        list(task.stream(transformer, task.requests([" \n"], 100, "Süß")[0], DecodingConfig()))
        == []
    )
    answers = task.translate(transformer, ["", " \n"], DecodingConfig(), 100, "Süß")
    assert [(a.token_ids, a.text, a.stopped, a.score) for a in answers] == [
        ([], "", "empty", 0)
    ] * 2
    assert task.translate(transformer, [], DecodingConfig(), 100) == []


@pytest.mark.parametrize("kind", ["byte", "bpe", "character"])
def test_prediction_text_decodes_tokens_and_starts_with_prefix(kind, translator, all_of):
    task, transformer = translator(kind)
    options = DecodingConfig(beam=3, n_best=3, max_length=9)
    for answer in task.translate(transformer, TEXTS, options, 1000, "Süß", Details(alternatives=2)):
        for prediction in all_of(answer):
            assert prediction.text == task.target.decode(prediction.token_ids)
            assert prediction.text.startswith("Süß")
        assert len(answer.alternatives) == len(answer.token_ids)


def test_prediction_of_split_text_joins_its_pieces(translator):
    task, transformer = translator("byte")
    options, text = DecodingConfig(beam=2, max_length=9), "Das Haus. Der Hund! Ein Fluss?"
    whole = task.translate(transformer, ["x", text, "Haus"], options, 12)[1]
    alone = task.translate(transformer, ["Das Haus.", "Der Hund!", "Ein Fluss?"], options, 12)
    assert len(whole.pieces) == 3
    for piece, expected in zip(whole.pieces, alone, strict=True):
        assert (piece.token_ids, piece.text) == (expected.token_ids, expected.text)
    assert whole.text == " ".join(expected.text for expected in alone)
    assert whole.token_ids == [token for expected in alone for token in expected.token_ids]
    assert whole.logprob == pytest.approx(sum(expected.logprob for expected in alone), abs=1e-4)
    assert whole.score == pytest.approx(sum(expected.score for expected in alone), abs=1e-4)


def test_score_of_translation_equals_search_score(translator):
    task, transformer = translator("character")
    options = DecodingConfig(beam=1, temperature=1.0, length_penalty=0.0)
    answers = task.translate(transformer, TEXTS, options, 1000)
    assert {answer.stopped for answer in answers} == {"end"}
    scores = task.score(
        transformer, [(text, a.text) for text, a in zip(TEXTS, answers, strict=True)]
    )
    for answer, scored in zip(answers, scores, strict=True):
        assert (scored.token_ids, scored.text, scored.stopped) == (
            answer.token_ids,
            answer.text,
            "given",
        )
        assert scored.score == pytest.approx(answer.score, abs=1e-4)
    assert task.score(transformer, []) == []
