"""`regard VERB`: parse the command line, run its command, and set the exit code.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 the work
failed, 2 bad input (one line, no traceback; `--debug` shows it), 130 interrupted. torch is imported
when a command runs, so that every `--help` is fast.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import io
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from regard import __version__
from regard.cli.box import info, info_options, pack, pack_options
from regard.cli.chat import chat, chat_options
from regard.cli.demo import demo, demo_options
from regard.cli.evaluate import evaluate, evaluate_options
from regard.cli.finish import finish, finish_options
from regard.cli.interop import export_command, export_options, import_command, import_options
from regard.cli.lab import LABS
from regard.cli.options import shortened
from regard.cli.predict import at_once, hurried, predict, predict_options, search, search_options
from regard.cli.serve import serve, serve_options
from regard.cli.train import train, train_options
from regard.cli.view import VIEWS
from regard.config.names import VERBS, equivalents, suggestion
from regard.console import warn
from regard.errors import ConversionFailed, InputError, RegardWarning, TrainingFailed
from regard.files import CHOSEN, FULL
from regard.tasks.registry import find_task, task_names

# Options of other programs for files that regard reads from standard input or writes to output.
FILE_FLAGS = {
    "-i", "-o", "-f", "--input", "--input-file", "--in", "--file", "--output", "--output-file",
    "--out", "--src", "--source",
}  # fmt: skip
Command = Callable[[argparse.Namespace], int]  # returns the exit code


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors and suggestions. main() prints them like all other errors."""

    words: Sequence[str] = ()  # the arguments that are being parsed

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stdout).write(message)  # argparse's own method ignores a full disk

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Report unknown options here: the parser of a verb knows the verb's options."""
        self.words = list(sys.argv[1:] if args is None else args)
        options, rest = super().parse_known_args(args, namespace)
        if flags := [word for word in rest if word.startswith("-") and len(word) > 1]:
            raise self.unknown_option(flags[0].partition("=")[0])
        if rest:
            hint = ""
            if any(not action.option_strings for action in self._actions):
                hint = ": a text of several words needs quotation marks"
            raise InputError(
                f"unexpected argument {shortened(rest[0])!r}{hint} (see: {self.prog} --help)"
            )
        return options, rest

    def unknown_option(self, flag: str) -> InputError:
        """The error for an option that this command does not have."""
        message, flags = f"unknown option {shortened(flag)!r}", self._option_string_actions
        near = get_close_matches(flag, flags, n=1, cutoff=0.8)
        if near:
            return InputError(f"{message}; did you mean {near[0]}?")
        positional = {action.dest: action.metavar for action in self._get_positional_actions()}
        if flag in ("-m", "--model") and "model" in positional:
            return InputError(f"{message}; write: {self.prog} {positional['model']}")
        options = equivalents(flag)
        settable = str(flags["--set"].metavar) if "--set" in flags else ""
        for option in options:
            section, dot, key = option.name.rpartition(".")
            known = f"--{key.replace('_', '-')}"
            if known in flags:
                return InputError(f"{message}; {suggestion(option, known)}")
            if dot and settable.startswith((section, "section")):
                return InputError(f"{message}; {suggestion(option, f'--set {option}=...')}")
        if flag in FILE_FLAGS and "texts" in positional:
            return InputError(f"{message}; read a file with: {self.prog} < INPUT > OUTPUT")
        others = [name for name in flags if name not in ("-h", "--help")]
        near = [] if options else get_close_matches(flag, others, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"see: {self.prog} --help"
        return InputError(f"{message}; {hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not one of the choices of an option, or an unknown verb."""
        if action.choices is None or value in action.choices:
            return
        if not action.option_strings:
            raise self.unknown_verb(str(value), action)
        *others, last = map(str, action.choices)
        name = max(action.option_strings, key=len)
        raise InputError(
            f"{name} must be {', '.join(others)} or {last}, not {shortened(str(value))!r}"
        )

    def unknown_verb(self, name: str, action: argparse.Action) -> InputError:
        """The error for an unknown verb, view or measurement."""
        known = list(action.choices or ())
        message = f"unknown {str(action.metavar).lower()} {shortened(name)!r}"
        if action.metavar == "VERB" and name.lower() in VERBS:
            return InputError(f"{message}; {VERBS[name.lower()]}")
        near = get_close_matches(name.lower(), known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        return InputError(f"{message}; {hint} (see: {self.prog} --help)")

    def error(self, message: str) -> NoReturn:
        # A message of options.py ("argument -m/--model: must be ...") needs no hint at --help.
        if bound := re.fullmatch(r"argument (?:-\w/)?(\S+): (must .*)", message, re.DOTALL):
            raise InputError(f"{bound[1]} {bound[2]}")
        if value := re.fullmatch(r"argument (?:-\w/)?(\S+): expected .*one argument", message):
            raise InputError(f"{value[1]} needs a value (see: {self.prog} --help)")
        if message.startswith("the following arguments are required"):
            for word in self.words:
                flag = word.partition("=")[0]
                known = any(name.startswith(flag) for name in self._option_string_actions)
                if word == "--":
                    break
                if flag.startswith("--") and not known:
                    raise self.unknown_option(flag)
        raise InputError(f"{message} (see: {self.prog} --help)")


def build_parser(arguments: Sequence[str] | None = None) -> Parser:
    """The parser of the command line; `options.run` of its result is the command.

    arguments: the command line; commands that it does not name get no options, which saves time.
    """
    debug = "show the full traceback of an error"

    def add(
        verbs: Any, name: str, run: Command, options: Callable[[Parser], None], text: str = ""
    ) -> None:
        text = text or run.__doc__ or ""
        verb = verbs.add_parser(name, help=text[0].lower() + text[1:].rstrip("."), description=text)
        if arguments is None or name in arguments:
            options(verb)
            verb.add_argument("--json", action="store_true", help="print one JSON object per line")
            verb.add_argument("--debug", action="store_true", help=debug)
            verb.set_defaults(run=run)

    parser = Parser(
        prog="regard", description="Train, use and understand Transformer models. Try: regard demo"
    )
    parser.add_argument("--version", action="version", version=f"regard {__version__}")
    parser.add_argument("--debug", action="store_true", help=debug)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    add(verbs, "demo", demo, demo_options)
    add(verbs, "train", train, train_options)
    add(verbs, "finish", finish, finish_options)
    for name in task_names():
        task = find_task(name)
        add(verbs, name, predict, partial(predict_options, task=task), task.help)
    add(verbs, "chat", chat, chat_options)
    add(verbs, "search", search, search_options)
    add(verbs, "serve", serve, serve_options)
    add(verbs, "evaluate", evaluate, evaluate_options)
    add(verbs, "info", info, info_options)
    add(verbs, "pack", pack, pack_options)
    add(verbs, "import", import_command, import_options)
    add(verbs, "export", export_command, export_options)
    for name, help, title, metavar, group in (
        ("view", "Draw attention, positions or training curves.", "views", "VIEW", VIEWS),
        ("lab", "Measure properties of the architecture.", "measurements", "MEASUREMENT", LABS),
    ):
        brief = help[0].lower() + help[1:].rstrip(".")
        several = verbs.add_parser(name, help=brief, description=help)
        children = several.add_subparsers(title=title, metavar=metavar, required=True)
        for child, run, options in group:
            add(children, child, run, options)
    return parser


def main() -> None:
    """Run the command line and turn every way it can end into an exit code."""
    # How long a thread spins before it sleeps, read when torch is loaded. The default spins for
    # milliseconds, which halves the training speed on a machine with other busy processes.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    atexit.register(gc.freeze)  # do not collect torch's objects when the process ends
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Independent of the locale, as all files of regard are UTF-8.
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        with interruptible():
            code = run(sys.argv[1:])
            sys.stdout.flush()  # inside of `try`: a closed pipe or a full disk is reported below
    except (InputError, TrainingFailed, ConversionFailed, OSError) as error:
        if isinstance(error, BrokenPipeError):  # `regard ... | head`: the reader is done
            code = 0
        else:
            if "--debug" in sys.argv:
                traceback.print_exc()
            warn(describe(error))
            code = exit_code(error)
        if output_fails():  # the buffer cannot be written, not even at exit: discard it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as stopped:
        if str(stopped):
            warn(str(stopped))
        code = 130
    sys.exit(code)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make one Ctrl-C end the block with a KeyboardInterrupt, whatever code is running.

    Python drops an exception that is raised in a finaliser, and libraries in C drop or rename one
    that is raised while they call Python. The handler therefore raises it
    again until it arrives here.
    """
    pressed = False

    def interrupt(_: int, __: FrameType | None) -> NoReturn:
        nonlocal pressed
        pressed = True
        torch = sys.modules.get("torch")
        if torch and getattr(torch.__spec__, "_initializing", False):
            os._exit(130)  # an exception would abort the process; no work is lost yet
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        raise KeyboardInterrupt

    def report_unraisable(event: Any) -> None:
        if event.exc_type is not KeyboardInterrupt:
            previous_hook(event)

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # a script in the background, for example, ignores it
        return
    previous = {s: signal.signal(s, interrupt) for s in (signal.SIGINT, signal.SIGALRM)}
    previous_hook, sys.unraisablehook = sys.unraisablehook, report_unraisable
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = previous_hook
        for number, handler in previous.items():
            signal.signal(number, handler)
        if pressed:
            raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """Parse the command line and run its verb."""
    for word in arguments:
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise InputError(f"an argument is not UTF-8: {shortened(word)!r}")
    try:
        options = build_parser(arguments).parse_args(arguments or ["--help"])
    except SystemExit:  # --help or --version, which has been printed
        return 0
    with at_once(hurried(options)), warnings.catch_warnings():
        warnings.showwarning = partial(show_warning, warnings.showwarning)
        code: int = options.run(options)
    return code


def show_warning(
    default: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any
) -> None:
    """Print a warning of this package in one line; use `default` for any other."""
    if issubclass(category, RegardWarning):
        warn(str(message))
    else:
        default(message, category, *place)


def exit_code(error: Exception) -> int:
    """2 if a different command line would help, 1 if the work failed.

    A full disk is always 1, even if a component reports it as an InputError.
    """
    if isinstance(error, OSError):
        return 2 if error.errno in CHOSEN else 1
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return 1
        cause = cause.__context__
    return 2 if isinstance(error, InputError) else 1


def describe(error: Exception) -> str:
    """The message of an error in one line; an OSError is described with its file."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    # Errors of file writers have a file name (files.named): this one came from print().
    where = "standard output: " if error.errno in FULL | {errno.EIO} else ""
    return f"{where}{error.strerror}"


def output_fails() -> bool:
    """Whether buffered text cannot be written to standard output."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False
