"""What a measurement needs is predicted, and refused where it does not fit: the system would end
the process in the middle of it, without a word.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from regard.errors import InputError

MEMORY = Path("/proc/meminfo")  # Linux: its MemAvailable counts what the system would give back
GROUPS = (  # limits of a container: what may be used, what is used (cgroup v2, v1)
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def available_memory(device: torch.device) -> int:
    """Bytes that could be allocated on a device now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + kept  # torch keeps what was freed, and gives it out again
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if MEMORY.exists():
        lines = dict(line.split(":") for line in MEMORY.read_text().splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
    for most, used in GROUPS:
        if Path(most).is_file() and (limit := Path(most).read_text().strip()).isdigit():
            free = min(free, max(0, int(limit) - int(Path(used).read_text())))
    return free


def refuse(needed: float, device: torch.device, what: str) -> None:
    """Refuse what needs more bytes than the device has; `what` names the option to blame."""
    free = available_memory(device)
    if needed > free:
        raise InputError(
            f"{what} needs about {size(needed)} but {size(free)} are free on the {device.type}: "
            "ask for less, or use a machine with more"
        )


def size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB"
