"""One line of output for each text or line of input: in this process, and with pipes."""

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


def printed(translations):
    texts = [translations] if isinstance(translations, str) else translations
    return "".join(one_line(text) + "\n" for text in texts)


def test_every_line_of_standard_input_gives_one_line(folder, translator, texts):
    odd = ["a\u2028b\x85c\x0bd\x0ce\x1cf", "Straße \ufeff 日本語 😀", "last, without an end"]
    stdin = b"\xef\xbb\xbf" + "\r\n".join(texts).encode() + b"\r\n" + "\n".join(odd).encode()
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", "-m", folder, "--device", "cpu"],
        input=stdin, capture_output=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    texts = [*texts, *odd]
    assert done.stdout.decode() == printed(translator.translate(texts))
    *translations, end = done.stdout.split(b"\n")
    assert end == b""
    assert [bool(answer) for answer in translations] == [bool(text.strip()) for text in texts]


MODES = [{"beam": 4}, {"beam": 1}, {"beam": 3, "no_repeat": 2}, {"temperature": 1.0, "seed": 3}]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_lines_arguments_and_python_give_the_same_translations(
    mode, folder, translator, texts, verb
):
    translations = translator.translate(texts, **mode)
    assert len(set(translations)) == 5  # two texts are blank
    assert translations == [translator.translate(text, **mode) for text in texts]
    assert translations[::-1] == translator.translate(texts[::-1], **mode)
    assert verb("translate", folder, stdin=texts, **mode) == (0, printed(translations), "")
    assert verb("translate", folder, *texts, **mode) == (0, printed(translations), "")


def test_argument_with_line_breaks_is_one_text(folder, translator, texts, verb):
    text = "\n".join(texts)
    translation = printed([translator.translate(text)])
    assert translation.count("\n") == 1
    for last in ("", "\n"):
        assert verb("translate", folder, text + last) == (0, translation, "")


def test_size_of_blocks_does_not_change_the_output(folder, translator, texts, verb, monkeypatch):
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    translations = translator.translate(texts)
    assert verb("translate", folder, stdin=texts) == (0, printed(translations), "")


def test_line_ends_and_tabs_of_a_translation_are_replaced(
    byte_folder, byte_translator, texts, verb
):
    options = {"temperature": 1, "n_best": 3, "seed": 2, "max_length": 30}
    translations = byte_translator.predict(texts, **options)
    every = [[output.text for output in answer.n_best] for answer in translations]
    characters = {character for row in every for text in row for character in text}
    assert set("\n\t\r😀\ufffd") <= characters  # the outputs contain all of these
    code, out, err = verb("translate", byte_folder, stdin=texts, **options)
    assert (code, err) == (0, "")
    assert "\r" not in out
    *rows, end = (line.split("\t") for line in out.split("\n"))
    assert end == [""]
    assert rows == [[one_line(text) for text in row] for row in every]
    assert [len(row) for row in rows] == [3 if text.strip() else 1 for text in texts]
    del options["n_best"]
    first = [prediction.text for prediction in byte_translator.predict(texts, **options)]
    streamed = verb("translate", byte_folder, "--stream", stdin=texts, **options)
    assert streamed == (0, printed(first), "")


def test_empty_input_gives_empty_output(folder, translator, verb):
    assert verb("translate", folder) == (0, "", "")
    assert verb("translate", folder, "") == (0, "\n", "")
    assert verb("translate", folder, "--stream", stdin=[""]) == (0, "\n", "")
    assert translator.translate([]) == translator.score([]) == []


@pytest.mark.parametrize("most_lines", [2, 4096])
def test_invalid_line_is_reported_after_the_translations_of_earlier_lines(
    most_lines, folder, translator, texts, verb, monkeypatch
):
    monkeypatch.setattr(lines, "MOST_LINES", most_lines)
    stdin = "\n".join(texts[:3]).encode() + b"\ncaf\xe9\nnever read\n"
    message = "regard: standard input:4: not UTF-8 (byte 0xe9 at column 4)\n"
    for stream in ([], ["--stream"]):
        done = verb("translate", folder, *stream, stdin=stdin)
        assert done == (2, printed(translator.translate(texts[:3])), message)


