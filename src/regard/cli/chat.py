"""`regard chat`: have a conversation with a model.

In a terminal, a reply appears while the model writes it. Ctrl-C stops a reply and keeps what
was written; Ctrl-D exits. In a pipe, each line is one user turn, and no prompts are shown.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from regard.cli import options as shared
from regard.config.sections import DTYPES
from regard.console import as_json, visible, warn
from regard.errors import InputError
from regard.files import write_result
from regard.text.messages import INSTRUCTIONS
from regard.training.names import CHAT_TEMPLATE

if TYPE_CHECKING:
    from regard.predictor.model import Model

PROMPT, CONTINUED = "> ", ". "
LONGEST_LINE = 1_000_000  # bytes of one line of input
MOST_LINES = 10_000  # lines of one turn
HELP = """\
/reset      begin a new conversation
/save FILE  save the conversation to a file; `regard chat FILE` continues it
/help       show this list
/quit       exit (also: Ctrl-D)
Ctrl-C stops a reply. A line that ends with \\ continues on the next line. To send a text that
begins with /, write // instead."""


def chat_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "file", nargs="?", type=shared.file_path, metavar="FILE",
        help="continue the conversation in this file, which /save wrote",
    )  # fmt: skip
    verb.add_argument(
        "-m", "--model", type=shared.file_path, metavar="MODEL",
        help="folder of a model with a chat template (required)",
    )  # fmt: skip
    verb.add_argument("--system", metavar="TEXT", help="instructions for the model (default: none)")
    verb.add_argument(
        "--dtype", default="auto", choices=DTYPES,
        help="data type of the weights (default: auto, bfloat16 on CUDA, otherwise float32)",
    )  # fmt: skip
    shared.machine_options(verb)
    shared.decoding_options(verb, "generate", one_output=True)


def chat(options: argparse.Namespace) -> int:
    """Have a conversation with a model, one turn per line."""
    decoding = shared.chosen_decoding(options)
    if decoding.get("n_best", 1) != 1:
        raise InputError("decoding.n_best cannot be set: a conversation has one reply per turn")
    if options.model is None:
        raise InputError("-m is required: none of the shipped models has a chat template")
    messages = read_conversation(options.file) if options.file is not None else []
    if messages and options.system is not None:
        raise InputError(f"--system cannot be combined with a saved conversation ({options.file})")
    from regard.device import keep_freed_memory
    from regard.predictor.loading import load

    keep_freed_memory()
    model = load(options.model, options.device, options.dtype)
    if model.chat_template is None:
        raise InputError(
            f"{options.model} has no chat template: train a model on conversations "
            '({"messages": [...]}), or import one that has a template'
        )
    try:
        model.chat_template.check()
    except InputError as error:
        raise InputError(f"{options.model / CHAT_TEMPLATE}: {error}") from None
    model.decoding(decoding)
    if options.system is not None:
        messages = [{"role": "system", "content": options.system}]
    session = Session(model, decoding, messages, options.json)
    if options.file is not None and options.file.suffix == ".jsonl":  # the format of /save
        session.saved.add(options.file.absolute())
    if sys.stdin.isatty():
        with Interrupts() as interrupts:
            session.talk(terminal_turns(options.quiet), interrupts)
    else:
        session.talk(piped_turns(), None)
    return 0


class Interrupts:
    """Ctrl-C in a terminal: it stops a reply, or clears the line that is being written."""

    def __init__(self) -> None:
        self.replying, self.pressed = False, False

    def __enter__(self) -> Interrupts:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _handle(self, _: int, __: FrameType | None) -> None:
        # The first Ctrl-C ends the reply after the current token; the second one does not wait.
        if self.pressed or not self.replying:
            raise KeyboardInterrupt
        self.pressed = True

    @contextmanager
    def reply(self) -> Iterator[None]:
        """Make Ctrl-C set `pressed` inside this block."""
        self.replying, self.pressed = True, False
        try:
            yield
        finally:
            self.replying = False


