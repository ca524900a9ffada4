"""benchmarks/ratios.json: the latest ratios to the peers, which reveal a loss of speed.

A row is one piece of work, done by regard and by a peer in the same run on the same hardware. Each
run compares its rows with the stored ones, prints those that lost more than a tenth, and fails if
there is one. `--keep` replaces the stored rows by those of the run. A row that was measured while
other processes used the machine is neither stored nor compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.machine import commit, hardware, versions
from regard.files import write_file

FILE = Path(__file__).with_name("ratios.json")
LOSS = 0.10  # fraction of a ratio; a larger loss is printed and is a failure
SMALLER_IS_BETTER = ("s", "ms", "GiB")

Key = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One measurement of regard and the same measurement of a peer."""

    benchmark: str
    work: str  # preset, batch, beam: the same for both
    dtype: str  # of regard
    peer: str
    device: str  # cpu or cuda
    hardware: str
    value: float
    peer_value: float
    unit: str
    of_limit: float | None  # the fraction of the hardware limit, if there is one
    date: str = ""
    commit: str = ""
    versions: str = ""
    command: str = ""

    @property
    def key(self) -> Key:
        return self.benchmark, self.work, self.dtype, self.peer, self.device, self.hardware

    @property
    def ratio(self) -> float:
        """The advantage over the peer as a factor; for exponents, per doubling of the size."""
        if self.unit == "exponent":
            return 2.0 ** (self.peer_value - self.value)
        if self.unit in SMALLER_IS_BETTER:
            return self.peer_value / self.value
        return self.value / self.peer_value

    def __str__(self) -> str:
        return f"{self.benchmark}: {self.work}, {self.dtype} vs {self.peer} on {self.hardware}"


def read(file: Path = FILE) -> dict[Key, Row]:
    if not file.exists():
        return {}
    rows = [from_json(values) for values in json.loads(file.read_text(encoding="utf-8"))]
    return {row.key: row for row in rows}


def from_json(values: dict[str, Any]) -> Row:
    return Row(**{name: value for name, value in values.items() if name != "ratio"})


def write(rows: Iterable[Row], file: Path = FILE) -> None:
    """Write one line per row, sorted by name, so that diffs are small."""
    lines = [
        json.dumps({"ratio": round(row.ratio, 4), **asdict(row)}, ensure_ascii=False)
        for row in sorted(rows, key=lambda row: row.key)
    ]
    write_file(file, "[\n" + ",\n".join(lines) + "\n]\n")


def lost(rows: Iterable[Row], stored: dict[Key, Row]) -> list[str]:
    """One line for each row whose ratio is more than a tenth below the stored one."""
    messages = []
    for row in rows:
        before = stored.get(row.key)
        if before is not None and row.ratio < (1 - LOSS) * before.ratio:
            messages.append(
                f"LOST {1 - row.ratio / before.ratio:.0%}: {row}: {row.ratio:.2f}x, "
                f"it was {before.ratio:.2f}x on {before.date} at {before.commit or 'no commit'}"
            )
    return messages


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help=f"store the rows in {FILE.name}")
    parser.add_argument(
        "--ratios", type=Path, default=FILE, metavar="FILE", help="a different file of ratios"
    )


class RatioLog:
    """The rows of one run."""

    def __init__(
        self, benchmark: str, arguments: list[str], options: argparse.Namespace, device: str
    ) -> None:
        self.benchmark, self.device, self.options = benchmark, device, options
        self.hardware = hardware(device, getattr(options, "threads", None))
        self.origin = str(date.today()), commit(), versions(), command(benchmark, arguments)
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
            *self.origin,
        )  # fmt: skip
        self.rows.append(row)

    def close(self) -> int:
        """Print the losses, store the rows if requested, and return the exit code."""
        stored = read(self.options.ratios)
        losses = lost(self.rows, stored)
        for line in losses:
            print(line)
        if self.options.keep:
            write((stored | {row.key: row for row in self.rows}).values(), self.options.ratios)
            print(f"{len(self.rows)} rows stored in {self.options.ratios}")
        return 1 if losses else 0


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def command(benchmark: str, arguments: list[str]) -> str:
    """The command that repeats the run, without the options for storing rows."""
    words = list(arguments)
    if "--ratios" in words:
        place = words.index("--ratios")
        del words[place : place + 2]
    line = shlex.join(
        ["python", "-m", "benchmarks", benchmark, *(w for w in words if w != "--keep")]
    )
    data = os.environ.get("REGARD_DATA")
    return line.replace(data, "$REGARD_DATA") if data else line
