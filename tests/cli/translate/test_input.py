"""Texts and lines in, one line out for each: in this process, and with real pipes."""

import os
import queue
import signal
import subprocess
import sys
import threading

import pytest

from regard import console
from regard.cli.main import main
from regard.tasks import sequences
from regard.tasks.common import one_line
from regard.text import lines


def printed(answers):
    texts = [answers] if isinstance(answers, str) else answers
    return "".join(one_line(text) + "\n" for text in texts)


def test_standard_input_gives_one_line_for_one_line_whatever_ends_it(folder, translator, texts):
    odd = ["a\u2028b\x85c\x0bd\x0ce\x1cf", "Straße \ufeff 日本語 😀", "last, without an end"]
    given = b"\xef\xbb\xbf" + "\r\n".join(texts).encode() + b"\r\n" + "\n".join(odd).encode()
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", "-m", folder, "--device", "cpu"],
        input=given, capture_output=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    texts = [*texts, *odd]
    assert done.stdout.decode() == printed(translator.translate(texts))
    *answers, end = done.stdout.split(b"\n")
    assert end == b""
    assert [bool(answer) for answer in answers] == [bool(text.strip()) for text in texts]


MODES = [{"beam": 4}, {"beam": 1}, {"beam": 3, "no_repeat": 2}, {"temperature": 1.0, "seed": 3}]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_lines_arguments_python_and_each_text_alone_agree(mode, folder, translator, texts, verb):
    answers = translator.translate(texts, **mode)
    assert len(set(answers)) == 5  # two texts are blank
    assert answers == [translator.translate(text, **mode) for text in texts]
    assert answers[::-1] == translator.translate(texts[::-1], **mode)
    assert verb("translate", folder, given=texts, **mode) == (0, printed(answers), "")
    assert verb("translate", folder, *texts, **mode) == (0, printed(answers), "")


def test_a_text_of_several_lines_is_as_many_texts(folder, translator, texts, verb):
    answers = printed(translator.translate(texts))
    for last in ("", "\n"):
        assert verb("translate", folder, "\n".join(texts) + last) == (0, answers, "")


def test_lines_in_many_blocks_are_the_same_lines(folder, translator, texts, verb, monkeypatch):
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    answers = translator.translate(texts)
    assert verb("translate", folder, given=texts) == (0, printed(answers), "")


def test_an_answer_never_looks_like_two_lines_or_two_columns(
    byte_folder, byte_translator, texts, verb
):
    options = {"temperature": 1, "n_best": 3, "seed": 2, "max_length": 30}
    answers = byte_translator.predict(texts, **options)
    every = [[output.text for output in answer.n_best] for answer in answers]
    signs = {sign for row in every for text in row for sign in text}
    assert set("\n\t\r😀\ufffd") <= signs  # it does say all that
    code, out, err = verb("translate", byte_folder, given=texts, **options)
    assert (code, err) == (0, "")
    assert "\r" not in out
    *rows, end = (line.split("\t") for line in out.split("\n"))
    assert end == [""]
    assert rows == [[one_line(text) for text in row] for row in every]
    assert [len(row) for row in rows] == [3 if text.strip() else 1 for text in texts]
    streamed = verb("translate", byte_folder, "--stream", given=texts, **options)
    assert streamed == (0, printed(row[0] for row in every), "")


def test_nothing_in_is_nothing_out(folder, translator, verb):
    assert verb("translate", folder) == (0, "", "")
    assert verb("translate", folder, "") == (0, "\n", "")
    assert verb("translate", folder, "--stream", given=[""]) == (0, "\n", "")
    assert translator.translate([]) == translator.score([]) == []


@pytest.mark.parametrize("most_lines", [2, 4096])
def test_a_line_that_is_no_text_is_named_after_the_answers_to_those_before(
    most_lines, folder, translator, texts, verb, monkeypatch
):
    monkeypatch.setattr(lines, "MOST_LINES", most_lines)
    given = "\n".join(texts[:3]).encode() + b"\ncaf\xe9\nnever read\n"
    said = "regard: standard input:4: not UTF-8 (byte 0xe9 at column 4)\n"
    for stream in ([], ["--stream"]):
        done = verb("translate", folder, *stream, given=given)
        assert done == (2, printed(translator.translate(texts[:3])), said)