class Session:
    """A conversation with a model.

    Args:
        model: the model.
        decoding: the decoding options.
        messages: an earlier conversation to continue, or only instructions for the model. /reset
            keeps the instructions at its beginning.
        as_objects: whether to print each reply as a JSON object.
    """

    def __init__(
        self, model: Model, decoding: dict[str, object], messages: list[dict[str, str]],
        as_objects: bool,
    ) -> None:  # fmt: skip
        self.model, self.decoding, self.as_objects = model, decoding, as_objects
        self.first = list(takewhile(lambda each: each["role"] in INSTRUCTIONS, messages))
        self.messages = messages
        self.saved: set[Path] = set()  # files that /save may replace
        self.shortened = False  # whether the note about omitted messages was shown

    def talk(self, turns: Iterator[str], interrupts: Interrupts | None) -> None:
        """Reply to each turn until the user exits."""
        for turn in turns:
            try:
                if turn.startswith("/") and not turn.startswith("//"):
                    if not self.command(turn):
                        return
                elif turn.strip():
                    self.reply(turn.removeprefix("/") if turn.startswith("//") else turn,
                               interrupts)  # fmt: skip
            except InputError as error:
                if interrupts is None:
                    raise
                warn(str(error))

    def reply(self, turn: str, interrupts: Interrupts | None) -> None:
        """Print the reply to a user turn, and add both to the conversation."""
        messages = [*self.messages, {"role": "user", "content": turn}]
        parts: list[str] = []
        if interrupts is None:
            self.write(messages, parts, lambda: False)
        else:
            with suppress(KeyboardInterrupt), interrupts.reply():
                self.write(messages, parts, lambda: interrupts.pressed)
        text = "".join(parts)
        if self.as_objects:
            print(as_json({"role": "assistant", "content": text}))
        else:
            print()
        sys.stdout.flush()
        if text or not (interrupts and interrupts.pressed):
            self.messages = [*messages, {"role": "assistant", "content": text}]

    def write(
        self, messages: list[dict[str, str]], parts: list[str], stopped: Callable[[], bool]
    ) -> None:
        """Print a reply part by part, and add the parts to a list."""
        readable = visible if sys.stdout.isatty() else str
        for part in self.model.stream_chat(messages, warn=self.note, **self.decoding):  # type: ignore[arg-type]
            parts.append(part)
            if not self.as_objects:
                print(readable(part), end="", flush=True)
            if stopped():
                return

    def note(self, _: int, message: str) -> None:
        """Say once per conversation that the oldest messages are left out."""
        if not self.shortened:
            warn(message)
        self.shortened = True

    def command(self, line: str) -> bool:
        """Run a command; return False if the user exits."""
        name, _, argument = line.strip().partition(" ")
        if name in ("/quit", "/exit"):
            return False
        if name == "/reset":
            self.messages, self.shortened = list(self.first), False
        elif name == "/help":
            print(HELP, file=sys.stderr)
        elif name == "/save":
            self.save(argument.strip())
        else:
            raise InputError(f"unknown command {name!r:.40}: /help lists the commands")
        return True

    def save(self, name: str) -> None:
        """Write the conversation as one line of JSON, which is also a line of training data."""
        if not name:
            raise InputError("/save needs a file name: /save FILE")
        if len(self.messages) == len(self.first):
            raise InputError("there is nothing to save: the conversation is empty")
        path = Path(name).expanduser()
        if path.exists() and path.absolute() not in self.saved:
            raise InputError(f"{path} exists: choose a different name")
        write_result(path, as_json({"messages": self.messages}) + "\n")
        self.saved.add(path.absolute())
        warn(f"{path}: {len(self.messages)} messages")


def read_conversation(path: Path) -> list[dict[str, str]]:
    """The messages of a file with one conversation.

    Raises:
        InputError: the file cannot be read, or is not one conversation.
    """
    from regard.text.conversations import ANY_CONVERSATION

    rows = list(zip(ANY_CONVERSATION.read(path), range(2), strict=False))
    if len(rows) != 1:
        number = "no conversation" if not rows else "several conversations"
        raise InputError(f"{path} contains {number}: regard chat continues exactly one")
    return rows[0][0].objects


def terminal_turns(quiet: bool) -> Iterator[str]:
    """The turns that the user types; the iterator ends at Ctrl-D."""
    with suppress(ImportError):  # line editing and history, if Python has them
        import readline

        readline.set_auto_history(True)
    if not quiet:
        print("/help lists the commands, Ctrl-D exits.", file=sys.stderr)
    lines: list[str] = []
    while True:
        try:
            lines.append(ask(CONTINUED if lines else PROMPT))
        except KeyboardInterrupt:
            print("\n(Ctrl-D exits)", file=sys.stderr)
            lines = []
            continue
        except EOFError:
            print(file=sys.stderr)
            return
        if lines[-1].endswith("\\") and len(lines) < MOST_LINES:
            lines[-1] = lines[-1][:-1]
            continue
        turn, lines = "\n".join(lines), []
        yield turn


def ask(prompt: str) -> str:
    """One line from the terminal."""
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)  # only replies go to standard output
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def piped_turns() -> Iterator[str]:
    """The turns on standard input, one per line.

    Raises:
        InputError: a line or turn is too long, or a line is not UTF-8.
    """
    number, lines = 0, list[str]()
    while content := sys.stdin.buffer.readline(LONGEST_LINE + 1):
        number += 1
        if len(content) > LONGEST_LINE:
            raise InputError(f"standard input:{number}: line longer than {LONGEST_LINE:,} bytes")
        if len(lines) >= MOST_LINES:
            raise InputError(f"standard input:{number}: a turn of more than {MOST_LINES:,} lines")
        try:
            line = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise InputError(f"standard input:{number}: not UTF-8") from None
        if line.endswith("\\"):
            lines.append(line[:-1])
            continue
        turn, lines = "\n".join([*lines, line]), []
        yield turn
    if lines:
        yield "\n".join(lines)
