"""Rows are read from CSV, TSV, JSON and Parquet files; errors name the file, line and columns."""

import csv
import gzip
import io
import json
import tempfile
import tracemalloc
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import InputError
from regard.text import tables
from regard.text.corpus import (
    PAIRS,
    Classified,
    Document,
    Pair,
    Question,
    Similar,
    read_classified,
    read_documents,
    read_questions,
    read_similar,
)
from regard.text.reading import fingerprint_files, open_text, read_text
from regard.text.tables import table_format


@pytest.fixture
def file(tmp_path):
    """file(content, name): a file with this content; a list becomes one JSON array."""

    def make(content, name):
        path = tmp_path / name
        if isinstance(content, list | dict):
            content = json.dumps(content, indent=1)
        content = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path

    return make


def fails(read, *arguments, **options):
    with pytest.raises(InputError) as caught:
        list(read(*arguments, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_name_of_a_file_determines_its_format():
    names = {
        "a.csv": "csv",
        "a.CSV.gz": "csv",
        "a.tsv.xz": "tsv",
        "a.jsonl": "jsonl",
        "a.ndjson.zst": "jsonl",
        "a.v2.json": "json",
        "a.parquet": "parquet",
        "a.txt": None,
        "a": None,
        "a.csv.txt": None,
    }
    assert {name: table_format(name) for name in names} == names


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_quoting_and_line_numbers(name, file):
    text = 'id,text,label\n1,"a ""good"", long\nfilm",pos\n\n2,bad,neg\n3,"x\ny\nz",\n'
    path = file(text, name)
    rows = read_classified(path)
    assert next(rows) == Classified(2, 'a "good", long\nfilm', "pos")
    assert next(rows) == Classified(5, "bad", "neg")
    assert fails(lambda: rows) == f"{path}:6: the label is empty"


def test_csv_written_by_the_csv_module_is_read_unchanged(file):
    texts = ['a "b"', "c\nd", " e, f;", "g\th", "1.5"]
    for delimiter in ",;\t":
        stream = io.StringIO()
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow(["label", "other", "text"])
        writer.writerows(["x", "", text] for text in texts)
        path = file(stream.getvalue(), "a.csv")
        assert [row.text for row in read_classified(path)] == texts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "text,label\nfine,a\nno quotes, two commas,b\n",
            "3: 3 cells, but the header has 2 (the columns are text, label): a comma inside a cell must be in quotation marks",
        ),
        ('text,label\n"open,a\n', "2: not valid CSV (unexpected end of data)"),
        (
            "review,stars\ngood,1\n",
            '1: no "label" (expected {"text", "label"}); the columns are review, stars: name the missing ones, for example with columns label=stars',
        ),
        (
            "good film,1\n",
            "1: the first line must name the columns, but it is 'good film', '1': insert a header line, such as text,label",
        ),
        (
            "sentence,content,label\na,b,c\n",
            '1: several columns can be "text": sentence, content; name the column: columns text=sentence',
        ),
        ("text,text,label\na,b,c\n", "1: the column 'text' is duplicated"),
    ],
)
def test_an_error_in_csv_names_the_line_and_the_columns(content, message, file):
    path = file(content, "a.csv")
    assert fails(read_classified, path) == f"{path}:{message}"


