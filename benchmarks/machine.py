"""The machine, the package versions and the commit that a measurement was made with."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "transformers", "ctranslate2", "onnxruntime")


def hardware(device: str, threads: int | None = None) -> str:
    """The name of the GPU, or the number of cores and the processor."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    cores = threads or os.cpu_count()
    return f"{cores} core{'' if cores == 1 else 's'} of {processor()}"


def processor() -> str:
    """The name of the processor, where Linux provides it, and its widest vector instructions."""
    cpuinfo = Path("/proc/cpuinfo")
    name, instructions = platform.machine(), ""
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        if key.strip() == "flags":
            flags = value.split()
            instructions = next(
                (f", {f}" for f in ("avx512_vnni", "avx512f", "avx2") if f in flags), ""
            )
    return name + instructions


def versions() -> str:
    """The installed packages that affect the speed."""
    installed = []
    for package in PACKAGES:
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(installed)


def commit() -> str:
    """The commit of the working tree; empty on a machine without git."""
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(describe, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
