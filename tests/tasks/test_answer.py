"""Tests of the task answer: windows of long contexts, the command line and the evaluation."""

import json
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError
from regard.decoding.search import decode
from regard.tasks.answer import QuestionInput, Questions
from regard.text.corpus import read_questions
from regard.text.tokenizer import Tokenizer

EOS, SEP, MASK = Tokenizer.eos, Tokenizer.sep, Tokenizer.mask
STYLES = ("encoder-decoder", "encoder", "decoder")
CONTEXT = "Mary went to the garden. John went to the office."
QUESTIONS = [
    QuestionInput(CONTEXT, "Where is Mary?"),
    QuestionInput("", "Why?"),
    QuestionInput(CONTEXT, "Who is in the office?"),
]


# ---- data -------------------------------------------------------------------------------


def test_input_is_context_sep_question_and_long_rows_are_skipped(configure, bpe, tmp_path):
    rows = [
        {"context": CONTEXT, "question": "Where is Mary?", "answer": "garden"},
        {"context": "a long story " * 20, "question": "Why?", "answer": "so"},
        {"context": "", "question": "Why?", "answer": "so"},
        {"context": "short", "question": "Why?", "answer": "for a long time " * 20},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Questions(bpe, bpe)
    config = configure("answer", data={"max_length": 50})
    store, report = task.build([tmp_path / "rows.jsonl"], tmp_path / "cache", config, True)
    assert (report.kept, report.skipped) == (2, {"too long": 2})
    for i, row in enumerate((rows[0], rows[2])):
        source = [*bpe.encode(row["context"]), SEP, *bpe.encode(row["question"]), EOS]
        assert store.tokens(0, i).tolist() == source
        assert store.tokens(1, i).tolist() == [*bpe.encode(row["answer"]), EOS]


@pytest.mark.parametrize("style", STYLES)
def test_request_equals_beginning_of_training_row(style, configure, bpe, data, tmp_path):
    task = Questions(bpe, bpe, style)
    files = [data["answer"][0][0]]
    store, _ = task.build(files, tmp_path, configure("answer", style), True)
    batch = task.batch(store, np.arange(6), torch.device("cpu"))
    row = batch.target if style == "decoder" else batch.source
    rows = list(read_questions(files[0]))[:6]
    groups = task.requests([QuestionInput(row.context, row.question) for row in rows], 64, 9)
    for tokens, [request] in zip(row.split(row.tokens), groups, strict=True):
        assert tokens.tolist()[: len(request.source)] == request.source


# ---- windows ----------------------------------------------------------------------------


@given(
    context=st.integers(0, 120), question=st.integers(0, 15), longest=st.integers(18, 60),
    style=st.sampled_from(STYLES),
)  # fmt: skip
def test_windows_cover_context_and_overlap_by_half(context, question, longest, style):
    byte = Tokenizer("byte")
    letters = "".join(chr(33 + i % 90) for i in range(context))
    [requests] = Questions(byte, byte, style).requests(
        [QuestionInput(letters, "q" * question)], longest, 5
    )
    close = [EOS] if style == "encoder-decoder" else [SEP]
    ids, question_ids = byte.encode(letters), byte.encode("q" * question)
    room = longest - question - 2
    covered, previous, end = set(), None, 0
    for request in requests:
        source = [token for token in request.source if token != MASK]
        assert source[-1:] == close
        part = source[: source.index(SEP)]
        assert source == [*part, SEP, *question_ids, *close]
        assert len(source) <= longest
        assert request.limit == 5
        start = 0 if previous is None else previous + max(1, room // 2)
        assert part == ids[start : start + room]
        covered |= set(range(start, start + len(part)))
        previous, end = start, start + len(part)
    assert covered == set(range(context))
    assert end == context
    assert (len(requests) == 1) == (context <= room)


def test_best_answer_of_all_windows_is_returned_with_warning(loaded, call):
    model = loaded("answer")
    long = " ".join(f"Person {i} went to the garden {i}." for i in range(20))
    warning = "longer than the 64 tokens that the model was trained on: the best answer of"
    with pytest.warns(UserWarning, match=f"text 2 is {warning}"):
        answers = model.predict(["Who?", "Where is Mary?"], context=[CONTEXT, long])
    assert not answers[0].pieces
    options = model.decoding({})
    [requests] = model.task.requests(
        [QuestionInput(long, "Where is Mary?")], 64, options.max_length
    )
    every = decode(model.transformer, requests, options)
    assert len(every) > 4
    best = max(every, key=lambda answer: answer.score)
    assert (answers[1].token_ids, len(answers[1].pieces)) == (best.token_ids, len(every))
    assert answers[1].score == pytest.approx(best.score, abs=1e-5)
    assert [piece.token_ids for piece in answers[1].pieces] == [
        answer.token_ids for answer in every
    ]
    code, out, err = call("answer", "-m", model.folder, stdin=["", f"{long}\tWhere is Mary?"])
    assert (code, out.count("\n")) == (0, 2)
    assert err == f"regard: standard input:2: {warning} {len(every)} windows was chosen\n"


# ---- the command line -------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_answer_does_not_depend_on_batch(style, loaded):
    model = loaded("answer", style)
    questions, contexts = ([question[side] for question in QUESTIONS] for side in (1, 0))
    together = model.predict(questions, context=contexts)
    alone = [model.predict(q, context=c) for c, q in QUESTIONS]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]


def test_line_is_context_tab_question_or_json_or_question(loaded, call):
    model = loaded("answer")
    answers = model.answer([q.question for q in QUESTIONS], [q.context for q in QUESTIONS])
    tabs = [
        "\t".join(QUESTIONS[0]),
        "",
        json.dumps({"context": "", "question": "Why?"}),
        "\t".join(QUESTIONS[2]),
    ]
    expected = [answers[0], "", answers[1], answers[2]]
    code, out, err = call("answer", "-m", model.folder, stdin=tabs)
    assert (code, out.split("\n")[:-1], err) == (0, expected, "")
    questions = [QUESTIONS[0].question, QUESTIONS[2].question]
    code, out, err = call("answer", "-m", model.folder, "--context", CONTEXT, *questions)
    assert (code, out.split("\n")[:-1], err) == (0, [answers[0], answers[2]], "")
    code, out, _ = call(
        "answer", "-m", model.folder, "--json", "--context", CONTEXT, stdin=[questions[0], " "]
    )
    records = [json.loads(line) for line in out.splitlines()]
    assert records[0]["question"] == questions[0]
    assert records[0]["answer"] == answers[0]
    assert records[0]["logprob"] == pytest.approx(sum(records[0]["logprobs"]))
    assert (records[1]["question"], records[1]["answer"], records[1]["stopped"]) == (
        "",
        "",
        "empty",
    )


@pytest.mark.parametrize(
    "line",
    [
        "no tab", "context\t", "context\t ", '{"context": "a"}', '{"context": 1, "question": "q"}',
        '{"question": "q"}', "{broken", '{"context": "a", "question": " "}', "{" * 2000,
    ],
    ids=lambda line: line[:40],
)  # fmt: skip
def test_invalid_line_is_reported_after_answers_to_previous_lines(line, loaded, call):
    folder = loaded("answer").folder
    code, out, err = call("answer", "-m", folder, stdin=["\t".join(QUESTIONS[0]), "", line, "a\tb"])
    assert (code, out.count("\n"), err.count("\n")) == (2, 2, 1)
    assert err.startswith("regard: standard input:3: expected CONTEXT<tab>QUESTION or ")


def test_question_without_room_for_context_is_reported(loaded, call):
    model = loaded("answer")
    long = "Where is Mary? " * 30
    with pytest.raises(InputError, match=r"question 2: the question has \d+ tokens, .* at most 64"):
        model.answer(["Why?", long], CONTEXT)
    lines = ["\t".join(QUESTIONS[0]), "", f"a\t{long}"]
    code, _, err = call("answer", "-m", model.folder, stdin=lines)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("regard: standard input:3: the question has ")


def test_numbers_of_questions_and_contexts_must_agree(loaded):
    model = loaded("answer")
    with pytest.raises(InputError, match="3 questions but 2 contexts"):
        model.answer(["a", "b", "c"], ["d", "e"])
    assert len(model.answer(["a", "b", "c"], "one context for all")) == 3
    assert model.answer([], []) == []


# ---- evaluation -------------------------------------------------------------------------


def test_exact_match_and_f1_are_means_with_details_by_kind(loaded, data, call):
    model = loaded("answer")
    rows = list(read_questions(data["answer"][1][0]))
    answers = model.answer([row.question for row in rows], [row.context for row in rows])
    right, shared, kinds = [], [], defaultdict(list)
    for answer, row in zip(answers, rows, strict=True):  # single words need no normalisation
        predicted, expected = answer.lower().strip(" .?").split(), row.answer.lower().split()
        right.append(predicted == expected)
        common = sum(min(predicted.count(word), expected.count(word)) for word in set(expected))
        shared.append(2 * common / (len(predicted) + len(expected)))
        kinds[row.task].append(right[-1])
    code, out, err = call("evaluate", "-m", model.folder, "--data", *data["answer"][1], "--json")
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["examples"] == len(rows)
    assert record["exact"] == pytest.approx(np.mean(right), abs=1e-4)
    assert record["f1"] == pytest.approx(np.mean(shared), abs=1e-4)
    assert record["exact_by_task"].keys() == {"where", "who"}
    for kind, matches in kinds.items():
        assert record["exact_by_task"][kind] == pytest.approx(np.mean(matches), abs=1e-4)
    code, out, _ = call("evaluate", "-m", model.folder, "--data", *data["answer"][1])
    assert {"where", "who"} <= {line.split()[0] for line in out.splitlines()}


def test_any_of_several_answers_counts_as_correct(loaded, tmp_path, call):
    model = loaded("answer")
    answer = model.answer(QUESTIONS[0].question, QUESTIONS[0].context, min_length=4)
    assert answer
    row = {"context": CONTEXT, "question": "Where is Mary?", "answer": "no such word"}
    for answers, exact in (([], 0), (["no such word", answer], 1)):
        more = {"answers": answers} if answers else {}
        (tmp_path / "rows.jsonl").write_text(json.dumps(row | more) + "\n")
        _, out, _ = call(
            "evaluate", "-m", model.folder, "--data", tmp_path / "rows.jsonl", "--json",
            "--min-length", "4",
        )  # fmt: skip
        record = json.loads(out)
        assert record["exact"] == exact
        assert "exact_by_task" not in record


def test_evaluate_warns_about_context_read_in_windows(loaded, tmp_path, call):
    model = loaded("answer")
    rows = [
        {"context": CONTEXT, "question": "Why?", "answer": "so"},
        {"context": CONTEXT * 5, "question": "Why?", "answer": "so"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    code, _, err = call("evaluate", "-m", model.folder, "--data", file, "--json")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith(f"regard: {file}:2: longer than the 64 tokens")