def test_unclosed_quote_is_refused_with_bounded_memory(file, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_LINE", 1000)
    path = file('text,label\na,b\n"c,d\n' + "e,f\n" * 1000, "a.csv")
    assert fails(read_classified, path).startswith(f"{path}:3: a row longer than 1,000 characters")


def test_columns_option_selects_columns_by_name(file):
    path = file("id,text,body,stars\n1,x,good,5\n", "a.csv")
    columns = {"text": "body", "label": "stars"}
    assert list(read_classified(path, columns=columns)) == [Classified(2, "good", "5")]
    message = fails(read_classified, path, columns={"text": "review"})
    assert message == f"{path}:1: no column 'review'; the columns are id, text, body, stars"


def test_tsv_has_a_header_if_the_first_line_names_the_fields(file):
    path = file("sentence\tid\tLabel\ngood film\t7\tpos\n", "a.tsv")
    assert list(read_classified(path)) == [Classified(2, "good film", "pos")]
    path = file("pos\tgood\tfilm\n", "b.tsv")
    assert list(read_classified(path)) == [Classified(1, "good\tfilm", "pos")]
    path = file("text\tlabel\ngood\tfilm\tpos\n", "c.tsv")
    assert fails(read_classified, path).startswith(f"{path}:2: 3 cells, but the header has 2 (")


def test_pairs_are_read_from_one_file(file):
    expected = [Pair(1, "a b", "c"), Pair(2, "d", "e f")]
    later = [Pair(n + 1, *rest) for n, *rest in expected]
    assert list(PAIRS.read(file("a b\tc\nd\te f\n", "a.tsv"))) == expected
    assert list(PAIRS.read(file("source\ttarget\na b\tc\nd\te f\n", "b.tsv"))) == later
    assert list(PAIRS.read(file("target,source\nc,a b\ne f,d\n", "a.csv"))) == later
    lines = '{"en": "a b", "de": "c"}\n{"en": "d", "de": "e f"}\n'
    columns = {"source": "en", "target": "de"}
    assert list(PAIRS.read(file(lines, "a.jsonl"), columns=columns)) == expected
    path = file("a\tb\tc\n", "c.tsv")
    assert fails(PAIRS.read, path).startswith(f"{path}:1: 3 cells (expected source<TAB>target)")
    path = file("a\n", "d.tsv")
    assert fails(PAIRS.read, path) == f"{path}:1: no tab (expected source<TAB>target)"


def test_a_column_can_be_a_key_of_an_inner_object(file):
    row = '{"id": 1, "translation": {"en": "a", "de": "b"}}'
    columns = {"source": "translation.en", "target": "translation.de"}
    assert list(PAIRS.read(file(row, "a.jsonl"), columns=columns)) == [Pair(1, "a", "b")]
    path = file(row + '\n{"id": 2, "translation": {"en": "a"}}', "b.jsonl")
    assert fails(PAIRS.read, path, columns=columns).startswith(
        f"{path}:2: no column 'translation.de'"
    )
    path = file("translation\tx\na\tb\n", "c.tsv")
    assert fails(PAIRS.read, path, columns=columns).startswith(
        f"{path}:1: no column 'translation.en'"
    )


def test_json_array_is_read_with_line_numbers(file):
    path = file([{"text": "good", "label": 1}, {"text": "bad", "label": 0}], "a.json")
    assert list(read_classified(path)) == [Classified(2, "good", "1"), Classified(6, "bad", "0")]
    path = file([{"text": "good", "label": 1}, {"text": "bad"}], "b.json")
    assert fails(read_classified, path) == f'{path}:6: no "label" (expected {{"text", "label"}})'
    assert list(read_classified(file(" [ ]\n", "c.json"))) == []
    assert list(read_classified(file("\n", "d.json"))) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a", "label": "b"}\n {"text"', "2: not JSON (Expecting ',' or the end"),
        ('[{"text": "a", "label": "b"},\n]', "2: not JSON (Expecting value at column 1"),
        ('[{"text": "a", "label": "b"}] x', "1: not JSON (Expecting ',' or the end"),
        ("[1]", '1: expected an object {"text", "label"}, not a number'),
        ('{\n"text": ', "2: not JSON (Expecting value at column"),
        ("[" * 100_000, "1: JSON that cannot be read ("),
    ],
)
def test_an_error_in_a_json_array_names_the_line(content, message, file):
    path = file(content, "a.json")
    assert fails(read_classified, path).startswith(f"{path}:{message}")


def test_a_json_file_can_have_json_lines(file):
    path = file('{"text": "a", "label": "b"}\n{"text": "c", "label": "d"}\n', "a.json")
    assert list(read_classified(path)) == [Classified(1, "a", "b"), Classified(2, "c", "d")]


