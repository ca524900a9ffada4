"""Invalid data files of a task: a one-line error that names file and line, and no output files."""

import json
import os

import pytest

import regard

TASKS = ("translate", "answer", "generate", "classify", "fill", "embed")


@pytest.fixture
def write(tmp_path):
    """write("rows.tsv", "a line", {"a": "row"}): the path of a file with these lines."""

    def make(name, *rows):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return tmp_path / name

    return make


# ---- labels -----------------------------------------------------------------------------


def test_unknown_label_is_reported(training_error, error_message, write, trained):
    rows = write(
        "valid.tsv", "en\tThe dog slept.", "de\tDer Hund schlief.", "fr\tLe chien dormait."
    )
    message = f"{rows}:3: the label 'fr' was never seen in training (known: de, en, number)"
    assert training_error("classify", valid=[rows]) == message
    assert error_message("evaluate", "-m", trained("classify"), "--data", rows) == message


def test_declared_class_without_example_is_reported(training_error, write, tmp_path, data):
    write("config.yaml", "data: {labels: [en, de, number, fr]}")
    message = training_error("classify", "--config", tmp_path / "config.yaml")
    assert message == f"{data['classify'][0][0]}: the class 'fr' of data.labels has no example"


def test_undeclared_label_is_reported(training_error, write, tmp_path, data):
    write("config.yaml", "data: {labels: [en, de]}")
    message = training_error("classify", "--config", tmp_path / "config.yaml")
    assert message == f"{data['classify'][0][0]}:1: the label 'number' is not one of data.labels"


def test_invalid_or_duplicate_declared_labels_are_reported(training_error, write, tmp_path):
    for labels in ("[en, en]", "[en, 3]", "en"):
        write("config.yaml", f"data: {{labels: {labels}}}")
        assert "data.labels" in training_error("classify", "--config", tmp_path / "config.yaml")


def test_single_class_is_reported(training_error, write):
    rows = write("rows.tsv", "en\tThe dog slept.", "en\tThe cat slept.")
    message = (
        f"{rows}: only one class, 'en', in 2 training examples: a classifier needs at least two"
    )
    assert training_error("classify", train=[rows], valid=[rows]) == message


# ---- rows -------------------------------------------------------------------------------

GOOD = {
    "answer": [{"context": "c", "question": "q", "answer": f"a{i}"} for i in range(2)],
    "classify": [{"text": "The dog slept.", "label": "en"}, {"text": "Der Hund", "label": "de"}],
    "generate": [{"text": "The dog slept."}, {"text": "The cat slept."}],
    "fill": [{"text": "The dog slept."}, {"text": "The cat slept."}],
    "embed": [{"a": "The dog", "b": "Der Hund"}, {"a": "The cat", "b": "Die Katze"}],
}
BAD = [
    ("answer", {"context": "c", "question": " ", "answer": "a"}, "the question is empty: remove the row"),
    ("answer", {"context": "c", "question": "q", "answer": ""}, "the answer is empty: remove the row"),
    ("answer", {"context": "c", "question": "q"}, 'no "answer" (expected {"context", "question", "answer"})'),
    ("answer", {"context": 3, "question": "q", "answer": "a"}, '"context" must be a string, not a number'),
    ("classify", {"text": "\t", "label": "en"}, "the text is empty: remove the row"),
    ("classify", {"text": "x", "label": " "}, "the label is empty"),
    ("classify", {"text": "x", "label": None}, '"label" must be a string, not null'),
    ("generate", {"text": " \n"}, "the document is empty: remove the row"),
    ("generate", {"texts": "x"}, 'no "text" (expected {"text"})'),
    ("fill", {"text": ""}, "the document is empty: remove the row"),
    ("fill", ["x"], 'expected an object {"text"}, not a list'),
    ("embed", {"a": "", "b": "x"}, '"a" is empty: remove the row'),
    ("embed", {"a": "x", "b": " "}, '"b" is empty: remove the row'),
    ("embed", {"a": "x", "b": "y", "score": "high"}, '"score" must be a finite number, not a string'),
    ("embed", {"a": "x", "b": "y", "score": 3}, "a score, but the rows before it have none"),
    *((task, '{"broken', "not JSON (Unterminated string starting at at column 2;") for task in GOOD),
    *((task, "no JSON at all", "not JSON (Expecting value at column 1;") for task in GOOD),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "row", "message"), BAD, ids=[f"{task} {row}"[:60] for task, row, _ in BAD]
)
def test_invalid_row_is_reported_in_every_file(
    task, row, message, training_error, error_message, write, trained
):
    rows = write("rows.jsonl", *GOOD[task], "", row)
    expected = f"{rows}:4: {message}"
    assert training_error(task, train=[rows]).startswith(expected)
    assert training_error(task, valid=[rows]).startswith(expected)
    assert error_message("evaluate", "-m", trained(task), "--data", rows).startswith(expected)


@pytest.mark.parametrize("vocabulary", ["byte", "character"])
def test_invalid_row_is_reported_with_every_vocabulary(vocabulary, training_error, write):
    rows = write("rows.jsonl", *GOOD["classify"], {"text": " ", "label": "en"})
    more = f"--set=data.vocabulary={vocabulary}"
    assert training_error("classify", more, train=[rows]).startswith(f"{rows}:3: the text is empty")


