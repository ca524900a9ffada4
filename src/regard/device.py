"""The hardware: choice of device and dtype, memory settings, and peak speed."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import torch

from regard.errors import InputError

FLOAT16 = "float16 overflows in a Transformer: use bfloat16, which has the range of float32"
KINDS = ("cpu", "cuda", "mps")
NO_FLOAT64 = {"mps"}  # kinds of devices without float64


def choose_device(name: str | torch.device, rank: int | None = None) -> torch.device:
    """The device with this name.

    Args:
        name: "auto" (the GPU if there is one, otherwise the CPU), "cpu", "cuda", "cuda:1" (the GPU
            with this index), "mps" (an Apple GPU), or a torch.device.
        rank: the index of this process among those that train on this computer; each uses a GPU of
            its own.

    Raises:
        InputError: the name is unknown, or there is no such device.
    """
    text = str(name)
    if text == "auto":
        text = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = text.partition(":")
    if kind not in KINDS or not (index.isdecimal() or text == kind):
        raise InputError(f"device={name}: choose auto, cpu, cuda, cuda:INDEX or mps")
    if kind == "cuda" and index and rank is not None:
        raise InputError(
            f"device={name} is one GPU, but each of several processes needs its own: use cuda"
        )
    device = torch.device(kind, int(index or rank or 0)) if kind == "cuda" else torch.device(kind)
    check_device(device, text)
    return device


def check_device(device: torch.device, name: str = "") -> None:
    """Raise InputError if this computer does not have the device; the message has its `name`."""
    name = name or str(device)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise InputError(f"device={name}: this computer has no CUDA GPU; use cpu or auto")
        if (device.index or 0) >= count:
            last = f"the last GPU here is cuda:{count - 1}"
            raise InputError(f"device={name}: there is no such device; {last}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device=mps: PyTorch finds no Apple GPU here; use cpu or auto")


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """A context in which a GPU is the current device, which Triton and CUDA graphs need. Does
    nothing for other devices."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def is_current(device: torch.device) -> bool:
    """Whether a GPU is the current device, so that Triton kernels can read its memory."""
    return device.index is None or device.index == torch.cuda.current_device()


def wide_dtype(device: torch.device) -> torch.dtype:
    """The dtype of sums over many numbers: float64, where the device has it."""
    return torch.float32 if device.type in NO_FLOAT64 else torch.float64


def search_device(device: torch.device) -> torch.device:
    """Where the scores of a search are computed, which are float64: the device of the model, or the
    CPU if that device has no float64."""
    return torch.device("cpu") if device.type in NO_FLOAT64 else device


def choose_dtype(name: str, device: torch.device, fast_bfloat16: Callable[[], bool]) -> torch.dtype:
    """The dtype called `name`; `auto` is bfloat16 where it is faster, otherwise float32.

    fast_bfloat16: whether bfloat16 is faster on this CPU (on a GPU it always is); called only if
    that is needed.
    """
    if name == "auto":
        short = device.type == "cuda" or (device.type == "cpu" and fast_bfloat16())
        name = "bfloat16" if short else "float32"
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product, measured: an upper limit for a model."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = math.inf
    for _ in range(5):
        synchronise(device)
        start = time.perf_counter()
        a @ b
        synchronise(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has finished its work; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release_freed_memory() -> None:
    """Return memory that was freed to the system. Does nothing on systems other than Linux with
    glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks instead of returning them to the system, which would cost
    page faults in the next step. Does nothing on systems other than Linux with glibc."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