@pytest.fixture
def impatient(monkeypatch):
    """A progress bar is shown at once, if it is shown at all."""
    monkeypatch.setattr(console, "PATIENCE", 0.0)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def test_there_is_no_bar_without_a_terminal_or_when_quiet(
    impatient, folder, translator, texts, verb, monkeypatch
):
    answers = printed(translator.translate(texts))
    assert verb("translate", folder, given=texts) == (0, answers, "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any standard error for a terminal now
    assert verb("translate", folder, "--quiet", given=texts) == (0, answers, "")
    assert verb("translate", folder, *texts) == (0, answers, "")


def test_a_bar_on_the_terminal_takes_nothing_from_standard_output(
    impatient, folder, translator, texts, verb, monkeypatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as above
    code, out, err = verb("translate", folder, given=texts)
    assert "translating" in err
    assert (code, out) == (0, printed(translator.translate(texts)))


@pytest.fixture
def process(folder):
    """`regard translate` with pipes, waiting for its first line."""
    command = [sys.executable, "-m", "regard", "translate", "-m", folder, "--device", "cpu"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    # Tests that run in the background inherit that Ctrl-C is ignored; a user's shell does not.
    own = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, **pipes, **own, bufsize=0, env=buffered) as process:
        yield process
        process.kill()


def ask(process, given):
    """Write this and read a line of the answer; one that does not come is an error."""
    process.stdin.write(given)
    found = queue.Queue()
    threading.Thread(target=lambda: found.put(process.stdout.readline()), daemon=True).start()
    return found.get(timeout=120).decode()


def test_a_program_that_waits_for_each_answer_gets_it(process, translator, texts):
    first, second = texts[0].encode(), texts[2].encode()
    assert ask(process, first + b"\n") == printed(translator.translate(texts[0]))
    process.stdin.write(second[:9])  # half a line is no line
    assert ask(process, second[9:] + b"\n") == printed(translator.translate(texts[2]))
    assert ask(process, b"\n") == "\n"
    process.stdin.close()
    assert process.wait(120) == 0
    assert process.stdout.read() + process.stderr.read() == b""


def test_a_reader_that_has_enough_is_no_error(process):
    assert ask(process, b"The dog slept.\n")
    process.stdout.close()  # as `head -1` does
    process.stdin.write(b"The cat slept.\n")
    assert process.wait(120) == 0
    assert process.stderr.read() == b""


def test_an_interrupt_ends_it_with_130_and_no_traceback(process):
    assert ask(process, b"The dog slept.\n")
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert process.stderr.read() == b""


@pytest.fixture
def waiting(folder, monkeypatch):
    """`regard translate` in this process: one line comes, and another does not. Gives the code."""
    monkeypatch.setattr(sys, "argv", ["regard", "translate", "-m", str(folder), "--device", "cpu"])
    read, write = os.pipe()
    os.write(write, b"The dog slept.\n")
    rescue = threading.Timer(60, os.close, [write])  # a test that fails also ends
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)

    def run():
        rescue.start()
        with pytest.raises(SystemExit) as ended:
            main()
        assert rescue.is_alive()
        return ended.value.code

    with open(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield run
    signal.signal(signal.SIGINT, previous)
    if rescue.is_alive():
        rescue.cancel()
        os.close(write)


def test_an_interrupt_that_does_not_end_the_waiting_call_is_heard(waiting, capsys, monkeypatch):
    # It comes to another thread: like one just before the call, it is noted but nobody wakes up.
    interrupt = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])

    def show(text):
        interrupt.start()
        return text

    monkeypatch.setattr(sequences, "one_line", show)
    assert waiting() == 130
    assert capsys.readouterr().err == ""


def test_an_interrupt_that_python_drops_is_heard(waiting, capsys, monkeypatch):
    class Finaliser:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def show(text):
        Finaliser()
        return text

    monkeypatch.setattr(sequences, "one_line", show)
    assert waiting() == 130
    assert capsys.readouterr().err == ""


def test_an_empty_device_is_no_input(folder):
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", "-m", folder],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_a_closed_standard_input_or_output_is_no_crash(closed, folder, monkeypatch):
    monkeypatch.setattr(sys, closed, None)  # regard translate -m run <&-
    text = ["The dog."] if closed == "stdout" else []
    monkeypatch.setattr(sys, "argv", ["regard", "translate", "-m", str(folder), *text])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, 1, 2)
