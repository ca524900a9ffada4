"""Ctrl-C: pressing it once ends the program.

Python drops an exception that is raised in a finaliser, and libraries in C drop or rename one that
is raised while they call Python. So `interruptible` raises it again until it arrives.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn


@contextmanager
def interruptible() -> Iterator[None]:
    """One Ctrl-C ends this with a KeyboardInterrupt, wherever it falls."""
    pressed = False

    def interrupt(_: int, __: FrameType | None) -> NoReturn:
        nonlocal pressed
        pressed = True
        torch = sys.modules.get("torch")
        if torch and getattr(torch.__spec__, "_initializing", False):
            os._exit(130)  # an exception would abort the process; there is nothing to save yet
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        raise KeyboardInterrupt

    def dropped(what: Any) -> None:
        if what.exc_type is not KeyboardInterrupt:
            say(what)

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # a script in the background, for example, ignores it
        return
    previous = {s: signal.signal(s, interrupt) for s in (signal.SIGINT, signal.SIGALRM)}
    say, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = say
        for number, handler in previous.items():
            signal.signal(number, handler)
        if pressed:
            raise KeyboardInterrupt
