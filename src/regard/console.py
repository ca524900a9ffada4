"""Output: tables and progress bars, one-line messages, and JSON.

Labels, file names and model output are user text. They must never be parsed as rich markup, and a
control character in them must never reach the terminal. Every console and progress bar of the
package is created here, so callers do not have to take care of either.

rich is imported only when it is needed, because a verb that prints one short line starts faster
without it.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PATIENCE = 2.0  # seconds of work before a progress bar is shown
NOTEBOOK_PAUSE = 0.5  # seconds between two updates of a line in a notebook
# C0 and C1 control characters except tab and newline, the line separators, the characters that
# reorder text (bidirectional overrides), and surrogates, which UTF-8 cannot encode.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Characters that JSON allows in a string but `str.splitlines` splits at, and surrogates.
NOT_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def as_json(value: Any) -> str:
    """`value` as JSON in one line, even for a reader that uses `str.splitlines`."""
    text = json.dumps(value, ensure_ascii=False)
    return NOT_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def visible(text: str) -> str:
    """`text` with control characters written as escapes (`\\x1b`); tabs and newlines stay."""
    return HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def visible_line(text: str) -> str:
    """`visible` for text that must stay on one line: tabs and newlines are escaped as well."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def warn(message: str) -> None:
    """Print `regard: message` on standard error, in one line."""
    with suppress(OSError):  # standard error is closed: the exit code must still be correct
        print(f"regard: {visible_line(message)}", file=sys.stderr)


def make_console(stderr: bool = False, quiet: bool = False, width: int | None = None) -> Console:
    """A rich console that prints every string as it is: no markup, no emoji codes, no highlighting,
    control characters escaped.

    Strings in tables (cells, headers, titles) are covered too: rich renders them through the
    console that prints the table.
    """
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text), **options)

        def on_broken_pipe(self) -> None:
            """Let the command line handle it; rich would exit with code 1 here."""
            raise BrokenPipeError

    return PlainConsole(
        stderr=stderr, quiet=quiet, width=width, markup=False, emoji=False, highlight=False
    )


def make_progress(console: Console, *columns: Any, **options: Any) -> Progress:
    """Transient progress bars on a console of this module; task descriptions are not markup.

    columns: the columns after the description (default: bar, percentage, remaining time).
    """
    from rich import progress as rich

    columns = columns or (rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeRemainingColumn())
    name = rich.TextColumn("{task.description}", markup=False)
    return rich.Progress(name, *columns, console=console, transient=True, **options)


def print_counts(counts: Sequence[tuple[str, int]], total: int, console: Console) -> None:
    """Print a table of counts with their share of `total`."""
    from rich.table import Table

    table = Table("", "", "", box=None, show_header=False, pad_edge=False)
    for name, count in counts:
        table.add_row(name, f"{count:,}", f"{count / total if total else 0:.1%}")
    table.columns[1].justify = table.columns[2].justify = "right"
    console.print(table)


class LiveLine:
    """One line of text on a terminal or in a notebook that is replaced in place."""

    def __init__(self, show: Callable[[str], None], close: Callable[[], None]) -> None:
        self.update, self.close = show, close


def live_line(console: Console) -> LiveLine | None:
    """A line that can be replaced; None if the console is quiet, or a file or a pipe.

    A terminal shows the line while the work lasts, never longer than its width. A notebook shows it
    through the display system of IPython, which needs no widgets, at most every half second.
    """
    if console.quiet:
        return None
    if console.is_jupyter:
        return _notebook_line()
    if not console.is_terminal:
        return None
    from rich.live import Live
    from rich.text import Text

    live = Live(Text(""), console=console, refresh_per_second=4, transient=True)

    def show(text: str) -> None:
        if not live.is_started:
            live.start()
        live.update(Text(visible_line(text), no_wrap=True, overflow="ellipsis"))

    return LiveLine(show, live.stop)


def _notebook_line() -> LiveLine:
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

    handle: Any = None
    last_update, last = 0.0, ""

    def show(text: str, at_once: bool = False) -> None:
        nonlocal handle, last_update, last
        last = visible_line(text)
        if not at_once and time.monotonic() - last_update < NOTEBOOK_PAUSE:
            return
        last_update = time.monotonic()
        content = {"text/plain": last}
        if handle is None:
            handle = display(content, raw=True, display_id=True)
        else:
            handle.update(content, raw=True)

    return LiveLine(show, lambda: show(last, at_once=True) if last else None)


@contextmanager
def progress(
    description: str, total: float | None, quiet: bool
) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on standard error once the work has taken two seconds.

    Yields a function to call with the amount of work done. A timer starts the bar, so it also
    appears during one long call into a library. With `total=None` the bar only shows activity.
    """
    if quiet:
        yield lambda done: None
        return
    console = make_console(stderr=True)
    if console.is_jupyter:
        yield _notebook_progress(description, total)
        return
    # Standard output is left alone: it may be a file that receives the results.
    bar = make_progress(console, disable=not console.is_terminal, redirect_stdout=False)
    task = bar.add_task(description, total=total)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done: bar.update(task, completed=done)
    finally:
        timer.cancel()
        timer.join()  # it may be starting the bar right now; stop the bar only after that
        bar.stop()


def _notebook_progress(description: str, total: float | None) -> Callable[[float], None]:
    """A function that shows the amount of work done in a notebook, after two seconds of work."""
    line, began = _notebook_line(), time.monotonic()

    def show(done: float) -> None:
        if time.monotonic() - began > PATIENCE:
            line.update(f"{description} {done / total:.0%}" if total else description)

    return show
