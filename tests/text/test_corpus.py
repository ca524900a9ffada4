"""Examples are read from files; errors name the file and the line."""

import gzip
import io
import json
import lzma
import os
import socket
import tempfile
import time
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from regard import console
from regard.console import print_counts, progress
from regard.errors import InputError
from regard.text import corpus, reading
from regard.text.corpus import (
    Classified,
    CorpusReport,
    Document,
    Pair,
    Question,
    Similar,
    read_classified,
    read_documents,
    read_pairs,
    read_questions,
    read_similar,
)
from regard.text.reading import fingerprint_files, open_text


@pytest.fixture
def file(tmp_path):
    """file(content, name): a file with this content; objects become JSON lines."""

    def make(content, name="data.txt"):
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(line) + "\n" for line in content)
        content = content if isinstance(content, bytes) else content.encode()
        if path.suffix == ".gz":
            content = gzip.compress(content, 1)
        elif path.suffix == ".xz":
            content = lzma.compress(content, preset=0)
        path.write_bytes(content)
        return path

    return make


def fails(read, *arguments):
    with pytest.raises(InputError) as caught:
        list(read(*arguments))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["plain.txt", "compressed.gz", "compressed.xz"])
def test_lines_are_numbered_and_line_ends_removed(name, file):
    path = file("one\r\n two \n\nlast", name)
    assert list(open_text(path)) == [(1, "one"), (2, " two "), (3, ""), (4, "last")]
    assert list(open_text(str(path))) == list(open_text(path))


def test_only_a_newline_separates_lines(file):
    line = "a\u2028b\x0bc\x0cd\x85e\rf\x1cg"
    assert list(open_text(file(f"{line}\n{line}"))) == [(1, line), (2, line)]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff"))))
def test_written_lines_are_read_unchanged(lines):
    with tempfile.NamedTemporaryFile() as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())
        stream.flush()
        assert [line for _, line in open_text(stream.name)] == lines


def test_an_empty_file_has_no_lines(file):
    assert list(open_text(file(""))) == []


def test_byte_order_mark_is_removed_at_the_start_only(file):
    assert list(open_text(file("\ufeffa\n\ufeffb"))) == [(1, "a"), (2, "\ufeffb")]


def test_invalid_utf8_is_named_with_line_and_column(file):
    path = file("fine\nüü".encode() + b"\xff!\n")
    assert fails(open_text, path) == f"{path}:2: not UTF-8 (byte 0xff at column 3)"


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    assert fails(open_text, tmp_path / "no.en") == f"{tmp_path / 'no.en'}: no such file"
    assert fails(open_text, tmp_path) == f"{tmp_path}: is a folder, not a file"


