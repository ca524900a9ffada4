"""Scores of existing translations (`--score`), and of the translations of a model (`evaluate`)."""

import json

import pytest
import torch

from regard import InputError, Packed
from regard.tasks.bleu import bleu
from regard.text import lines
from regard.text.builtin import builtin_corpus

BOS, EOS = 1, 2
PAIRS = builtin_corpus("valid", 6)
LINES = ["\t".join(pair) for pair in PAIRS]
NO_TAB = "--score needs SOURCE<tab>TRANSLATION, but there is no tab"


@torch.no_grad()
def test_scores_equal_those_of_a_full_pass(folder, translator, verb):
    code, out, err = verb("translate", folder, "--score", "--json", stdin=LINES)
    assert (code, err) == (0, "")
    records = [json.loads(line) for line in out.split("\n")[:-1]]
    tokenizer = translator.task.target
    for record, (source, target), scored in zip(
        records, PAIRS, translator.score(PAIRS), strict=True
    ):
        tokens = [*tokenizer.encode(target), EOS]
        logits = translator.transformer(
            Packed.of([[*translator.task.source.encode(source), EOS]]),
            Packed.of([[BOS, *tokens[:-1]]]),
        )
        expected = logits.double().log_softmax(-1)[range(len(tokens)), tokens].tolist()
        assert record["logprobs"] == pytest.approx(expected, abs=1e-4)
        assert record["logprob"] == pytest.approx(sum(expected), abs=1e-3)
        assert record["score"] == pytest.approx(record["logprob"] / ((5 + len(tokens)) / 6) ** 0.6)
        assert (record["text"], record["translation"], record["stopped"]) == (
            source,
            target,
            "given",
        )
        assert record["tokens"] == tokenizer.tokens(tokens)
        assert (scored.token_ids, scored.text, scored.stopped) == (tokens, target, "given")
        assert scored.logprobs == pytest.approx(expected, abs=1e-4)
    code, out, err = verb("translate", folder, "--score", *LINES)
    assert (code, err) == (0, "")
    scores = [float(line) for line in out.split("\n")[:-1]]
    assert scores == pytest.approx([record["logprob"] for record in records], abs=1e-4)
    assert len(set(scores)) == len(PAIRS)


def test_score_of_an_output_equals_the_score_of_its_search(byte_folder, texts, verb):
    """The model uses bytes, so that encoding an output gives the tokens of the search."""
    options = {"temperature": 1, "n_best": 200, "max_length": 4}
    _, out, _ = verb("translate", byte_folder, "--json", texts[4], **options)
    outputs = [
        record
        for record in json.loads(out)["n_best"]
        if not set("\n\r\t\ufffd") & set(record["translation"])
    ]
    assert len(outputs) > 5
    stdin = [f"{texts[4]}\t{record['translation']}" for record in outputs]
    _, out, _ = verb("translate", byte_folder, "--score", "--json", stdin=stdin)
    for record, line in zip(outputs, out.split("\n")[:-1], strict=True):
        scored, size = (
            json.loads(line),
            len(record["tokens"]),
        )  # a scored translation always has an end
        assert scored["tokens"] == record["tokens"] + ["<eos>"] * (record["stopped"] == "length")
        assert scored["logprobs"][:size] == pytest.approx(record["logprobs"], abs=1e-4)
        if record["stopped"] == "end":
            assert scored["score"] == pytest.approx(record["score"], abs=1e-3)
    assert {record["stopped"] for record in outputs} == {"end", "length"}


def test_line_without_translation_is_reported(folder, verb, monkeypatch):
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    code, out, err = verb("translate", folder, "--score", stdin=[*LINES[:4], "no tab", "a\tb"])
    assert (code, out.count("\n")) == (2, 4)
    assert err == f"regard: standard input:5: {NO_TAB}\n"
    code, out, err = verb("translate", folder, "--score", "no tab")
    assert (code, out, err) == (2, "", f"regard: text:1: {NO_TAB}\n")


def test_scores_before_an_invalid_line_are_printed(folder, verb):
    code, out, _ = verb("translate", folder, "--score", stdin=[*LINES[:4], "no tab", "a\tb"])
    assert (code, out.count("\n")) == (2, 4)


@pytest.fixture
def data(tmp_path):
    """The option --data with its two files."""
    files = tmp_path / "valid.en", tmp_path / "valid.de"
    for file, side in zip(files, zip(*PAIRS, strict=True), strict=True):
        file.write_text("".join(line + "\n" for line in side), encoding="utf-8")
    return ["--data", *files]


def test_evaluate_uses_the_options_of_decoding_and_prints_signatures(
    folder, translator, data, verb
):
    sources, targets = zip(*PAIRS, strict=True)
    chrf_scores = set()
    for options in ({}, {"beam": 1}, {"temperature": 1.0, "seed": 4, "max_length": 40}):
        expected = bleu(translator.translate(sources, **options), targets)
        code, out, err = verb("evaluate", folder, *data, "--json", samples=200, **options)
        assert (code, err) == (0, "")
        report = json.loads(out)
        for low, high in report.pop("intervals").values():
            assert 0 <= low < high
        assert report == {"task": "translate", "examples": len(PAIRS), **expected}
        chrf_scores.add(expected["chrf"])
    assert len(chrf_scores) == 3  # the options have an effect
    assert expected["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert expected["chrf_signature"].startswith("nrefs:1|case:mixed")
    code, out, err = verb("evaluate", folder, *data, samples=200, **options)
    assert (code, err) == (0, "")
    rows = {line.split()[0].rstrip(":"): line.split()[1] for line in out.splitlines()}
    assert rows.pop("metric") == "score"
    assert rows.pop("examples") == str(len(PAIRS))
    assert rows == {name: str(value) for name, value in expected.items()}


def test_evaluate_refuses_invalid_options(folder, data, verb):
    code, out, err = verb("evaluate", folder, *data, top_k=5)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "decoding.top_k=5 and decoding.temperature=0 cannot be combined" in err
    code, out, err = verb("evaluate", folder, *data[:2])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "takes two files: source, then target" in err


def test_evaluate_warns_about_a_too_long_text(folder, long_text, verb, tmp_path):
    files = tmp_path / "source", tmp_path / "target"
    for file in files:
        file.write_text(f"The dog slept.\n{long_text}\n")
    code, _, err = verb("evaluate", folder, "--data", *files)
    assert (code, err.count("\n")) == (0, 1)
    assert f"{files[0]}:2: longer than the 40 tokens" in err


def test_blank_line_has_no_score_and_long_line_has_a_warning(folder, translator, verb):
    long = "word " * 300
    stdin = ["a dog\tein Hund", "", f"{long}\tein Hund"]
    code, out, err = verb("translate", folder, "--score", stdin=stdin)
    lines = out.split("\n")[:-1]
    assert (code, lines[1], len(lines)) == (0, "", 3)
    assert float(lines[0]) == pytest.approx(translator.score([("a dog", "ein Hund")])[0].logprob)
    assert err.startswith("regard: standard input:3: longer than the ")


@pytest.mark.parametrize("pairs", ["ab", [("a",)], [("a", None)], ["ab"]], ids=str)
def test_invalid_pairs_are_refused(pairs, translator):
    with pytest.raises(InputError, match="a pair is|a text is"):
        translator.score(pairs)
