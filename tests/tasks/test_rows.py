"""Rows in memory are checked like rows of a file and written as JSON lines."""

import json
from collections import namedtuple

import pytest

from regard.errors import InputError
from regard.tasks import registry
from regard.tasks.rows import rows_to_file
from regard.tasks.task import Task


@pytest.fixture
def written(tmp_path):
    """written(task, data, columns): the rows of the file."""

    def write(task, data, columns=None):
        path = tmp_path / "rows.jsonl"
        assert rows_to_file(task, data, path, columns) == path
        assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    return write


@pytest.fixture
def refused(tmp_path):
    def write(task, data, columns=None):
        with pytest.raises(InputError) as caught:
            rows_to_file(task, data, tmp_path / "rows.jsonl", columns)
        assert list(tmp_path.iterdir()) == []  # no file, and no temporary one
        return str(caught.value)

    return write


class Frame:
    """The part of the pandas DataFrame interface that regard uses."""

    def __init__(self, **columns):
        self.columns, self._cells = list(columns), list(zip(*columns.values(), strict=True))

    def itertuples(self, index, name):
        assert (index, name) == (False, None)
        return iter(self._cells)


class ClassLabel:
    names = ("neg", "pos")
    int2str = None


class Dataset(list):
    """The part of the Hugging Face Dataset interface that regard uses."""

    column_names = ("sentence", "label")
    features = {"sentence": object(), "label": ClassLabel()}  # noqa: RUF012


def test_tuples_dicts_strings_and_iterators_become_rows(written):
    assert written("classify", [("good", "pos"), ["bad", 0]]) == [
        {"text": "good", "label": "pos"},
        {"text": "bad", "label": "0"},
    ]
    rows = ({"id": n, "source": f"a {n}", "target": "ü\n"} for n in range(3))
    assert written("translate", rows)[2] == {"source": "a 2", "target": "ü\n"}
    assert written("generate", ["one", "two"]) == [{"text": "one"}, {"text": "two"}]
    point = namedtuple("Point", "label text")
    assert written("classify", [point("a", "b")]) == [{"text": "b", "label": "a"}]
    assert written("answer", [("c", "q", "a")]) == [
        {"context": "c", "question": "q", "answer": "a"}
    ]


def test_a_third_value_of_embed_is_a_score_or_a_negative_example(written):
    assert written("embed", [("a", "b", 0.5)]) == [{"a": "a", "b": "b", "score": 0.5}]
    assert written("embed", [("a", "b", "c")]) == [{"a": "a", "b": "b", "negative": "c"}]


def test_columns_are_found_by_name_in_frames_and_datasets(written):
    frame = Frame(id=[1, 2], review=["good", "bad"], stars=[5, 1])
    assert written("classify", frame, {"label": "stars"}) == [
        {"text": "good", "label": "5"},
        {"text": "bad", "label": "1"},
    ]
    rows = Dataset([{"sentence": "good", "label": 1}, {"sentence": "bad", "label": 0}])
    assert [row["label"] for row in written("classify", rows)] == ["pos", "neg"]


def test_polars_frames_and_arrow_tables_become_rows(written):
    class Polars:
        columns = ("text", "label")

        def iter_rows(self, named):
            assert named
            yield {"text": "a", "label": "b"}

    class Arrow:
        column_names = ("text", "label")

        def to_pylist(self):
            return [{"text": "a", "label": "b"}]

    for data in (Polars(), Arrow()):
        assert written("classify", data) == [{"text": "a", "label": "b"}]


def test_a_column_can_be_a_key_of_an_inner_object(written):
    rows = [{"id": 1, "translation": {"en": "a", "de": "b"}}]
    columns = {"source": "translation.en", "target": "translation.de"}
    assert written("translate", rows, columns) == [{"source": "a", "target": "b"}]


def test_squad_answers_are_written_unchanged(written, tmp_path):
    answers = {"text": ["x", "y"], "answer_start": [0, 3]}
    rows = written("answer", [{"context": "c", "question": "q", "answers": answers, "id": "1"}])
    assert rows == [{"context": "c", "question": "q", "answers": answers}]


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("classify", [("a", "b"), ("", "b")], "row 2: the text is empty: remove the row"),
        ("classify", [("a", "b"), ("c", None)], 'row 2: "label" must be a string, not null'),
        ("classify", [("a", 1.5)], 'row 1: "label" must be a string, not a number'),
        ("classify", [("a", "b", "c")], "row 1: 3 values, but a row has 2 (text, label): use a dict for other columns"),
        ("classify", ["a"], "row 1: a string, but a row has 2 values (text, label)"),
        ("classify", [7], "row 1: expected a dict or a tuple (text, label), not a number"),
        ("classify", [{"text": "a", "stars": 1}], 'row 1: no "label" (expected {"text", "label"}); the columns are text, stars: name the missing ones, for example with columns={"label": "stars"}'),
        ("embed", [("a", "b", "c", 5)], "row 1: 4 values, but a row has 2 (a, b): use a dict for other columns"),
        ("classify", [], "the data is empty: it has no rows"),
        ("classify", 5, "the data is a number, not rows"),
        ("classify", "train.tsv", "the data is a string, not rows: give a list of rows, or a list of file names"),
        ("classify", {"text": ["a"]}, 'the data is an object with columns, not rows: give a list of rows, for example [{"text": ..., "label": ...}]'),
        ("generate", ["\ud800"], 'row 1: "text" has a lone surrogate (U+D800)'),
    ],
)  # fmt: skip
def test_an_error_names_the_row(task, rows, message, refused):
    assert refused(task, rows) == message


def test_columns_must_be_fields_and_the_data_must_have_them(refused):
    assert refused("classify", [("a", "b")], {"txt": "x"}) == (
        "unknown field in columns 'txt'; did you mean 'text'?"
    )
    assert refused("classify", [{"text": "a", "label": "b"}], {"text": "body"}) == (
        "row 1: no column 'body'; the columns are text, label"
    )
    assert refused("classify", [("a", "b")], {"text": "x"}).startswith("row 1: columns names the")


def test_several_splits_are_refused(refused):
    class Splits(dict):
        column_names = {"train": ["text"], "test": ["text"]}  # noqa: RUF012

    message = "the data has several splits (train, test): choose one of them"
    assert refused("classify", Splits()) == message


def test_an_error_of_the_iterator_leaves_no_file(tmp_path):
    def rows():
        yield "a", "b"
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        rows_to_file("classify", rows(), tmp_path / "rows.jsonl", None)
    assert list(tmp_path.iterdir()) == []


def test_a_task_without_a_row_format_takes_only_files(monkeypatch, refused):
    class Other(Task):
        name = "other"

    monkeypatch.setattr(registry, "_TASKS", {**registry._TASKS, "other": Other})
    assert refused("other", [("a",)]) == "the task other reads only files, not rows in memory"


def test_real_frames_are_read(written, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"review": ["good", "bad"], "stars": [5, 1]}, index=[7, 9])
    assert written("classify", frame, {"label": "stars"})[1] == {"text": "bad", "label": "1"}
    frame["review"] = ["good", None]
    with pytest.raises(InputError, match='row 2: "text" must be a string, not null'):
        rows_to_file("classify", frame, tmp_path / "rows.jsonl", {"label": "stars"})