@pytest.fixture
def named_pipe(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


@pytest.fixture
def unix_socket(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        yield tmp_path / "s"


@pytest.fixture
def inherited():
    """A pipe with two lines, named as the shell names `<(command)`."""
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\n")
    os.close(writer)
    yield f"/dev/fd/{reader}"
    os.close(reader)


PIPE = "is a pipe, which cannot be read twice: write its content to a file first"


def test_special_files_are_refused_before_opening(named_pipe, unix_socket):
    """Opening a named pipe without a writer would block forever."""
    for path, message in (
        (named_pipe, PIPE),
        (unix_socket, "is a socket, not a file"),
        ("/dev/zero", "is a device, not a file"),
        ("/dev/null", "is a device, not a file"),
        ("a\0b", "cannot be read (embedded null byte)"),
    ):
        assert fails(open_text, path) == f"{path}: {message}"
        with pytest.raises(InputError) as caught:
            fingerprint_files([path])
        assert str(caught.value) == f"{path}: {message}"


def test_pipe_can_be_read_only_once(inherited):
    with pytest.raises(InputError) as caught:
        fingerprint_files([inherited])
    assert str(caught.value) == f"{inherited}: {PIPE}"
    assert list(open_text(inherited)) == [(1, "one"), (2, "two")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_read_permission_is_named(file):
    path = file("a")
    path.chmod(0)
    assert fails(open_text, path) == f"{path}: cannot be read (Permission denied)"


@pytest.mark.parametrize("name", ["cut.gz", "cut.xz"])
def test_a_truncated_file_is_named_with_the_line_reached(name, file):
    path = file("".join(f"line {n} {n * n}\n" for n in range(60_000)), name)
    path.write_bytes(path.read_bytes()[:-2000])
    message = fails(open_text, path)
    assert message.startswith(f"{path}: the compressed file is truncated after line ")
    assert int(message.split("after line ")[1].split()[0]) > 1000


@pytest.mark.parametrize("name", ["bad.gz", "bad.xz"])
def test_a_damaged_file_is_named(name, file):
    path = file("".join(f"line {n} {n * n}\n" for n in range(60_000)), name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    path.write_bytes(content)
    assert fails(open_text, path).startswith(f"{path}: the compressed file is damaged after line ")
    path.write_bytes(b"this is not compressed")
    assert fails(open_text, path).startswith(
        f"{path}: the compressed file is damaged at its beginning"
    )


def test_an_xz_file_may_have_several_streams_and_padding(tmp_path):
    path = tmp_path / "several.xz"
    path.write_bytes(lzma.compress(b"one\ntw") + bytes(8) + lzma.compress(b"o\n") + bytes(4))
    assert list(open_text(path)) == [(1, "one"), (2, "two")]
    path.write_bytes(b"")
    assert fails(open_text, path).startswith(
        f"{path}: the compressed file is truncated at its begin"
    )


def test_xz_file_with_a_huge_dictionary_is_refused(tmp_path):
    """The dictionary size is one byte of the block header, which is 12 bytes after the start."""
    content = bytearray(lzma.compress(b"one\n", check=lzma.CHECK_NONE))
    size = (content[12] + 1) * 4
    assert content[14:16] == b"\x21\x01"  # LZMA2 with one byte of properties
    content[16] = 38  # 2 GiB
    content[12 + size - 4 : 12 + size] = zlib.crc32(content[12 : 12 + size - 4]).to_bytes(
        4, "little"
    )
    path = tmp_path / "bomb.xz"
    path.write_bytes(content)
    assert fails(open_text, path).startswith(f"{path}: needs more than 256 MiB of memory to be ")


def peak(read, path):
    """Megabytes that Python allocates to read a file."""
    tracemalloc.start()
    try:
        for _ in read(path):
            pass
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [read_documents, read_classified])
def test_blank_lines_at_the_start_use_bounded_memory(read, tmp_path):
    path = tmp_path / "blank.txt.xz"
    path.write_bytes(lzma.compress(b"\n" * 100_000 + b"a\tb\n", preset=0))
    assert peak(read, path) < 5  # 11 MB if each line were stored with its number


def test_decompression_bomb_is_refused_with_bounded_memory(tmp_path):
    path = tmp_path / "bomb.xz"
    path.write_bytes(lzma.compress(bytes(60_000_000), preset=0))
    assert path.stat().st_size < 20_000
    tracemalloc.start()
    try:
        assert fails(open_text, path) == f"{path}:1: line longer than 10,000,000 bytes"
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


def test_blank_lines_before_the_text_belong_to_a_whole_file(file, monkeypatch):
    text = "\n \n\none\n\ntwo\n"
    assert list(read_documents(file(text), whole=True)) == [Document(1, text)]
    assert list(read_documents(file(text))) == [Document(4, "one"), Document(6, "two")]
    assert list(read_documents(file('\n\n{"text": "a"}\n'), whole=True)) == [Document(3, "a")]


def test_endless_line_is_refused(file, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_LINE", 100)
    assert list(open_text(file("x" * 100 + "\r\n" + "y" * 100))) == [(1, "x" * 100), (2, "y" * 100)]
    path = file("fine\n" + "x" * 101)
    assert fails(open_text, path) == f"{path}:2: line longer than 100 bytes"


def test_progress_callback_gets_increasing_positions(file):
    seen = []
    path = file("word\n" * 300_000, "long.txt")
    assert sum(1 for _ in open_text(path, seen.append)) == 300_000
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] <= path.stat().st_size


def test_pairs_are_aligned_by_line(file):
    paths = file("a\n\nc\n", "x.en"), file("A\nB\nC", "x.de.gz")
    assert list(read_pairs(*paths)) == [Pair(1, "a", "A"), Pair(2, "", "B"), Pair(3, "c", "C")]


@pytest.mark.parametrize("swapped", [False, True])
def test_files_of_different_length_are_refused_with_the_first_missing_line(swapped, file):
    long, short = file("a\n" * 1205, "x.en"), file("A\n" * 1200, "x.de")
    paths = (short, long) if swapped else (long, short)
    assert fails(read_pairs, *paths).startswith(
        f"{long} has 1,205 lines but {short} has 1,200: line 1,201 of {long} has no counterpart"
    )


def test_classified_examples_are_read_from_columns_and_from_json(file):
    expected = [Classified(1, "good\tfilm", "1"), Classified(3, "bad", "0")]
    assert list(read_classified(file("1\tgood\tfilm\n\n0\tbad\n", "a.tsv"))) == expected
    lines = '{"text": "good\\tfilm", "label": "1"}\n\n{"label": 0, "text": "bad"}\n'
    for name in ("a.jsonl", "a.jsonl.xz", "a.txt"):
        assert list(read_classified(file(lines, name))) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\tgood\nbad\n", "2: no tab (expected label<TAB>text)"),
        ("1\tgood\n\tbad\n", "2: the label is empty"),
        (
            [{"text": "a", "label": "b"}, {"text": "a"}],
            '2: no "label" (expected {"text", "label"})',
        ),
        ([{"text": 5, "label": "b"}], '1: "text" must be a string, not a number'),
        ([{"text": None, "label": "b"}], '1: "text" must be a string, not null'),
        ([{"text": "a", "label": True}], '1: "label" must be a string, not a truth value'),
        ([{"text": "a", "label": ["b"]}], '1: "label" must be a string, not a list'),
        ([{"text": "a", "label": ""}], "1: the label is empty"),
        ([{"text": "\ud83d", "label": "a"}], '1: "text" has a lone surrogate (U+D83D)'),
    ],
)
def test_invalid_classified_example_is_named_with_its_line(content, message, file):
    path = file(content)
    assert fails(read_classified, path) == f"{path}:{message}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', "not JSON (Expecting ',' delimiter at column 13; expected {\"text\"})"),
        ("{text}", "not JSON (Expecting property name enclosed in double quotes at column 2"),
        ('["a"]', 'expected an object {"text"}, not a list'),
        ('"a"', 'expected an object {"text"}, not a string'),
        ("[" * 100_000, "JSON that cannot be read ("),
        ('{"text": ' + "9" * 5000 + "}", "JSON that cannot be read ("),
    ],
)
def test_invalid_json_is_named_with_its_line(line, message, file):
    path = file('{"text": "fine"}\n' + line, "a.jsonl")
    assert fails(read_documents, path).startswith(f"{path}:2: {message}")


