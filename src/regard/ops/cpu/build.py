"""Build the C++ libraries of this folder on first use. They are optional.

Each .cpp file is one library of plain C functions over raw pointers. It is built for the
instructions of this machine (`VARIANTS`) and kept in the cache. Without a compiler PyTorch does the
same work, and one line reports it. PyTorch is also used while a person waits for a single
prediction (`later`); another process then builds the missing libraries for later calls. The
libraries share PyTorch's OpenMP threads: a second pool of threads would compete with the first for
the same cores.

REGARD_NATIVE_FLAGS adds flags to the compiler command, for example for sanitizers (`make
sanitize`). The name of a library in the cache depends on them.

All functions can be called from several threads. `without` and `later` apply to the code that they
enclose and to no other thread.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache, wraps
from pathlib import Path
from threading import RLock
from typing import ParamSpec, TypeVar

from regard.errors import InputError
from regard.files import PREFIX, cache_folder, remove_leftovers

FOLDER = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-fopenmp"]
# Flags for the compiler and the processor features that they need, fastest variant first.
VARIANTS: dict[str, tuple[list[str], set[str]]] = {
    "avx512": (
        ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mavx512vnni",
         "-mavx2", "-mfma", "-mf16c"],
        {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni"},
    ),
    "avx2": (["-mavx2", "-mfma", "-mf16c"], {"avx2", "fma", "f16c"}),
    "plain": ([], set()),
}  # fmt: skip
SECONDS = 300  # time limit of the compiler
FAILED = ".failed"  # marks a failed background build: the next use builds again and reports why

P = ParamSpec("P")
R = TypeVar("R")

_off: ContextVar[bool] = ContextVar("_off", default=False)  # set by `without`
_later: ContextVar[ExitStack | None] = ContextVar("_later", default=None)  # set by `later`


def once(function: Callable[P, R]) -> Callable[P, R]:
    """Like functools.cache, but the function never runs twice with the same arguments: if several
    threads call it at the same time, one runs it and the others wait for the result."""
    results: dict[object, R] = {}
    lock = RLock()

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        assert not kwargs, "arguments are positional"
        if args not in results:
            with lock:
                if args not in results:
                    results[args] = function(*args, **kwargs)
        return results[args]

    call.cache_clear = results.clear  # type: ignore[attr-defined]
    return call


def variant() -> str | None:
    """The variant for this machine, or the one that REGARD_NATIVE names (off: none)."""
    name = os.environ.get("REGARD_NATIVE", "auto")
    if name == "off" or _off.get():
        return None
    if name == "auto":
        return possible()[0]
    if name not in possible():
        raise InputError(
            f"REGARD_NATIVE={name} does not run on this processor: use one of auto, off, "
            f"{', '.join(possible())}"
        )
    return name


@contextmanager
def without() -> Iterator[None]:
    """Use only PyTorch in this block, so that hooks on its modules are called."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def possible() -> list[str]:
    """The variants that this processor can run, the fastest first."""
    return [name for name, (_, needed) in VARIANTS.items() if needed <= features()]


@cache
def features() -> frozenset[str]:
    """The features of the processor."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


@contextmanager
def later(hurried: bool) -> Iterator[None]:
    """If `hurried`, skip libraries that were never built. At the end of the block, start a process
    that builds them; it continues after this process has ended.

    From the first library that is skipped to the end of the block, PyTorch uses one thread: in the
    small products of one sentence, threads would mostly wait for each other, especially on a busy
    machine.
    """
    with ExitStack() as at_end:
        token = _later.set(at_end if hurried else None)
        try:
            yield
        finally:
            _later.reset(token)


def library(name: str) -> ctypes.CDLL | None:
    """The library built from `name`.cpp, or None if it is not available."""
    chosen = variant()
    if chosen is None or (_later.get() is not None and left_for_later(name, chosen)):
        return None
    return opened(name, chosen)


@once
def left_for_later(name: str, chosen: str) -> bool:
    """Whether the library can be built but is not yet; if so, `later` builds it at its end."""
    import torch

    try:
        path, compiler = place(name, chosen)
    except OSError:  # for example, no cache folder: `opened` reports it
        return False
    if compiler is None or path.is_file() or path.with_suffix(FAILED).is_file():
        return False
    at_end = _later.get()
    assert at_end is not None, "only called inside `later`"
    at_end.callback(build_elsewhere, name, chosen)
    at_end.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    return True


def build_elsewhere(name: str, chosen: str) -> None:
    """Build a library in a process that continues after this one has ended."""
    paths = [str(FOLDER.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with suppress(OSError):  # then it is built on the next use
        subprocess.Popen(
            [sys.executable, "-P", "-m", __package__, name, chosen],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


@once
def opened(name: str, chosen: str) -> ctypes.CDLL | None:
    import torch  # noqa: F401  # before the library, so that both use PyTorch's OpenMP

    try:
        return ctypes.CDLL(str(built(name, chosen)))
    except OSError as error:
        reason = str(error)
    except subprocess.TimeoutExpired:
        reason = f"the compiler did not finish within {SECONDS} seconds"
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error:" in line] or ["no message"]
        reason = f"the compiler failed: {lines[0].strip()}"
    report_missing(reason)
    return None


@once
def report_missing(reason: str) -> None:
    """Print the reason once for all libraries."""
    print(
        f"regard: native code is not available: {reason}; PyTorch is used instead, which is slower "
        "(set REGARD_NATIVE=off to hide this message)",
        file=sys.stderr,
    )


def place(name: str, chosen: str) -> tuple[Path, str | None]:
    """The path of the library, and the compiler."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    sources = [FOLDER / f"{name}.cpp", *sorted(FOLDER.glob("*.h"))]
    content = b"".join(path.read_bytes() for path in sources)
    command = " ".join([str(compiler), *flags(chosen)])
    key = hashlib.sha256(content + command.encode()).hexdigest()[:16]
    try:
        folder = cache_folder()
    except InputError as error:  # native code is optional: PyTorch is used without it
        raise OSError(str(error)) from None
    return folder / "native" / f"{name}-{chosen}-{key}.so", compiler


def flags(chosen: str) -> list[str]:
    """The compiler's flags for a variant, with those of REGARD_NATIVE_FLAGS last."""
    return [*FLAGS, *VARIANTS[chosen][0], *os.environ.get("REGARD_NATIVE_FLAGS", "").split()]


def built(name: str, chosen: str) -> Path:
    """The file of the library, which is compiled if it does not exist."""
    path, compiler = place(name, chosen)
    if path.is_file():
        return path
    if compiler is None:
        raise OSError(f"there is no C++ compiler ({', '.join(COMPILERS)})")
    path.parent.mkdir(exist_ok=True)
    if sys.stderr.isatty():  # the first call takes some seconds
        print(f"regard: compiling native code for this processor ({name})", file=sys.stderr)
    with alone(path.parent):
        if path.is_file():  # another process has built it
            return path
        remove_leftovers(path.parent)
        temporary = path.with_name(f"{PREFIX}{os.getpid()}-{path.name}")
        source = str(FOLDER / f"{name}.cpp")
        try:
            subprocess.run(
                [compiler, *flags(chosen), source, "-o", str(temporary)],
                check=True, capture_output=True, text=True, timeout=SECONDS,
            )  # fmt: skip
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process build at a time; the lock is released when its process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(ImportError, OSError):  # without locks two processes may build at once
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
