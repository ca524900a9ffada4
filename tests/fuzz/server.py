"""Runs calls in forks of a process that has imported everything, a few at a time.

The child gives up its privileges, so that a hostile `--out /dev/null` does no harm and an
unreadable file is unreadable; then it builds the call's files, sets limits, and calls
`regard.cli.main` as `python -m regard` would.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from . import privileges, stock
from .calls import Call, interrupt_of, make_call

CPU_SECONDS = 30
WALL_SECONDS = 150  # the machine may be busy with something else
IDLE_SECONDS = 8  # asleep so long without using the processor, and without children: it waits forever
MEMORY = 4 * 2**30  # of addresses, beside what the imports take
FILE_SIZE = 64 * 2**20
BROKEN = 99  # the exit code of a child in which the fuzzer itself failed


@dataclass
class Result:
    call: Call
    code: int  # negative: the signal that ended it
    hang: str  # why it was killed, if it was
    seconds: float
    cpu: float
    memory: int  # bytes, at most
    stdout: bytes
    stderr: str
    folder: Path


def import_everything() -> None:
    """All of regard, and what its verbs import when they run."""
    import torch

    torch.set_num_threads(1)  # before any parallel work: threads do not survive a fork
    import regard

    for module in pkgutil.walk_packages(regard.__path__, "regard."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "yaml",
                 "matplotlib.figure", "sacrebleu", "safetensors.torch", "tokenizers", "rich.table",
                 "rich.progress", "rich.console", "torch._dynamo", "torch.optim"):  # fmt: skip
        importlib.import_module(name)


def prepare(folder: Path) -> Path:
    """The stock in `folder`: data, trained models, and native code; made only once."""
    made = folder / "stock"
    if (made / "ready").is_file():
        return made
    shutil.rmtree(made, ignore_errors=True)
    stock.write_data(made / "data")
    (made / "models").mkdir()
    stock.copy_native(made / "native")
    environment = {"REGARD_CACHE": str(made / "cache")}
    (made / "cache").mkdir()
    (made / "cache" / "native").symlink_to(made / "native")
    pids = []
    for model in stock.MODELS:
        pid = os.fork()
        if not pid:
            os.environ.update(environment)
            os.chdir(made / "data")
            run_main([word.encode() for word in stock.training_command(model)])
        pids.append(pid)
        if len(pids) == 2:
            wait_for_training(pids)
    wait_for_training(pids)
    (made / "ready").touch()
    return made


def wait_for_training(pids: list[int]) -> None:
    while pids:
        if os.waitpid(pids.pop(), 0)[1]:
            raise RuntimeError("a model of the stock could not be trained")


def run_main(words: list[bytes]) -> NoReturn:
    """`python -m regard` in this process: ends it as Python would."""
    from regard.cli import main

    code = 1
    sys.argv = ["regard", *map(os.fsdecode, words)]
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:  # before `main` could know of it
        code = 130
    except BaseException:  # noqa: BLE001 (as Python does at the end)
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            with suppress(OSError):
                print(f"Exception ignored in: {error!r}", file=sys.stderr, flush=True)
            code = 120
    os._exit(code)


class Server:
    """Runs the calls of one seed. `folder` must be readable for everybody if this is root."""

    def __init__(self, seed: int, folder: Path, jobs: int = 2, keep: bool = False) -> None:
        self.seed, self.folder, self.jobs, self.keep = seed, folder, jobs, keep
        import_everything()
        self.stock = prepare(folder)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        self.addresses = pages * resource.getpagesize() + MEMORY

    def run(self, numbers: Iterable[int]) -> Iterator[Result]:
        """The results of the calls, as they end."""
        waiting, running = iter(numbers), list[Running]()
        while True:
            while len(running) < self.jobs and (number := next(waiting, None)) is not None:
                running.append(self.start(number))
            if not running:
                return
            time.sleep(0.004)
            for one in list(running):
                if one.ended():
                    running.remove(one)
                    yield one.result()
                    if not self.keep:
                        remove(one.folder)

    def start(self, number: int) -> Running:
        folder = self.folder / "calls" / str(number)
        remove(folder)
        folder.mkdir(parents=True)
        if os.getuid() == 0:
            os.chown(folder, privileges.USER, privileges.USER)
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            try:
                self.child(number, folder)
            except BaseException:  # noqa: BLE001
                (folder / "broken").write_text(traceback.format_exc())
            os._exit(BROKEN)
        return Running(pid, number, folder, interrupt_of(self.seed, number))

    def child(self, number: int, folder: Path) -> NoReturn:
        os.setsid()
        privileges.drop()
        os.umask(0o022)
        work = folder / "work"
        for name in ("work", "home", "tmp", "cache"):
            (folder / name).mkdir()
        (folder / "cache" / "native").symlink_to(self.stock / "native")
        os.chdir(work)
        call = make_call(self.seed, number, work, self.stock)
        self.environment(call, folder)
        saved = asdict(call) | {"words": [word.decode("latin-1") for word in call.words]}
        (folder / "call.json.new").write_text(json.dumps(saved))
        err = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT)
        streams = standard_streams(call, folder)
        (folder / "call.json.new").rename(folder / "call.json")
        for limit, value in ((resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_CORE, 0),
                             (resource.RLIMIT_AS, self.addresses),
                             (resource.RLIMIT_FSIZE, FILE_SIZE)):  # fmt: skip
            resource.setrlimit(limit, (value, value))
        connect(streams, err)
        if call.real:
            command = [os.fsencode(sys.executable), b"-m", b"regard", *call.words]
            os.execv(command[0], command)
        reopen_streams(call)
        run_main(call.words)

    def environment(self, call: Call, folder: Path) -> None:
        source = str(Path(sys.modules["regard"].__path__[0]).parent)
        kept = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
        tempfile.tempdir = None  # what the parent chose
        os.environ.clear()
        os.environ.update(kept | {
            "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "LANG": "C.UTF-8",
            "REGARD_CACHE": str(folder / "cache"), "PYTHONPATH": source, "TERM": "xterm",
            "MPLCONFIGDIR": str(folder / "home"), "OMP_NUM_THREADS": "1",
        })  # fmt: skip
        for name, value in call.env.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def standard_streams(call: Call, folder: Path) -> tuple[int, int]:
    """Descriptors of standard input and output; -1: closed."""
    places = {"file": str(folder / "work" / "stdin"), "null": "/dev/null", "zero": "/dev/zero"}
    given = -1 if call.stdin == "closed" else os.open(places[call.stdin], os.O_RDONLY)
    if call.stdout == "left":
        reader, out = os.pipe()
        os.close(reader)
    elif call.stdout == "closed":
        out = -1
    else:
        name = "/dev/full" if call.stdout == "full" else str(folder / "stdout")
        out = os.open(name, os.O_WRONLY | os.O_CREAT)
    return given, out


def connect(streams: tuple[int, int], err: int) -> None:
    for number, descriptor in enumerate((*streams, err)):
        if descriptor >= 0:
            os.dup2(descriptor, number)
        else:
            os.close(number)
    os.closerange(3, 64)


def reopen_streams(call: Call) -> None:
    """The streams of Python as they are when it starts."""
    sys.stdin = sys.stdout = None  # type: ignore[assignment]
    if call.stdin != "closed":
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if call.stdout != "closed":
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115


@dataclass
class Running:
    """A call that runs."""

    pid: int
    number: int
    folder: Path
    interrupt: float | None
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
            kill(os.killpg, self.pid)  # what it may have started
            return True
        now = time.monotonic()
        if self.interrupt is not None and (self.folder / "call.json").exists():
            self.started, self.interrupt, due = now, None, self.interrupt
            self.due: float | None = now + due
        if getattr(self, "due", None) is not None and now >= self.due:  # type: ignore[operator]
            self.due = None
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
            kill(os.killpg, self.pid)
        return False

    def result(self) -> Result:
        if (self.folder / "broken").exists():
            raise RuntimeError(f"call {self.number}: {(self.folder / 'broken').read_text()}")
        saved = json.loads((self.folder / "call.json").read_text())
        saved["verb"] = tuple(saved["verb"])
        saved["words"] = [word.encode("latin-1") for word in saved["words"]]
        code = os.waitstatus_to_exitcode(self.status)
        if code in (-signal.SIGXCPU, -signal.SIGKILL) and not self.hang:
            self.hang = f"took over {CPU_SECONDS} s of processor time"
        assert self.usage is not None
        out, err = self.folder / "stdout", self.folder / "stderr"
        return Result(
            Call(**saved), code, self.hang, time.monotonic() - self.started,
            self.usage.ru_utime + self.usage.ru_stime, self.usage.ru_maxrss * 1024,
            out.read_bytes() if out.exists() else b"",
            err.read_bytes().decode("utf-8", "replace"), self.folder,
        )  # fmt: skip


def kill(how: Callable[[int, int], None], pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        how(pid, signal.SIGKILL)


def activity(pid: int) -> tuple[float, bool]:
    """Processor time so far, and whether the process sleeps and has no children to wait for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return 0.0, False
    return float(fields[11]) + float(fields[12]), fields[0] == "S" and not children.strip()


def remove(folder: Path) -> None:
    """Delete the folder of a call, whatever the permissions in it are."""
    if not folder.exists():
        return
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink() and path.is_dir():
            with suppress(OSError):
                path.chmod(stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