def test_line_without_tab_is_reported(training_error, write):
    rows = write("rows.tsv", "en\tThe dog slept.", "de Der Hund schlief.")
    assert training_error("classify", train=[rows]) == f"{rows}:2: no tab (expected label<TAB>text)"


@pytest.mark.parametrize("task", TASKS)
def test_empty_blank_binary_or_missing_file_is_reported(
    task, training_error, write, tmp_path, data
):
    second = [] if task != "translate" else [data[task][0][1]]
    for content in (b"", b"\n \n\n"):
        (tmp_path / "rows.txt").write_bytes(content)
        message = training_error(task, train=[tmp_path / "rows.txt", *second])
        if task == "translate":  # the other side has lines
            assert "lines but" in message
        else:
            assert message == f"{tmp_path / 'rows.txt'} is empty: there is nothing to learn from"
    for vocabulary in ("bpe", "byte"):
        (tmp_path / "rows.txt").write_bytes(b"fine\nen\tcaf\xe9\n")
        message = training_error(
            task, f"--set=data.vocabulary={vocabulary}", train=[tmp_path / "rows.txt", *second]
        )
        assert str(tmp_path / "rows.txt") in message or "lines but" in message
    assert (
        training_error(task, train=[tmp_path / "nothing", *second])
        == f"{tmp_path / 'nothing'}: no such file"
    )
    assert training_error(task, train=[tmp_path, *second]) == f"{tmp_path}: is a folder, not a file"


@pytest.mark.parametrize("task", ["translate", "generate"])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_training_from_pipe_is_refused(split, task, training_error, tmp_path, data):
    """Training reads its files twice, and a pipe would be empty the second time."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    second = [] if task != "translate" else [data[task][0][1]]
    assert training_error(task, **{split: [pipe, *second]}) == (
        f"{pipe}: is a pipe, which cannot be read twice: write its content to a file first"
    )


def test_two_empty_files_are_both_reported(training_error, write):
    files = [write("empty.en"), write("empty.de")]
    message = training_error("translate", train=files)
    assert message == f"{files[0]} {files[1]} are empty: there is nothing to learn from"


def test_question_longer_than_model_input_is_reported(
    training_error, error_message, write, trained
):
    long = GOOD["answer"][0] | {"question": "Where is the dog? " * 30}
    rows = write("rows.jsonl", GOOD["answer"][0], long)
    for message in (
        training_error("answer", valid=[rows]),
        error_message("evaluate", "-m", trained("answer"), "--data", rows),
        error_message("answer", "-m", trained("answer"), json.dumps(long)).replace(
            "text:1", f"{rows}:2"
        ),
    ):
        assert message.startswith(f"{rows}:2: the question has ")
        assert message.endswith("can have at most 64: shorten the question")


def test_text_without_mask_is_reported(error_message, trained):
    assert (
        error_message("fill", "-m", trained("fill"), "none")
        == "text:1: there is no <mask> to fill: write it in place of a word"
    )


@pytest.mark.parametrize("first", [{"score": 1}, {}])
def test_mixing_rows_with_and_without_score_is_reported(
    first, training_error, error_message, write, trained
):
    second = {} if first else {"score": 2}
    rows = write("rows.jsonl", GOOD["embed"][0] | first, GOOD["embed"][1] | second)
    expected = (
        "no score, but the rows before it have one"
        if first
        else "a score, but the rows before it have none"
    )
    for message in (
        training_error("embed", train=[rows]), training_error("embed", valid=[rows]),
        error_message("evaluate", "-m", trained("embed"), "--data", rows),
    ):  # fmt: skip
        assert message == f"{rows}:2: {expected}"


# ---- duplicates -------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["answer", "classify", "embed"])
@pytest.mark.parametrize("vocabulary", ["bpe", "byte"])
def test_duplicate_rows_are_refused_kept_or_dropped(
    task, vocabulary, training_error, call, write, tmp_path, small_options
):
    first = write("first.jsonl", *GOOD[task], GOOD[task][0])
    second = write("second.jsonl", "", GOOD[task][1])
    options = f"--set=data.vocabulary={vocabulary}"
    message = training_error(task, options, "--set=data.duplicates=refuse", train=[first])
    assert (
        message
        == f"{first}:3: the same row as {first}:1: remove it, or set data.duplicates to keep or drop"
    )
    message = training_error(task, options, "--set=data.duplicates=refuse", train=[second, first])
    assert message.startswith(f"{first}:2: the same row as {second}:2: ")
    assert training_error(task, "--set=data.duplicates=refuse", valid=[first]).startswith(
        f"{first}:3: the same row as {first}:1"
    )
    for rule, outcome, count in (("keep", "kept", 4), ("drop", "left out", 2)):
        out = tmp_path / rule
        code, _, err = call(
            "train", "--task", task, "--train", first, second, "--out", out,
            *small_options(task), options,
            f"--set=data.duplicates={rule}", "--set=training.batch_tokens=200",
        )  # fmt: skip
        assert code == 0, err
        flat = " ".join(err.split())
        assert flat.count("the same row as") == 1
        assert (
            f"{first}:3: the same row as {first}:1 (2 such rows, all {outcome}: see data.duplicates)"
            in flat
        )
        assert f"kept {count} 100.0%" in flat
        assert regard.load(out, "cpu").task.name == task
