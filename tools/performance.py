"""Write docs/performance.md from benchmarks/ratios.json: what was reached beside the goals.

python -m benchmarks performance [--add FILE]

Every figure of a table is a row that a benchmark kept, with its command; nothing is written by
hand. --add takes rows over that were kept on another machine (a GPU's, say).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks import ratios
from benchmarks.goals import SECTIONS, Goal, reached
from benchmarks.performance_text import HEAD, PARTS, Part
from benchmarks.ratios import Row
from regard.files import write_file

PAGE = Path("docs/performance.md")


def page(rows: Iterable[Row]) -> str:
    rows = list(rows)
    parts = [HEAD]
    for part in PARTS:
        own = [row for row in rows if (row.benchmark, row.device) in part.rows]
        parts += [f"## {part.title}\n", part.text]
        if part.rows and not own:
            parts.append(f"Not measured yet: `{part.command}`.\n")
        for hardware in dict.fromkeys(row.hardware for row in own):
            here = [row for row in own if row.hardware == hardware]
            parts += [tables(part, here), source(here)]
    return "\n".join(parts)


def tables(part: Part, rows: list[Row]) -> str:
    """Speeds in a table with a column for each program; everything else line by line."""
    fast = [row for row in rows if row.unit == "tokens/s"]
    others = [row for row in rows if row.unit != "tokens/s"]
    goals = {(goal.benchmark, goal.work): goal for goal in SECTIONS.get(part.goals, [])}
    return "\n".join(
        ([speed_table(fast, goals)] if fast else [])
        + ([other_table(others, goals)] if others else [])
    )


def speed_table(rows: list[Row], goals: dict[tuple[str, str], Goal]) -> str:
    """Tokens a second of each program, the fraction of the limit beside ours, and the ratio."""
    ours, peers = dict[str, None](), dict[str, None]()
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: place(row, goals)):
        name = f"regard {row.dtype}"
        ours[name], peers[row.peer] = None, None
        found = cells.setdefault((row.benchmark, row.work), {})
        limit = "" if row.of_limit is None else f" ({row.of_limit:.0%})"
        found[name] = f"{row.value:,.0f}{limit}"
        found[row.peer] = f"{row.peer_value:,.0f}"
    names = [
        *sorted(ours, key=precision),
        *sorted(peers, key=lambda name: (name[:8], precision(name))),
    ]
    head = ["work", *names, "best beside best", "goal", ""]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for key, found in cells.items():
        goal = goals.get(key) or Goal(*key, device=rows[0].device)
        said = [key[1], *(found.get(name, "-") for name in names), *verdict(rows, goal)]
        lines.append(f"| {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def other_table(rows: list[Row], goals: dict[tuple[str, str], Goal]) -> str:
    lines = ["| what | precision | measured | beside | goal | |", "|---" * 6 + "|"]
    for row in sorted(rows, key=lambda row: place(row, goals)):
        goal = goals.get((row.benchmark, row.work))
        met = verdict(rows, goal)[1:] if goal else ["", ""]
        unit = "" if row.unit == "exponent" else f" {row.unit}"
        lines.append(
            f"| {row.work} | {row.dtype} | {row.value:,.4g}{unit} "
            f"| {row.peer}: {row.peer_value:,.4g}{unit} | {met[0]} | {met[1]} |"
        )
    return "\n".join(lines) + "\n"


def verdict(rows: list[Row], goal: Goal) -> list[str]:
    """The ratio of the best, the goal, and whether it was reached."""
    found = reached(rows, goal)
    if found is None:
        return ["-", "", ""]
    ratio = f"{found.row.ratio:.2f}x {found.row.peer} ({found.row.dtype})"
    if goal.times is None and goal.figure is None:
        return [ratio, "", ""]
    return [ratio, goal.said(found.row.unit), "reached" if found.meets(goal) else "**not reached**"]


def place(row: Row, goals: dict[tuple[str, str], Goal]) -> tuple[int, str]:
    """Rows with goals first, in the order of the goals."""
    order = list(goals)
    key = row.benchmark, row.work
    return (order.index(key) if key in order else len(order)), row.work


def precision(name: str) -> int:
    """float32, bfloat16, int8, int8 by two workers."""
    found = [i for i, kind in enumerate(("float32", "bfloat16", "int8", "workers")) if kind in name]
    return max(found, default=0)


def source(rows: list[Row]) -> str:
    """How to measure them again, and with what they were."""
    runs = dict.fromkeys(
        (row.command, row.hardware, row.versions, row.date, row.commit) for row in rows
    )
    return "\n".join(
        f"- `{command}`: {hardware}; {versions}; {day}, commit {commit or 'not told'}"
        for command, hardware, versions, day, commit in runs
    ) + "\n"  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks performance", description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGE)
    parser.add_argument("--ratios", type=Path, default=ratios.FILE, metavar="FILE")
    parser.add_argument("--add", type=Path, metavar="FILE", help="take its rows over first")
    options = parser.parse_args(arguments)
    rows = ratios.read(options.ratios)
    if options.add is not None:
        for key, row in ratios.read(options.add).items():
            # a machine without git does not know its commit: it was this one
            rows[key] = row if row.commit else replace(row, commit=ratios.commit())
        ratios.write(rows.values(), options.ratios)
    write_file(options.out, page(rows.values()))
    print(f"{options.out} written")
    return 0