def test_questions_are_read_with_all_correct_answers(file):
    row = {"context": "c", "question": "q", "answer": "a"}
    path = file([row, {**row, "answers": ["a", "b"], "task": "3"}], "q.jsonl")
    assert list(read_questions(path)) == [
        Question(1, "c", "q", "a", ("a",)),
        Question(2, "c", "q", "a", ("a", "b"), "3"),
    ]
    path = file([{**row, "answers": "a"}])
    assert fails(read_questions, path) == f'{path}:1: "answers" must be a list of strings'
    path = file([{"context": "c", "answer": "a"}])
    assert fails(read_questions, path).startswith(f'{path}:1: no "question" (expected')


def test_blank_lines_separate_documents(file):
    path = file("\n\none\n two\n\n  \nthree\n\n")
    assert list(read_documents(path)) == [Document(3, "one\n two"), Document(7, "three")]


def test_documents_can_be_json_lines(file):
    path = file([{"text": "one\n\ntwo"}, {"text": "three"}])
    assert list(read_documents(path)) == [Document(1, "one\n\ntwo"), Document(2, "three")]


def test_a_file_can_be_one_document_with_its_blank_lines(file):
    path = file("one\n\n\ntwo\n")
    assert list(read_documents(path, whole=True)) == [Document(1, "one\n\n\ntwo\n")]


@pytest.mark.parametrize(("read", "row", "expected"), [
    (read_documents, {"text": " "}, "the document is empty: remove the row"),
    (read_classified, {"text": "", "label": "x"}, "the text is empty: remove the row"),
    (read_questions, {"context": "c", "question": " ", "answer": "a"}, "the question is empty: remove the row"),
    (read_questions, {"context": "c", "question": "q", "answer": ""}, "the answer is empty: remove the row"),
    (read_questions, {"context": "c", "question": "q", "answer": "a", "answers": []}, '"answers" is an empty list'),
    (read_similar, {"a": "x", "b": ""}, '"b" is empty: remove the row'),
])  # fmt: skip
def test_an_empty_text_is_named_with_its_line(file, read, row, expected):
    whole = {key: value or "x" for key, value in row.items() if key != "answers"}
    whole = {key: value if value.strip() else "x" for key, value in whole.items()}
    path = file([whole, row], "rows.jsonl")
    assert fails(read, path) == f"{path}:2: {expected}"


