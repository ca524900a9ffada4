"""How probable given translations are (`--score`), and how good those of the model (`evaluate`)."""

import json

import pytest
import torch

from regard import InputError, Packed
from regard.tasks.bleu import bleu
from regard.text import lines
from regard.text.builtin import builtin_corpus

BOS, EOS = 1, 2
PAIRS = builtin_corpus("valid", 6)
GIVEN = ["\t".join(pair) for pair in PAIRS]
NO_TAB = "--score needs SOURCE<tab>TRANSLATION, but there is no tab"


@torch.no_grad()
def test_scores_of_given_translations_are_those_of_a_full_pass(folder, translator, verb):
    code, out, err = verb("translate", folder, "--score", "--json", given=GIVEN)
    assert (code, err) == (0, "")
    told = [json.loads(line) for line in out.split("\n")[:-1]]
    tokenizer = translator.task.target
    for one, (source, target), scored in zip(told, PAIRS, translator.score(PAIRS), strict=True):
        tokens = [*tokenizer.encode(target), EOS]
        logits = translator.transformer(
            Packed.of([[*translator.task.source.encode(source), EOS]]),
            Packed.of([[BOS, *tokens[:-1]]]),
        )
        expected = logits.double().log_softmax(-1)[range(len(tokens)), tokens].tolist()
        assert one["logprobs"] == pytest.approx(expected, abs=1e-4)
        assert one["logprob"] == pytest.approx(sum(expected), abs=1e-3)
        assert one["score"] == pytest.approx(one["logprob"] / ((5 + len(tokens)) / 6) ** 0.6)
        assert (one["text"], one["translation"], one["stopped"]) == (source, target, "given")
        assert one["tokens"] == tokenizer.tokens(tokens)
        assert (scored.token_ids, scored.text, scored.stopped) == (tokens, target, "given")
        assert scored.logprobs == pytest.approx(expected, abs=1e-4)
    code, out, err = verb("translate", folder, "--score", *GIVEN)
    assert (code, err) == (0, "")
    scores = [float(line) for line in out.split("\n")[:-1]]
    assert scores == pytest.approx([one["logprob"] for one in told], abs=1e-4)
    assert len(set(scores)) == len(PAIRS)


def test_a_translation_is_as_probable_given_back_as_it_was_found(byte_folder, texts, verb):
    """Bytes, because they make the same tokens of an answer that it was made of."""
    options = {"temperature": 1, "n_best": 200, "max_length": 4}
    _, out, _ = verb("translate", byte_folder, "--json", texts[4], **options)
    back = [
        one
        for one in json.loads(out)["n_best"]
        if not set("\n\r\t\ufffd") & set(one["translation"])
    ]
    assert len(back) > 5
    given = [f"{texts[4]}\t{one['translation']}" for one in back]
    _, out, _ = verb("translate", byte_folder, "--score", "--json", given=given)
    for one, line in zip(back, out.split("\n")[:-1], strict=True):
        scored, size = json.loads(line), len(one["tokens"])  # given, it has an end in any case
        assert scored["tokens"] == one["tokens"] + ["<eos>"] * (one["stopped"] == "length")
        assert scored["logprobs"][:size] == pytest.approx(one["logprobs"], abs=1e-4)
        if one["stopped"] == "end":
            assert scored["score"] == pytest.approx(one["score"], abs=1e-3)
    assert {one["stopped"] for one in back} == {"end", "length"}


def test_a_line_without_translation_is_named(folder, verb, monkeypatch):
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    code, out, err = verb("translate", folder, "--score", given=[*GIVEN[:4], "no tab", "a\tb"])
    assert (code, out.count("\n")) == (2, 4)
    assert err == f"regard: standard input:5: {NO_TAB}\n"
    code, out, err = verb("translate", folder, "--score", "no tab")
    assert (code, out, err) == (2, "", f"regard: text:1: {NO_TAB}\n")


def test_the_scores_before_a_line_without_translation_are_printed(folder, verb):
    code, out, _ = verb("translate", folder, "--score", given=[*GIVEN[:4], "no tab", "a\tb"])
    assert (code, out.count("\n")) == (2, 4)


@pytest.fixture
def data(tmp_path):
    """--data SOURCE TARGET"""
    files = tmp_path / "valid.en", tmp_path / "valid.de"
    for file, side in zip(files, zip(*PAIRS, strict=True), strict=True):
        file.write_text("".join(line + "\n" for line in side), encoding="utf-8")
    return ["--data", *files]


def test_evaluate_takes_the_options_of_decoding_and_says_how_it_measured(
    folder, translator, data, verb
):
    sources, targets = zip(*PAIRS, strict=True)
    seen = set()
    for options in ({}, {"beam": 1}, {"temperature": 1.0, "seed": 4, "max_length": 40}):
        expected = bleu(translator.translate(sources, **options), targets)
        code, out, err = verb("evaluate", folder, *data, "--json", samples=200, **options)
        assert (code, err) == (0, "")
        told = json.loads(out)
        for low, high in told.pop("intervals").values():
            assert 0 <= low < high
        assert told == {"task": "translate", "examples": len(PAIRS), **expected}
        seen.add(expected["chrf"])
    assert len(seen) == 3  # the options do something
    assert expected["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert expected["chrf_signature"].startswith("nrefs:1|case:mixed")
    code, out, err = verb("evaluate", folder, *data, samples=200, **options)
    assert (code, err) == (0, "")
    rows = {line.split()[0].rstrip(":"): line.split()[1] for line in out.splitlines()}
    assert rows.pop("metric") == "score"
    assert rows.pop("examples") == str(len(PAIRS))
    assert rows == {name: str(value) for name, value in expected.items()}


def test_evaluate_refuses_what_translate_refuses(folder, data, verb):
    code, out, err = verb("evaluate", folder, *data, top_k=5)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "decoding.top_k=5 and decoding.temperature=0 cannot be combined" in err
    code, out, err = verb("evaluate", folder, *data[:2])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "takes two files: source, then target" in err


def test_evaluate_says_in_one_line_which_text_is_too_long(folder, long_text, verb, tmp_path):
    files = tmp_path / "source", tmp_path / "target"
    for file in files:
        file.write_text(f"The dog slept.\n{long_text}\n")
    code, _, err = verb("evaluate", folder, "--data", *files)
    assert (code, err.count("\n")) == (0, 1)
    assert f"{files[0]}:2: longer than the 40 tokens" in err


def test_a_blank_line_has_no_score_and_a_long_one_is_warned_of(folder, translator, verb):
    long = "word " * 300
    given = ["a dog\tein Hund", "", f"{long}\tein Hund"]
    code, out, err = verb("translate", folder, "--score", given=given)
    lines = out.split("\n")[:-1]
    assert (code, lines[1], len(lines)) == (0, "", 3)
    assert float(lines[0]) == pytest.approx(translator.score([("a dog", "ein Hund")])[0].logprob)
    assert err.startswith("regard: standard input:3: longer than the ")


@pytest.mark.parametrize("pairs", ["ab", [("a",)], [("a", None)], ["ab"]], ids=str)
def test_what_is_no_pair_of_texts_is_refused(pairs, translator):
    with pytest.raises(InputError, match="a pair is|a text is"):
        translator.score(pairs)
