"""Lines of standard input: all of them, numbered, in blocks that do not grow with the input."""

import os
import queue
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import InputError
from regard.text import lines as module
from regard.text.lines import MOST_BYTES, MOST_LINES, READ, read_blocks


@pytest.fixture
def blocks(tmp_path):
    """blocks(content): a generator of the blocks of a file with this content."""

    def read(content):
        (tmp_path / "in").write_bytes(content)
        file = os.open(tmp_path / "in", os.O_RDONLY)
        try:
            yield from read_blocks(file, "in")
        finally:
            os.close(file)

    return read


@pytest.fixture
def pipe():
    """(reader, writer), closed at the end."""
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        os.close(end)


def until_error(blocks):
    """The lines before the error, and what it says."""
    lines = []

    def read_all():
        for number, some, _ in blocks:
            assert number == len(lines) + 1
            lines.extend(some)

    with pytest.raises(InputError) as caught:
        read_all()
    assert "\n" not in str(caught.value)
    return lines, str(caught.value)


def test_lines_lose_their_ends_and_nothing_else(blocks):
    content = b"\xef\xbb\xbfone\r\n\n  two \r\r\n\xef\xbb\xbfthree\nlast\r"
    assert list(blocks(content)) == [
        (1, ["one", "", "  two \r", "\ufeffthree", "last"], len(content))
    ]
    assert list(blocks(b"")) == []
    assert list(blocks(b"\n\n")) == [(1, ["", ""], 2)]


def test_only_the_first_line_has_a_byte_order_mark(blocks, monkeypatch):
    monkeypatch.setattr(module, "MOST_LINES", 1)
    found = blocks(b"\xef\xbb\xbf\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    assert [lines for _, lines, _ in found] == [["\ufeffone"], ["\ufefftwo"]]


def test_only_a_newline_ends_a_line(blocks):
    line = "a\u2028b\x0bc\x0cd\x85e\rf\x1cg"
    [(_, lines, _)] = blocks(f"{line}\n{line}".encode())
    assert lines == [line, line]


def test_many_short_lines_come_in_blocks_and_keep_their_numbers(blocks):
    content = b"".join(b"line %d\n" % n for n in range(1, 300_001))
    due, before = 1, 0
    for number, lines, read in blocks(content):
        assert number == due
        assert len(lines) <= MOST_LINES
        assert lines[0] == f"line {number}"
        assert lines[-1] == f"line {number + len(lines) - 1}"
        assert read >= before
        if number == 1:  # the rest of the file is not in memory
            assert read <= MOST_BYTES + READ < len(content)
        due, before = due + len(lines), read
    assert due == 300_001
    assert before == len(content)


def test_long_lines_come_in_small_blocks(blocks):
    size = 100_000
    counts = [len(lines) for _, lines, _ in blocks((b"x" * size + b"\n") * 50)]
    assert sum(counts) == 50
    assert max(counts) * size <= MOST_BYTES + READ


line_bytes = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n")).map(
    lambda text: text.encode()
)


@given(
    st.lists(line_bytes, max_size=12), st.booleans(), st.integers(1, 5), st.integers(1, 9),
    st.integers(1, 40),
)  # fmt: skip
def test_the_blocks_of_any_lines_are_the_lines(lines, closed, most_lines, most_bytes, read_size):
    content = b"\n".join(lines) + (b"\n" if closed and lines else b"")
    wanted = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if content.endswith(b"\n") or not content:
        wanted.pop()  # nothing stands behind the last newline
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as stream:
        patch.setattr(module, "MOST_LINES", most_lines)
        patch.setattr(module, "MOST_BYTES", most_bytes)
        patch.setattr(module, "READ", read_size)
        stream.write(content)
        stream.seek(0)
        found, at = [], 0
        for number, some, read in read_blocks(stream.fileno(), "in"):
            assert number == len(found) + 1
            assert 1 <= len(some) <= most_lines
            found, at = found + some, read
        assert found == [line.removesuffix(b"\r").decode() for line in wanted]
        assert at == len(content)


def test_a_line_is_there_as_soon_as_it_has_an_end(pipe):
    reader, writer = pipe
    blocks = read_blocks(reader, "in")

    def next_lines():
        """The next block; if it waits for more than there is, an error and not a test that hangs."""
        found = queue.Queue()
        threading.Thread(target=lambda: found.put(next(blocks)[:2]), daemon=True).start()
        return found.get(timeout=60)

    os.write(writer, b"one\ntwo\nthr")
    assert next_lines() == (1, ["one", "two"])
    os.write(writer, b"ee\n")
    assert next_lines() == (3, ["three"])
    os.write(writer, b"\nf")
    assert next_lines() == (4, [""])


@pytest.mark.parametrize("end", [b"\nafter\n", b"\r\n", b"\n", b""])
def test_a_line_that_is_too_long_is_named_after_the_lines_before_it(end, blocks, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 20)
    wanted = ["short", "x" * 20], "in:3: line longer than 20 bytes"
    assert until_error(blocks(b"short\n" + b"x" * 20 + b"\n" + b"x" * 21 + end)) == wanted


@pytest.mark.parametrize("content", [b"x" * 20 + b"\r\n", b"\xef\xbb\xbf" + b"x" * 20 + b"\n"])
def test_neither_line_end_nor_byte_order_mark_count(content, blocks, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 20)
    monkeypatch.setattr(module, "READ", 21)
    assert [lines for _, lines, _ in blocks(content)] == [["x" * 20]]


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 100_000)
    with open("/dev/zero", "rb") as endless:
        lines, said = until_error(read_blocks(endless.fileno(), "in"))
    assert (lines, said) == ([], "in:1: line longer than 100,000 bytes")


@pytest.mark.parametrize("most_lines", [1, 2, 4096])
def test_bytes_that_are_no_text_are_named_after_the_lines_before_them(
    most_lines, blocks, monkeypatch
):
    monkeypatch.setattr(module, "MOST_LINES", most_lines)
    lines, said = until_error(blocks("erste\n\nStraße caf".encode() + b"\xe9\nnext\n"))
    assert lines == ["erste", ""]
    assert said == "in:3: not UTF-8 (byte 0xe9 at column 11)"


def test_what_cannot_be_read_is_one_line():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        lines, said = until_error(read_blocks(writer, "in"))  # the end that is for writing
    finally:
        os.close(writer)
    assert lines == []
    assert said.startswith("in: cannot be read (")