def test_long_document_is_split_without_losing_text(file, monkeypatch):
    monkeypatch.setattr(corpus, "LONGEST_DOCUMENT", 10)
    path = file("abcd\nefgh\nijkl\nmnop\n")
    assert list(read_documents(path)) == [Document(1, "abcd\nefgh"), Document(3, "ijkl\nmnop")]


def test_whitespace_around_similar_texts_is_removed(file):
    path = file([{"a": " x y ", "b": "z\r"}], "s.jsonl")
    assert list(read_similar(path)) == [Similar(1, "x y", "z", None)]


def test_similar_pairs_have_an_optional_score(file):
    path = file([{"a": "x", "b": "y"}, {"a": "x", "b": "y", "score": 3}], "s.jsonl")
    assert list(read_similar(path)) == [Similar(1, "x", "y", None), Similar(2, "x", "y", 3.0)]
    for score, word in (("3", "a string"), (float("nan"), "nan"), (True, "a truth value")):
        path = file([{"a": "x", "b": "y", "score": score}])
        assert fails(read_similar, path) == f'{path}:1: "score" must be a finite number, not {word}'


def test_report_counts_skipped_examples_by_reason():
    report = CorpusReport(kept=1970)
    for reason, times in (("empty", 10), ("too long", 20)):
        for _ in range(times):
            report.skip(reason)
    assert report.total == 2000
    assert str(report) == "1,970 kept, 20 too long, 10 empty"
    out = io.StringIO()
    print_counts(report.counts, report.total, Console(file=out, width=60))
    assert [line.split() for line in out.getvalue().splitlines()] == [
        ["kept", "1,970", "98.5%"],
        ["too", "long", "20", "1.0%"],
        ["empty", "10", "0.5%"],
    ]


def test_fingerprint_depends_on_contents_and_order_but_not_on_names(file, tmp_path):
    a, b = file("ab", "a"), file("c", "b")
    both = fingerprint_files([a, b])
    assert both == fingerprint_files([str(file("ab", "other")), b])
    others = [[b, a], [a], [file("a", "x"), file("bc", "y")]]
    assert both not in {fingerprint_files(paths) for paths in others}
    for path, message in ((tmp_path / "no", "no such file"), (tmp_path, "is a folder, not a file")):
        with pytest.raises(InputError, match=f"{path}: {message}"):
            fingerprint_files([a, path])


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("quiet", "wait", "visible"), [(False, 0.3, True), (True, 0.3, False), (False, 0, False)]
)
def test_progress_bar_appears_only_after_a_delay(quiet, wait, visible, monkeypatch):
    monkeypatch.setattr(console, "PATIENCE", 0.05)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with progress("learning", 10, quiet) as show:
        show(5)
        time.sleep(wait)
    assert ("learning" in stream.getvalue()) == visible


def test_a_progress_bar_is_not_written_into_a_file(monkeypatch, capsys):
    monkeypatch.setattr(console, "PATIENCE", 0.0)
    with progress("learning", None, False):
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("read", "name", "count"),
    [
        (read_classified, "sst2/dev.tsv.xz", 872),
        (read_similar, "stsb/dev.jsonl.xz", 1500),
        (read_questions, "squad/valid.jsonl.xz", 726),
        (read_questions, "babi/test.jsonl.xz", 20_000),
        (read_documents, "imdb_reviews/unlabelled.txt.xz", 25_000),
    ],
)
def test_real_data_is_read_completely(read, name, count):
    if "REGARD_DATA" not in os.environ:
        pytest.skip("REGARD_DATA is not set")
    assert sum(1 for _ in read(f"{os.environ['REGARD_DATA']}/{name}")) == count


def test_sparse_file_is_refused_early(tmp_path):
    path = tmp_path / "sparse.txt"
    path.write_bytes(b"A line.\n")
    os.truncate(path, 2**40)
    with pytest.raises(InputError, match="has a line longer than 10,000,000 bytes"):
        fingerprint_files([path])
    path.write_bytes(b"x" * 9_999_999 + b"\n" + b"y" * 9_999_999)
    assert len(fingerprint_files([path])) == 64