@pytest.fixture
def impatient(monkeypatch):
    """Show progress bars without delay."""
    monkeypatch.setattr(console, "PATIENCE", 0.0)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def test_progress_bar_needs_a_terminal_and_is_hidden_by_quiet(
    impatient, folder, translator, texts, verb, monkeypatch
):
    translations = printed(translator.translate(texts))
    assert verb("translate", folder, stdin=texts) == (0, translations, "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich treats standard error as a terminal
    assert verb("translate", folder, "--quiet", stdin=texts) == (0, translations, "")
    assert verb("translate", folder, *texts) == (0, translations, "")


def test_progress_bar_does_not_change_standard_output(
    impatient, folder, translator, texts, verb, monkeypatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as above
    code, out, err = verb("translate", folder, stdin=texts)
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


def exchange(process, stdin):
    """Write to standard input and read one line of output, with a timeout."""
    process.stdin.write(stdin)
    received = queue.Queue()
    threading.Thread(target=lambda: received.put(process.stdout.readline()), daemon=True).start()
    return received.get(timeout=120).decode()


def test_each_line_is_translated_before_the_next_is_sent(process, translator, texts):
    first, second = texts[0].encode(), texts[2].encode()
    assert exchange(process, first + b"\n") == printed(translator.translate(texts[0]))
    process.stdin.write(second[:9])  # an incomplete line
    assert exchange(process, second[9:] + b"\n") == printed(translator.translate(texts[2]))
    assert exchange(process, b"\n") == "\n"
    process.stdin.close()
    assert process.wait(120) == 0
    assert process.stdout.read() + process.stderr.read() == b""


def test_reader_that_closes_the_pipe_is_not_an_error(process):
    assert exchange(process, b"The dog slept.\n")
    process.stdout.close()  # as `head -1` does
    process.stdin.write(b"The cat slept.\n")
    assert process.wait(120) == 0
    assert process.stderr.read() == b""


def test_interrupt_exits_with_130_and_no_traceback(process):
    assert exchange(process, b"The dog slept.\n")
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert process.stderr.read() == b""


@pytest.fixture
def waiting(folder, monkeypatch):
    """A function that runs `regard translate` in this process, with one line of input in an open
    pipe, and returns the exit code."""
    monkeypatch.setattr(sys, "argv", ["regard", "translate", "-m", str(folder), "--device", "cpu"])
    read, write = os.pipe()
    os.write(write, b"The dog slept.\n")
    rescue = threading.Timer(60, os.close, [write])  # so that a failing test ends
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)

    def run():
        rescue.start()
        with pytest.raises(SystemExit) as exit_info:
            main()
        assert rescue.is_alive()
        return exit_info.value.code

    with open(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield run
    signal.signal(signal.SIGINT, previous)
    if rescue.is_alive():
        rescue.cancel()
        os.close(write)


def test_interrupt_in_another_thread_ends_the_program(waiting, capsys, monkeypatch):
    # The signal arrives in another thread, so it does not end the system call that waits for input.
    interrupt = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])

    def show(text):
        interrupt.start()
        return text

    monkeypatch.setattr(sequences, "one_line", show)
    assert waiting() == 130
    assert capsys.readouterr().err == ""


def test_interrupt_in_a_finaliser_ends_the_program(waiting, capsys, monkeypatch):
    class Finaliser:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def show(text):
        Finaliser()
        return text

    monkeypatch.setattr(sequences, "one_line", show)
    assert waiting() == 130
    assert capsys.readouterr().err == ""


def test_null_device_is_empty_input(folder):
    done = subprocess.run(
        [sys.executable, "-m", "regard", "translate", "-m", folder],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize("closed", ["stdin", "stdout"])
def test_closed_standard_input_or_output_does_not_crash(closed, folder, monkeypatch):
    monkeypatch.setattr(sys, closed, None)  # regard translate -m run <&-
    text = ["The dog."] if closed == "stdout" else []
    monkeypatch.setattr(sys, "argv", ["regard", "translate", "-m", str(folder), *text])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code in (0, 1, 2)