def test_a_json_array_that_is_too_large_is_refused(file, monkeypatch):
    monkeypatch.setattr(tables, "LARGEST_JSON", 20)
    path = file([{"text": "x" * 20, "label": "a"}], "a.json")
    assert fails(read_classified, path).startswith(f"{path}: larger than 20 bytes, which is too")
    with pytest.raises(InputError, match=f"{path}:2: not UTF-8 \\(byte 0xff at column 2\\)"):
        read_text(file(b"a\nb\xff", "a.json"), 100)


def test_a_json_array_in_one_long_line_has_a_fingerprint(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"text": "' + b"x" * 11_000_000 + b'"}]')
    assert len(fingerprint_files([path])) == 64
    assert [len(row.text) for row in read_documents(path)] == [11_000_000]


def test_squad_is_read_in_both_formats(file):
    rows = [
        {"id": "1", "context": "c", "question": "q?", "answers": {"text": ["a", "b", "a"], "answer_start": [0, 1, 0]}},
        {"id": "2", "context": "c", "question": "r?", "answers": {"text": ["d"], "answer_start": [2]}},
    ]  # fmt: skip
    expected = [("c", "q?", "a", ("a", "b"), ""), ("c", "r?", "d", ("d",), "")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert [row[1:] for row in read_questions(file(lines, "hf.jsonl"))] == expected
    qas = [
        {
            "id": row["id"],
            "question": row["question"],
            "answers": [{"text": text, "answer_start": 0} for text in row["answers"]["text"]],
        }
        for row in rows
    ]
    nested = {
        "version": "1.1",
        "data": [{"title": "t", "paragraphs": [{"context": "c", "qas": qas}]}],
    }
    assert [row[1:] for row in read_questions(file(nested, "squad.json"))] == expected
    assert list(read_questions(file(nested, "squad.json")))[1] == Question(2, *expected[1])


def test_an_error_in_squad_names_the_question(file):
    def nested(paragraph):
        return {"data": [{"paragraphs": [paragraph]}]}

    qa = {"question": "q", "answers": [{"text": "a"}]}
    path = file(nested({"context": "c", "qas": [qa, {**qa, "answers": []}]}), "a.json")
    assert fails(read_questions, path) == f'{path}: row 2: "answers" is an empty list'
    path = file(nested({"qas": [qa]}), "b.json")
    assert fails(read_questions, path).startswith(f"{path}: article 1 is not in SQuAD's format")
    path = file('{"context": "c", "question": "q"}\n', "c.jsonl")
    assert fails(read_questions, path).startswith(f'{path}:1: no "answer" (expected {{"context"')


def test_similar_texts_accept_several_column_names(file):
    path = file("anchor,positive,negative\na,b,c\n", "a.csv")
    assert list(read_similar(path)) == [Similar(2, "a", "b", None, "c")]
    path = file("sentence1\tsentence2\tlabel\na\tb\t0.5\nc\td\tx\n", "a.tsv")
    rows = read_similar(path)
    assert next(rows) == Similar(2, "a", "b", 0.5)
    assert fails(lambda: rows) == f"{path}:3: \"score\" must be a number, not 'x'"
    path = file([{"a": "x", "b": "y", "score": 1, "negative": "z"}], "a.json")
    assert (
        fails(read_similar, path) == f'{path}:2: has both "score" and "negative": give one of them'
    )


def test_documents_are_read_from_a_table_column(file):
    assert list(read_documents(file("id,text\n1,one\n", "a.csv"))) == [Document(2, "one")]
    path = file("id\tbody\n1\tone\n", "a.tsv")
    assert list(read_documents(path, columns={"text": "body"})) == [Document(2, "one")]
    assert list(read_documents(file([{"text": "one"}], "a.json"))) == [Document(2, "one")]
    assert fails(read_documents, path).startswith(f'{path}:1: no "text" (expected {{"text"}})')
    plain = file("a\nb\n", "a.txt")
    assert fails(read_documents, plain, columns={"text": "body"}).startswith(
        f"{plain}: plain text has no columns"
    )


def test_a_large_csv_file_is_read_row_by_row(tmp_path):
    path = tmp_path / "large.csv"
    path.write_text("text,label\n" + '"some text, quoted",a\n' * 20_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_classified(path)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 2e6
    finally:
        tracemalloc.stop()


PARTS = [
    "{", "}", "[", "]", '"', "\n", "\t", ",", ";", "a", "text", "label", "\\", "\\ud800", "1e999", "NaN",
    "\r", "\0", '{"text": "a", "label": "b"}', '"data"', '"paragraphs"', "text,label\n", "text\tlabel\n",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(PARTS), max_size=20),
    st.sampled_from(["csv", "tsv", "json", "jsonl", "txt"]),
    st.sampled_from([read_classified, read_questions, read_similar, read_documents, PAIRS.read]),
)
def test_a_file_is_read_or_refused_in_one_line(parts, suffix, read):
    with tempfile.NamedTemporaryFile(suffix=f".{suffix}") as file:
        file.write("".join(parts).encode())
        file.flush()
        message = ""
        try:
            assert all(row.line > 0 for row in read(file.name))
        except InputError as error:
            message = str(error)
        assert message.startswith(file.name) or not message
        assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"%PDF-1.7\n", "is a PDF document, not text: extract its text first"),
        ("a.txt", b"\x1f\x8b\x08\x00", "is a gzip file, not text: add .gz to its name"),
        ("a.tsv", b"\xff\xfea\x00", "is text in UTF-16, not UTF-8: convert it to UTF-8"),
        ("a.csv", b"PAR1\x15", "is a Parquet file, not text: its name must end in .parquet"),
        ("a.txt", b"BZh91AY&SY\x00\x01", "is a bzip2 file, not text: unpack it first"),
        ("a.tar.gz", b"x" * 257 + b"ustar\x00" + b"0" * 249, "is a tar archive, not text: unpack it first"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_text_is_named(name, content, message, file):
    path = file(content, name)
    assert fails(open_text, path) == f"{path} {message}"


def test_archives_and_workbooks_are_distinguished_by_their_name(tmp_path):
    for name, message in (
        ("train.zip", "is a ZIP archive, not text: unpack it first"),
        ("train.xlsx", "is an Excel workbook, not text: export it as CSV first"),
    ):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("x", "content")
        path = tmp_path / name
        assert fails(read_classified, path) == f"{path} {message}"


def test_text_that_begins_like_an_archive_is_read_as_text(file):
    assert list(open_text(file("BZh is short for x\n", "a.txt"))) == [(1, "BZh is short for x")]
    assert list(open_text(file("PK is short for y\n", "a.txt"))) == [(1, "PK is short for y")]


def test_a_missing_package_is_named(file, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    path = file(b"\x28\xb5\x2f\xfd", "a.txt.zst")
    assert fails(open_text, path) == f"{path}: needs another package: pip install zstandard"
    path = file(b"PAR1", "a.parquet")
    assert fails(read_classified, path) == f"{path}: needs another package: pip install pyarrow"


def test_zstandard_files_are_read_and_a_damaged_one_is_named(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a.txt.zst"
    lines = [f"line {n} {n * n}" for n in range(50_000)]
    content = "\n".join(lines).encode()
    half = len(content) // 2
    frames = b"".join(map(zstandard.compress, (content[:half], content[half:])))
    path.write_bytes(frames)
    assert [line for _, line in open_text(path)] == lines
    path.write_bytes(frames[:-2000])
    assert fails(open_text, path).startswith(f"{path}: the compressed file is truncated after line")
    path.write_bytes(b"this is not compressed")
    assert fails(open_text, path).startswith(f"{path}: the compressed file is damaged at its begin")


def test_parquet_files_are_read_by_column(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = {"id": list(range(3000)), "sentence": [f"text {n}" for n in range(3000)]}
    parquet.write_table(pyarrow.table({**table, "label": [n % 2 for n in range(3000)]}), path)
    rows = list(read_classified(path))
    assert (len(rows), rows[2999]) == (3000, Classified(3000, "text 2999", "1"))
    assert fails(read_similar, path).startswith(
        f'{path}: row 1: no "a" (expected {{"a", "b"}}); the'
    )
    path.write_bytes(b"PAR1")
    assert fails(read_classified, path).startswith(f"{path}: not a valid Parquet file (")
