"""Write docs/performance.md from benchmarks/ratios.json: measurements next to the goals.

Every figure in a table comes from a row that a benchmark stored, with its command. `--add` first
copies the rows that were stored on a different machine, for example one with a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import machine, ratios
from benchmarks.ratios import Row
from experiments.template import fill
from regard.files import write_file
from tools.goals import SECTIONS, Goal, reached

PAGE = Path("docs/performance.md")
TEMPLATE = Path(__file__).parent / "templates" / "performance.md"
SPEEDS = ("tokens/s", "sentences/s", "requests/s")
TEST = "$REGARD_DATA/multi30k/test_2016_flickr"


@dataclass(frozen=True)
class Part:
    """The tables of one section of the page."""

    rows: tuple[tuple[str, str], ...]  # benchmark and device
    command: str  # that measures them


PARTS = {  # placeholder of the template, and key of SECTIONS where there are goals
    "training_gpu": Part((("train", "cuda"), ("startup", "cuda")), "train --compile-peers"),
    "training_cpu": Part((("step", "cpu"),), "step"),
    "decoding_cpu": Part((("decode", "cpu"),), "decode"),
    "encoders": Part((("encoders", "cpu"),), "encoders"),
    "generators": Part((("generators", "cpu"),), "generators"),
    "precision": Part(
        (("precision", "cpu"),),
        f"precision -m runs/multi30k --data {TEST}.en.xz {TEST}.de.xz",
    ),
    "decoding_gpu": Part(
        (("decode", "cuda"),),
        "decode --device cuda --presets base --batches 1 32 256 --dtype bfloat16",
    ),
    "scaling": Part((("scaling", "cpu"), ("scaling", "cuda")), "scaling"),
    "startup": Part((("startup", "cpu"),), "startup"),
    "latency": Part((("latency", "cpu"),), "latency"),
    "serving": Part((("serve", "cpu"),), "serve"),
    "chat": Part((("chat", "cpu"),), "chat"),
    "embed": Part((("embed", "cpu"),), "embed"),
}


def page(rows: Iterable[Row]) -> str:
    rows = list(rows)
    return fill(TEMPLATE, {name: section(name, rows) for name in PARTS})


def section(name: str, rows: list[Row]) -> str:
    """The tables of one section, for each machine that has rows."""
    part = PARTS[name]
    own = [row for row in rows if (row.benchmark, row.device) in part.rows]
    if not own:
        return f"Not measured yet: `python -m benchmarks {part.command} --keep`."
    parts = []
    for hardware in dict.fromkeys(row.hardware for row in own):
        here = [row for row in own if row.hardware == hardware]
        parts += [tables(SECTIONS.get(name, []), here), source(here)]
    return "\n".join(parts).rstrip("\n")


def tables(section_goals: list[Goal], rows: list[Row]) -> str:
    """Speeds in a table with one column per program; all other rows in a second table."""
    fast = [row for row in rows if row.unit in SPEEDS]
    others = [row for row in rows if row.unit not in SPEEDS]
    goals = {(goal.benchmark, goal.work): goal for goal in section_goals}
    return "\n".join(
        ([speed_table(fast, goals)] if fast else [])
        + ([other_table(others, goals)] if others else [])
    )


def speed_table(rows: list[Row], goals: dict[tuple[str, str], Goal]) -> str:
    """The speed of each program, the fraction of the limit of regard, and the ratio."""
    ours, peers = dict[str, None](), dict[str, None]()
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: place(row, goals)):
        name = f"regard {row.dtype}"
        ours[name], peers[row.peer] = None, None
        values = cells.setdefault((row.benchmark, row.work), {})
        limit = "" if row.of_limit is None else f" ({row.of_limit:.0%})"
        values[name] = f"{speed(row.value)}{limit}"
        values[row.peer] = speed(row.peer_value)
    names = [
        *sorted(ours, key=precision),
        *sorted(peers, key=lambda name: (name[:8], precision(name))),
    ]
    head = ["work", *names, "best to best peer", "goal", ""]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for key, values in cells.items():
        goal = goals.get(key) or Goal(*key, device=rows[0].device)
        columns = [key[1], *(values.get(name, "-") for name in names), *verdict(rows, goal)]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10_000 else f"{value:,.4g}"


def other_table(rows: list[Row], goals: dict[tuple[str, str], Goal]) -> str:
    lines = ["| work | precision | measured | compared with | goal | |", "|---" * 6 + "|"]
    for row in sorted(rows, key=lambda row: place(row, goals)):
        goal = goals.get((row.benchmark, row.work))
        met = verdict(rows, goal)[1:] if goal else ["", ""]
        unit = "" if row.unit == "exponent" else f" {row.unit}"
        lines.append(
            f"| {row.work} | {row.dtype} | {figure(row.value)}{unit} "
            f"| {row.peer}: {figure(row.peer_value)}{unit} | {met[0]} | {met[1]} |"
        )
    return "\n".join(lines) + "\n"


def verdict(rows: list[Row], goal: Goal) -> list[str]:
    """The ratio of the best precision, the goal, and whether it was reached."""
    best = reached(rows, goal)
    if best is None:
        return ["-", "", ""]
    ratio = f"{best.row.ratio:.2f}x {best.row.peer} ({best.row.dtype})"
    if goal.times is None and goal.figure is None:
        return [ratio, "", ""]
    return [
        ratio,
        goal.describe(best.row.unit),
        "reached" if best.meets(goal) else "**not reached**",
    ]


def place(row: Row, goals: dict[tuple[str, str], Goal]) -> tuple[int, str]:
    """The sort key of a row: rows with goals come first, in the order of the goals."""
    order = list(goals)
    key = row.benchmark, row.work
    return (order.index(key) if key in order else len(order)), row.work


def precision(name: str) -> int:
    """The sort key of a program: float32, bfloat16, int8, int8 with two workers."""
    kinds = [i for i, kind in enumerate(("float32", "bfloat16", "int8", "workers")) if kind in name]
    return max(kinds, default=0)


def source(rows: list[Row]) -> str:
    """The commands that measured the rows, with hardware, versions and date."""
    runs = dict.fromkeys(
        (row.command, row.hardware, row.versions, row.date, row.commit) for row in rows
    )
    return "\n".join(
        f"- `{command}`: {hardware}; {versions}; {day}, commit {commit or 'unknown'}"
        for command, hardware, versions, day, commit in runs
    ) + "\n"  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools performance", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=PAGE, help="page to write (default: %(default)s)"
    )
    parser.add_argument(
        "--ratios",
        type=Path,
        default=ratios.FILE,
        metavar="FILE",
        help="rows to show (default: benchmarks/ratios.json)",
    )
    parser.add_argument("--add", type=Path, metavar="FILE", help="first copy the rows of this file")
    options = parser.parse_args(arguments)
    rows = ratios.read(options.ratios)
    if options.add is not None:
        for key, row in ratios.read(options.add).items():
            # A machine without git does not know the commit; it ran this one.
            rows[key] = row if row.commit else replace(row, commit=machine.commit())
        ratios.write(rows.values(), options.ratios)
    write_file(options.out, page(rows.values()))
    print(f"{options.out} written")
    return 0
