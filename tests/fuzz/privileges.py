"""Drop root privileges, so that a hostile path cannot do harm outside the folder of a call."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

USER = 54_321  # user id of the calls if the fuzzer runs as root; it owns no other files
KEEP_CAPABILITIES, AMBIENT, RAISE = 8, 47, 2  # of prctl
READ_EVERYTHING = 2  # CAP_DAC_READ_SEARCH
VERSION = 0x20080522  # of the capabilities: two words of 32 bits each


def drop() -> None:
    """Become `USER` if this is root.

    If the interpreter or the package is in a folder that only root can read, the process keeps the
    capability to read everything: calls can then read unreadable files, but not write more.
    """
    if os.getuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    readable = everybody_can_read()
    if not readable:
        checked(libc.prctl(KEEP_CAPABILITIES, 1, 0, 0, 0))
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    if not readable:
        bit = 1 << READ_EVERYTHING
        header = (ctypes.c_uint32 * 2)(VERSION, 0)
        data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)  # effective, permitted, inheritable
        checked(libc.capset(header, data))
        checked(libc.prctl(AMBIENT, RAISE, READ_EVERYTHING, 0, 0))  # for programs that it starts
    libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self stays its own


def checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@cache
def everybody_can_read() -> bool:
    places = [Path(sys.executable).resolve(), Path(os.__file__), Path(__file__)]
    places += [Path(sys.modules[name].__path__[0]) for name in ("regard", "torch")]
    return all(parent.stat().st_mode & 1 for place in places for parent in place.parents)
