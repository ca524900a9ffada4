"""A running call, and its result."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .calls import Call

CPU_SECONDS = 30
WALL_SECONDS = 150  # the machine may be busy with something else
IDLE_SECONDS = 8  # a process without children that sleeps this long is considered to wait forever


@dataclass
class Result:
    call: Call
    code: int  # negative: the signal that ended it
    hang: str  # why it was killed, if it was
    seconds: float
    cpu: float
    memory: int  # peak memory in bytes
    stdout: bytes
    stderr: str
    folder: Path


@dataclass
class Running:
    """A running call."""

    pid: int
    number: int
    folder: Path
    begun: bool = False  # whether the call's files have been created
    due: float = math.inf  # when to send SIGINT
    hang: str = ""
    cpu: float = 0.0
    status: int = 0

    def __post_init__(self) -> None:
        self.started = self.active = time.monotonic()
        self.usage: resource.struct_rusage | None = None

    def ended(self) -> bool:
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid:
            self.status, self.usage = status, usage
            kill(self.pid)  # and its children
            return True
        now = time.monotonic()
        if not self.begun and (self.folder / "call.json").exists():
            self.begun, seconds = True, self.call().interrupt
            self.due = math.inf if seconds is None else now + seconds
        if now >= self.due:
            self.due = math.inf
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)
        cpu, asleep = activity(self.pid)
        if cpu > self.cpu or not asleep:
            self.cpu, self.active = cpu, now
        if now - self.active > IDLE_SECONDS:
            self.hang = "waits forever"
        if now - self.started > WALL_SECONDS:
            self.hang = f"took over {WALL_SECONDS} s"
        if self.hang:
            kill(self.pid)
        return False

    def call(self) -> Call:
        """The call that the child built."""
        if (self.folder / "broken").exists():
            return Call(self.number, ("fuzzer",), [])
        saved = json.loads((self.folder / "call.json").read_text())
        saved["verb"] = tuple(saved["verb"])
        saved["words"] = [word.encode("latin-1") for word in saved["words"]]
        return Call(**saved)

    def result(self) -> Result:
        code = os.waitstatus_to_exitcode(self.status)
        if code in (-signal.SIGXCPU, -signal.SIGKILL) and not self.hang:
            self.hang = f"took over {CPU_SECONDS} s of processor time"
        assert self.usage is not None
        out, err = self.folder / "stdout", self.folder / "stderr"
        if (self.folder / "broken").exists():
            err = self.folder / "broken"
        return Result(
            self.call(), code, self.hang, time.monotonic() - self.started,
            self.usage.ru_utime + self.usage.ru_stime, self.usage.ru_maxrss * 1024,
            out.read_bytes() if out.exists() else b"",
            err.read_bytes().decode("utf-8", "replace"), self.folder,
        )  # fmt: skip


def kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def activity(pid: int) -> tuple[float, bool]:
    """Processor time so far, and whether the process sleeps and has no children to wait for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return 0.0, False
    return float(fields[11]) + float(fields[12]), fields[0] == "S" and not children.strip()


def remove(folder: Path) -> None:
    """Delete the folder of a call, even if the permissions inside forbid it."""
    if not folder.exists():
        return
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink() and path.is_dir():
            with suppress(OSError):
                path.chmod(stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
