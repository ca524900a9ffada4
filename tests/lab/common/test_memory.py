"""Free memory, and the refusal of work that does not fit."""

import pytest
import torch

from regard.errors import InputError
from regard.lab.common import memory

CPU = torch.device("cpu")


def test_free_memory_is_the_available_memory_of_the_system(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16 kB\nMemFree:        2 kB\nMemAvailable:   8 kB\n")
    monkeypatch.setattr(memory, "MEMORY", meminfo)
    monkeypatch.setattr(memory, "GROUPS", ())
    assert memory.available_memory(CPU) == 8 * 1024


@pytest.mark.parametrize(("limit", "free"), [("3000", 2000), ("max", 8192), ("500", 0)])
def test_container_limit_restricts_free_memory(tmp_path, monkeypatch, limit, free):
    meminfo, limit_file, used = (tmp_path / name for name in ("meminfo", "max", "current"))
    meminfo.write_text("MemAvailable:   8 kB\n")
    limit_file.write_text(f"{limit}\n")
    used.write_text("1000\n")
    monkeypatch.setattr(memory, "MEMORY", meminfo)
    monkeypatch.setattr(memory, "GROUPS", ((str(limit_file), str(used)),))
    assert memory.available_memory(CPU) == free


def test_work_that_exceeds_free_memory_is_refused_with_the_estimate(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda device: 21_300_000_000)
    memory.check_memory(21.3e9, CPU, "--lengths 16384")
    with pytest.raises(InputError) as refused:
        memory.check_memory(36e9, CPU, "--lengths 65536")
    assert str(refused.value) == (
        "--lengths 65536 needs about 36.0 GB but 21.3 GB are free on the cpu: "
        "choose smaller sizes, or use a machine with more memory"
    )


def test_total_memory_counts_as_free_without_linux_statistics(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "nothing")
    monkeypatch.setattr(memory, "GROUPS", ())
    assert memory.available_memory(CPU) > 2**28
