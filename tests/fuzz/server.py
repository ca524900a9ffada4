"""Runs calls in forks of a process that has imported everything, a few at a time.

The child gives up its privileges, so that a hostile `--out /dev/null` does no harm and an
unreadable file is unreadable; then it builds the call's files, sets limits, and calls
`regard.cli.main.main` as `python -m regard` would.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from . import privileges, stock
from .calls import Call, make_call
from .process import CPU_SECONDS, Result, Running, remove

IDLE_SECONDS = (
    8  # asleep so long without using the processor, and without children: it waits forever
)
MEMORY = 4 * 2**30  # bytes of address space, in addition to that of the imports
FILE_SIZE = 64 * 2**20
BROKEN = 99  # the exit code of a child in which the fuzzer itself failed


def import_everything() -> None:
    """Import all of regard and the modules that its verbs import later."""
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
    """The stock in `folder`: data, trained models, and native code; created only once."""
    built = folder / "stock"
    if (built / "ready").is_file():
        return built
    shutil.rmtree(built, ignore_errors=True)
    stock.write_data(built / "data")
    (built / "models").mkdir()
    stock.copy_native(built / "native")
    environment = {"REGARD_CACHE": str(built / "cache")}
    (built / "cache").mkdir()
    (built / "cache" / "native").symlink_to(built / "native")
    pids = []
    for model in stock.MODELS:
        pid = os.fork()
        if not pid:
            os.environ.update(environment)
            os.chdir(built / "data")
            run_main([word.encode() for word in stock.training_command(model)])
        pids.append(pid)
        if len(pids) == 2:
            wait_for_training(pids)
    wait_for_training(pids)
    (built / "ready").touch()
    return built


def wait_for_training(pids: list[int]) -> None:
    while pids:
        if os.waitpid(pids.pop(), 0)[1]:
            raise RuntimeError("a model of the stock could not be trained")


def run_main(words: list[bytes]) -> NoReturn:
    """`python -m regard` in this process: ends it as Python would."""
    from regard.cli.main import main

    code = 1
    try:
        sys.argv = ["regard", *map(os.fsdecode, words)]
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:  # before `main` could handle it
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
    """Runs the calls of one seed. If this is root, `folder` must be readable by all users."""

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
            except KeyboardInterrupt:  # before `main` could handle it
                os._exit(130)
            except BaseException:  # noqa: BLE001 (reported as a fault of the fuzzer)
                (folder / "broken").write_text(traceback.format_exc())
            os._exit(BROKEN)
        return Running(pid, number, folder)

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
        for path in work.iterdir():
            if path.is_fifo() and path.name.encode() in call.words:
                feed(path)
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
        variables = {
            name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ
        }
        tempfile.tempdir = None  # forget the choice of the parent process
        os.environ.clear()
        os.environ.update(variables | {
            "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "LANG": "C.UTF-8",
            "REGARD_CACHE": str(folder / "cache"), "PYTHONPATH": source, "TERM": "xterm",
            "MPLCONFIGDIR": str(folder / "home"), "OMP_NUM_THREADS": "1",
        })  # fmt: skip
        for name, value in call.env.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def feed(path: Path) -> None:
    """Start a process that writes a few lines to a named pipe, once, as `<(cat file)` does. It is not
    a child of the call, which would then seem to wait for it, but it ends with the call's group."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    elif os.fork():
        os._exit(0)
    else:
        with suppress(OSError):
            path.write_bytes(b"A dog runs.\tEin Hund.\n" * 20)
        os._exit(0)


def standard_streams(call: Call, folder: Path) -> tuple[int, int]:
    """Descriptors of standard input and output; -1: closed."""
    places = {"file": str(folder / "work" / "stdin"), "null": "/dev/null", "zero": "/dev/zero"}
    input_file = -1 if call.stdin == "closed" else os.open(places[call.stdin], os.O_RDONLY)
    if call.stdout == "left":
        reader, out = os.pipe()
        os.close(reader)
    elif call.stdout == "closed":
        out = -1
    else:
        name = "/dev/full" if call.stdout == "full" else str(folder / "stdout")
        out = os.open(name, os.O_WRONLY | os.O_CREAT)
    return input_file, out


def connect(streams: tuple[int, int], err: int) -> None:
    for number, descriptor in enumerate((*streams, err)):
        if descriptor >= 0:
            os.dup2(descriptor, number)
        else:
            os.close(number)
    os.closerange(3, 64)


def reopen_streams(call: Call) -> None:
    """The streams of Python as they are when it starts."""
    sys.stdin = sys.stdout = None
    if call.stdin != "closed":
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if call.stdout != "closed":
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    errors = "backslashreplace"
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
