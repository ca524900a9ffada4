"""benchmarks/ratios.json: the last ratios, so that whoever loses one notices.

A row is one piece of work, done by regard and by a peer in the same run on the same hardware. Each
run compares its rows with those that were kept, says which lost more than a tenth, and fails if
one did. `--keep` writes its rows instead of the old ones. A row that was measured while something
else kept the machine busy is neither kept nor counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from regard.files import write_file

FILE = Path(__file__).with_name("ratios.json")
LOSS = 0.10  # of a ratio: more is said, and is a failure
PACKAGES = ("torch", "transformers", "ctranslate2", "onnxruntime")
SMALLER_IS_BETTER = ("s", "ms", "GiB")

Key = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One figure of regard beside one of a peer."""

    benchmark: str
    work: str  # preset, batch, beam: what both did
    dtype: str  # of regard
    peer: str
    device: str  # its kind: cpu, cuda
    hardware: str
    value: float
    peer_value: float
    unit: str
    of_limit: float | None  # the fraction of what the machine could do, where there is a limit
    date: str = ""
    commit: str = ""
    versions: str = ""
    command: str = ""

    @property
    def key(self) -> Key:
        return self.benchmark, self.work, self.dtype, self.peer, self.device, self.hardware

    @property
    def ratio(self) -> float:
        """How many times as good as the peer; of exponents, each time that the size doubles."""
        if self.unit == "exponent":
            return 2.0 ** (self.peer_value - self.value)
        if self.unit in SMALLER_IS_BETTER:
            return self.peer_value / self.value
        return self.value / self.peer_value

    def __str__(self) -> str:
        return f"{self.benchmark}: {self.work}, {self.dtype} beside {self.peer} on {self.hardware}"


def read(file: Path = FILE) -> dict[Key, Row]:
    if not file.exists():
        return {}
    rows = [from_json(values) for values in json.loads(file.read_text(encoding="utf-8"))]
    return {row.key: row for row in rows}


def from_json(values: dict[str, Any]) -> Row:
    return Row(**{name: value for name, value in values.items() if name != "ratio"})


def write(rows: Iterable[Row], file: Path = FILE) -> None:
    """A line for each row, in the order of their names, so that a change is a line's change."""
    lines = [
        json.dumps({"ratio": round(row.ratio, 4), **asdict(row)}, ensure_ascii=False)
        for row in sorted(rows, key=lambda row: row.key)
    ]
    write_file(file, "[\n" + ",\n".join(lines) + "\n]\n")


def lost(rows: Iterable[Row], kept: dict[Key, Row]) -> list[str]:
    """A line for each row whose ratio is more than a tenth below the kept one."""
    said = []
    for row in rows:
        before = kept.get(row.key)
        if before is not None and row.ratio < (1 - LOSS) * before.ratio:
            said.append(
                f"LOST {1 - row.ratio / before.ratio:.0%}: {row}: {row.ratio:.2f}x, "
                f"it was {before.ratio:.2f}x on {before.date} at {before.commit or 'no commit'}"
            )
    return said


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help=f"write the rows to {FILE.name}")
    parser.add_argument("--ratios", type=Path, default=FILE, metavar="FILE", help="another such")


class Book:
    """The rows of one run."""

    def __init__(
        self, benchmark: str, arguments: list[str], options: argparse.Namespace, device: str
    ) -> None:
        self.benchmark, self.device, self.options = benchmark, device, options
        self.hardware = hardware(device, getattr(options, "threads", None))
        self.told = str(date.today()), commit(), versions(), command(benchmark, arguments)
        self.rows: list[Row] = []

    def add(
        self,
        work: str,
        dtype: str,
        value: float,
        unit: str,
        peer: str,
        peer_value: float,
        of_limit: float | None,
    ) -> None:
        row = Row(
            self.benchmark, work, dtype, peer, self.device, self.hardware, rounded(value),
            rounded(peer_value), unit, None if of_limit is None else rounded(of_limit),
            *self.told,
        )  # fmt: skip
        self.rows.append(row)

    def close(self) -> int:
        """Say what was lost, keep what shall be kept; the exit code."""
        kept = read(self.options.ratios)
        said = lost(self.rows, kept)
        for line in said:
            print(line)
        if self.options.keep:
            write((kept | {row.key: row for row in self.rows}).values(), self.options.ratios)
            print(f"{len(self.rows)} rows kept in {self.options.ratios}")
        return 1 if said else 0


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def command(benchmark: str, arguments: list[str]) -> str:
    """How to run it again; where its rows are kept makes no difference."""
    words = list(arguments)
    if "--ratios" in words:
        place = words.index("--ratios")
        del words[place : place + 2]
    said = shlex.join(
        ["python", "-m", "benchmarks", benchmark, *(w for w in words if w != "--keep")]
    )
    data = os.environ.get("REGARD_DATA")  # where it lies is this machine's business
    return said.replace(data, "$REGARD_DATA") if data else said


def hardware(device: str, threads: int | None = None) -> str:
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    cores = threads or os.cpu_count()
    return f"{cores} core{'' if cores == 1 else 's'} of {processor()}"


def processor() -> str:
    """The processor's name, where Linux tells it, and the widest of its instructions."""
    cpuinfo = Path("/proc/cpuinfo")
    name, can = platform.machine(), ""
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        if key.strip() == "flags":
            flags = value.split()
            can = next((f", {f}" for f in ("avx512_vnni", "avx512f", "avx2") if f in flags), "")
    return name + can


def versions() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def commit() -> str:
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(describe, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a machine without git
        return ""
    return done.stdout.strip()
