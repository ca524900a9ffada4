"""`regard chat`: conversations through a pipe and in a terminal."""

import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest

import regard
from chatml import conversation
from command import error_of
from command import regard as run

COLOURS = ("red", "blue")
ROWS = [
    {"messages": conversation(f"say {a}", f"fine {a}", f"now {b}", f"also {b}", system="Hi.")}
    for a in COLOURS
    for b in COLOURS
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that has learned to reply in these four conversations."""
    sizes = {"d_model": 32, "heads": 2, "d_ff": 64, "decoder_layers": 1, "positions": "rotary"}
    trained = regard.train(
        "generate", ROWS, out=tmp_path_factory.mktemp("chat") / "run", steps=60, warmup=10,
        learning_rate=1e-2, batch_tokens=300, dropout=0.0, quiet=True, device="cpu",
        settings={"data": {"vocabulary": "character", "max_length": 8_000}, "model": sizes},
    )  # fmt: skip
    return trained.folder


@pytest.fixture
def chat(model, monkeypatch):
    """Run `regard chat` with lines of standard input."""

    def call(text, *options, system="Hi."):
        content = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        words = ["--system", system] if system else []
        return run("chat", "-m", model, "--temperature", "0", *words, *options)

    return call


def test_each_line_of_a_pipe_is_a_turn(chat):
    assert chat("say blue\n\nnow red\n/reset\nsay \\\nred") == (
        "fine blue\nalso red\nfine red\n", "", 0,
    )  # fmt: skip
    out, _, code = chat("say blue\n/quit\nnow red\n", "--json")
    assert (out, code) == ('{"role": "assistant", "content": "fine blue"}\n', 0)


def test_saved_conversation_is_continued(chat, tmp_path):
    path = tmp_path / "talk.jsonl"
    _, err, code = chat(f"say blue\n/save {path}\nnow red\n/save {path}\n")
    assert (err, code) == (f"regard: {path}: 3 messages\nregard: {path}: 5 messages\n", 0)
    assert json.loads(path.read_text()) == ROWS[2]
    assert chat("/reset\n/help\n", path, system="")[2] == 0
    path.write_text(json.dumps({"messages": ROWS[2]["messages"][:3]}))
    assert chat("now blue\n", path, system="")[0] == "also blue\n"
    assert f"{path} exists: choose a different name" in chat(f"say red\n/save {path}\n")[1]
    # The opened file may be replaced, and /reset keeps its instructions.
    _, err, code = chat(f"/reset\nsay red\n/save {path}\n", path, system="")
    assert (err, code) == (f"regard: {path}: 3 messages\n", 0)
    assert json.loads(path.read_text())["messages"] == ROWS[0]["messages"][:3]
    assert "--system cannot be combined with" in chat("", path)[1]
    path.write_text("\n".join([json.dumps(ROWS[0])] * 2))
    assert "several conversations" in chat("", path, system="")[1]


def test_conversation_without_a_reply_is_continued(chat, tmp_path):
    path = tmp_path / "instructions.jsonl"
    path.write_text(json.dumps({"messages": ROWS[0]["messages"][:1]}))
    assert chat("say blue\n", path, system="")[::2] == ("fine blue\n", 0)


def test_conversation_is_saved_in_the_home_folder(chat, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert chat("say blue\n/save ~/talk.jsonl\n")[2] == 0
    assert (tmp_path / "talk.jsonl").exists()


def test_old_messages_that_do_not_fit_are_left_out(chat, monkeypatch):
    monkeypatch.setattr("regard.predictor.model.Model.longest", 44)
    out, err, code = chat("say blue\nnow red\nsay red\nnow blue\n")
    assert (out.splitlines()[:2], len(out.splitlines()), code) == (["fine blue", "also red"], 4, 0)
    assert err.startswith("regard: the oldest 2 messages were left out: the model reads at most 44")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [("/nothing\n", "unknown command '/nothing'"), ("/save\n", "/save needs a file name"),
     ("/save x\n", "there is nothing to save"), (b"\xff\n", "standard input:1: not UTF-8"),
     ("x" * 9_000, "the instructions and the last message have"), ("\\\n" * 10_001, "a turn of more than 10,000 lines"),
     ("x" * 1_000_001, "standard input:1: line longer than 1,000,000 bytes")],
)  # fmt: skip
def test_errors_in_a_pipe(chat, text, message):
    out, err, code = chat(text)
    assert (out, code) == ("", 2)
    assert message in err
    assert len(err.splitlines()) == 1


def test_models_and_options_that_cannot_chat(model):
    assert error_of("chat", "-m", "box:generate").startswith("box:generate has no chat template: ")
    assert error_of("chat").startswith("-m is required")
    assert "a conversation has one reply" in error_of(
        "chat", "-m", model, "--set", "decoding.n_best=2"
    )


def test_invalid_template_is_named(model, tmp_path):
    path = shutil.copytree(model, tmp_path / "model") / "chat_template.jinja"
    path.write_text("{% if %}")
    assert run("info", path.parent, "--accept-changes")[2] == 0
    assert error_of("chat", "-m", path.parent).startswith(
        f"{path}: the chat template is not valid (line 1): "
    )


class Terminal:
    """`regard chat` in a pseudo-terminal."""

    def __init__(self, *arguments):
        self.side, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "regard", "chat", *map(str, arguments)],
            stdin=other, stdout=other, stderr=other, start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C sends a signal
        )  # fmt: skip
        os.close(other)
        self.text = ""

    def write(self, text):
        os.write(self.side, text.encode())

    def wait_for(self, pattern, seconds=60):
        """Read until the new output matches a pattern; returns the output up to its end."""
        end = time.monotonic() + seconds
        while (match := re.search(pattern, self.text)) is None:
            assert time.monotonic() < end, (pattern, self.text)
            if not select.select([self.side], [], [], 0.5)[0]:
                continue
            try:
                self.text += os.read(self.side, 4096).decode()
            except OSError:  # the process has ended
                end = 0.0
        before, self.text = self.text[: match.end()], self.text[match.end() :]
        return before


def test_terminal(model, tmp_path):
    saved = tmp_path / "talk.jsonl"
    options = (
        "--system",
        "Hi.",
        "--temperature",
        "2",
        "--min-length",
        "9999",
        "--max-length",
        "9999",
    )
    terminal = Terminal("-m", model, *options)
    try:
        terminal.wait_for("/help lists the commands, Ctrl-D exits.")
        terminal.wait_for("> ")
        time.sleep(0.3)  # Python ignores a signal just before it waits for the first key
        terminal.write("half a li\x03")  # Ctrl-C clears the line
        terminal.wait_for(r"\(Ctrl-D exits\)")
        terminal.wait_for("> ")
        terminal.write("/unknown\n")
        terminal.wait_for("unknown command")
        terminal.wait_for("> ")
        terminal.write("say blue\n")
        # The reply has begun, and would be long.
        reply = terminal.wait_for(r"say blue\r\n(.|\s){20}")
        terminal.write("\x03")
        terminal.wait_for("> ")
        terminal.write(f"/save {saved}\n")
        terminal.wait_for("3 messages")
        messages = json.loads(saved.read_text())["messages"]
        assert messages[:2] == ROWS[2]["messages"][:2]
        written = messages[2]["content"]
        assert 20 <= len(written) < 7_000
        # Ctrl-C discards output that the terminal has not shown yet.
        assert written[:10] in reply.replace("\r\n", "\n")
        terminal.wait_for("> ")
        terminal.write("\x04")  # Ctrl-D
        assert terminal.process.wait(timeout=30) == 0
    finally:
        if terminal.process.poll() is None:
            terminal.process.send_signal(signal.SIGKILL)
            terminal.process.wait()
        os.close(terminal.side)
