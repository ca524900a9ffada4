"""Ctrl-C: one is enough.

By itself Python loses some: those that fall into a finaliser, or into a library that turns them
into another error. A person who presses it once should not have to press it again.
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
    """One Ctrl-C ends this with a KeyboardInterrupt, wherever it falls.

    Python drops an exception that is raised in a finaliser, and libraries in C drop or rename one
    that is raised while they call Python: so it is raised again until it arrives here.
    """
    pressed = False

    def interrupt(_: int, __: FrameType | None) -> NoReturn:
        nonlocal pressed
        pressed = True
        torch = sys.modules.get("torch")
        if torch and getattr(torch.__spec__, "_initializing", False):
            os._exit(130)  # an exception there is an abort; and there is nothing to save yet
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        raise KeyboardInterrupt

    def dropped(what: Any) -> None:
        if what.exc_type is not KeyboardInterrupt:
            say(what)

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # in the background of a script, for example, it is to be ignored
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
