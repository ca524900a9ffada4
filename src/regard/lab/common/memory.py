"""Free memory. A measurement that would not fit is refused before it starts; otherwise the system
would kill the process without a message."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from regard.errors import InputError

MEMORY = Path("/proc/meminfo")  # Linux: MemAvailable includes what the system can reclaim
GROUPS = (  # limit and usage of a container (cgroup v2, v1)
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory(device: torch.device) -> int:
    """Bytes that can be allocated on a device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # torch's cache of freed blocks is reused for new tensors.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if MEMORY.exists():
        lines = dict(line.split(":") for line in MEMORY.read_text().splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
    for limit_file, used in GROUPS:
        if Path(limit_file).is_file() and (limit := Path(limit_file).read_text().strip()).isdigit():
            free = min(free, max(0, int(limit) - int(Path(used).read_text())))
    return free


def check_memory(needed: float, device: torch.device, work: str) -> None:
    """Refuse work that needs more bytes than are free; `work` names the options that cause it."""
    free = available_memory(device)
    if needed > free:
        raise InputError(
            f"{work} needs about {gigabytes(needed)} but {gigabytes(free)} are free on the "
            f"{device.type}: choose smaller sizes, or use a machine with more memory"
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB"
