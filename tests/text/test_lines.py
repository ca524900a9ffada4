"""Standard input is read in numbered blocks of lines whose size is bounded."""

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
    """The lines before the error, and its message."""
    lines = []

    def read_all():
        for number, some, _ in blocks:
            assert number == len(lines) + 1
            lines.extend(some)

    with pytest.raises(InputError) as caught:
        read_all()
    assert "\n" not in str(caught.value)
    return lines, str(caught.value)


def test_line_ends_and_byte_order_mark_are_removed(blocks):
    content = b"\xef\xbb\xbfone\r\n\n  two \r\r\n\xef\xbb\xbfthree\nlast\r"
    assert list(blocks(content)) == [
        (1, ["one", "", "  two \r", "\ufeffthree", "last"], len(content))
    ]
    assert list(blocks(b"")) == []
    assert list(blocks(b"\n\n")) == [(1, ["", ""], 2)]


def test_byte_order_mark_is_removed_from_the_first_line_only(blocks, monkeypatch):
    monkeypatch.setattr(module, "MOST_LINES", 1)
    result = blocks(b"\xef\xbb\xbf\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    assert [lines for _, lines, _ in result] == [["\ufeffone"], ["\ufefftwo"]]


def test_only_a_newline_ends_a_line(blocks):
    line = "a\u2028b\x0bc\x0cd\x85e\rf\x1cg"
    [(_, lines, _)] = blocks(f"{line}\n{line}".encode())
    assert lines == [line, line]


def test_many_short_lines_are_read_in_numbered_blocks(blocks):
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


def test_long_lines_are_read_in_small_blocks(blocks):
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
def test_blocks_contain_all_lines(lines, closed, most_lines, most_bytes, read_size):
    content = b"\n".join(lines) + (b"\n" if closed and lines else b"")
    expected = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if content.endswith(b"\n") or not content:
        expected.pop()  # no line follows the last newline
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as stream:
        patch.setattr(module, "MOST_LINES", most_lines)
        patch.setattr(module, "MOST_BYTES", most_bytes)
        patch.setattr(module, "READ", read_size)
        stream.write(content)
        stream.seek(0)
        result, position = [], 0
        for number, some, read in read_blocks(stream.fileno(), "in"):
            assert number == len(result) + 1
            assert 1 <= len(some) <= most_lines
            result, position = result + some, read
        assert result == [line.removesuffix(b"\r").decode() for line in expected]
        assert position == len(content)


def test_line_is_available_as_soon_as_it_ends(pipe):
    reader, writer = pipe
    blocks = read_blocks(reader, "in")

    def next_lines():
        """The next block; if the reader waits for more input, an error after a timeout."""
        result = queue.Queue()
        threading.Thread(target=lambda: result.put(next(blocks)[:2]), daemon=True).start()
        return result.get(timeout=60)

    os.write(writer, b"one\ntwo\nthr")
    assert next_lines() == (1, ["one", "two"])
    os.write(writer, b"ee\n")
    assert next_lines() == (3, ["three"])
    os.write(writer, b"\nf")
    assert next_lines() == (4, [""])


@pytest.mark.parametrize("end", [b"\nafter\n", b"\r\n", b"\n", b""])
def test_too_long_line_is_refused_after_the_lines_before_it(end, blocks, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 20)
    expected = ["short", "x" * 20], "in:3: line longer than 20 bytes"
    assert until_error(blocks(b"short\n" + b"x" * 20 + b"\n" + b"x" * 21 + end)) == expected


@pytest.mark.parametrize("content", [b"x" * 20 + b"\r\n", b"\xef\xbb\xbf" + b"x" * 20 + b"\n"])
def test_length_limit_excludes_line_end_and_byte_order_mark(content, blocks, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 20)
    monkeypatch.setattr(module, "READ", 21)
    assert [lines for _, lines, _ in blocks(content)] == [["x" * 20]]


def test_endless_line_is_refused_with_bounded_memory(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 100_000)
    with open("/dev/zero", "rb") as endless:
        lines, message = until_error(read_blocks(endless.fileno(), "in"))
    assert (lines, message) == ([], "in:1: line longer than 100,000 bytes")


@pytest.mark.parametrize("most_lines", [1, 2, 4096])
def test_invalid_utf8_is_refused_after_the_lines_before_it(most_lines, blocks, monkeypatch):
    monkeypatch.setattr(module, "MOST_LINES", most_lines)
    lines, message = until_error(blocks("erste\n\nStraße caf".encode() + b"\xe9\nnext\n"))
    assert lines == ["erste", ""]
    assert message == "in:3: not UTF-8 (byte 0xe9 at column 11)"


def test_unreadable_descriptor_is_an_input_error():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        lines, message = until_error(read_blocks(writer, "in"))  # the writing end of a pipe
    finally:
        os.close(writer)
    assert lines == []
    assert message.startswith("in: cannot be read (")
