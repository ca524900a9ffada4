"""Tables of numbers in a terminal: vectors, matrices, ids and guesses.

Every table says the same thing twice, by colour and by characters (a number, a shade, a bar):
a projector, a pipe and a black and white print must all be readable.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

Values = list[list[float | None]]

SHADES = " ░▒▓█"
EIGHTHS = " ▏▎▍▌▋▊▉"
MOST_ROWS, MOST_COLUMNS, MOST_GUESSES = 9, 8, 3  # of a table that need not be whole
# Dark tiles with white figures: both are set, so a light and a dark terminal show the same.
DARK, WARM, COLD = (34, 36, 44), (214, 104, 24), (40, 104, 204)


def visible_name(character: str) -> str:
    """A character as a label: what cannot be seen by itself gets a sign or its code point."""
    if character == " ":
        return "␣"
    if not character.isprintable():
        return f"U+{ord(character):04X}"
    return f"◌{character}" if unicodedata.category(character).startswith("M") else character


def vectors(rows: Sequence[str], values: Values, width: int) -> Table:
    """One row a vector, as many of its first numbers as fit, and how many more there are."""
    shown: list[int | None] = list(range(len(rows)))
    if len(rows) > MOST_ROWS:
        shown = [*range(MOST_ROWS - 2), None, len(rows) - 1]
    label = max(cell_len(name) for name in rows)
    figures = [[_figure(value) for value in row] for row in values]
    cell = 1 + max(len(text) for row in figures for text in row[:MOST_COLUMNS])
    whole = len(values[0])
    count = max(1, min(whole, MOST_COLUMNS, (width - label - len(f" … {whole}")) // cell))
    size = _largest(values)
    table = Table.grid()
    for i in shown:
        if i is None:
            table.add_row(Text("⋮", "dim", justify="right"))
            continue
        line = Text()
        for text, value in zip(figures[i][:count], values[i], strict=False):
            line.append(text.rjust(cell), _tile((value or 0.0) / size))
        if whole > count:
            line.append(f" … {whole - count}", "dim")
        table.add_row(_label(rows[i]), line)
    return table


def matrix(rows: Sequence[str], columns: Sequence[str], values: Values, width: int) -> Table:
    """Rows are queries, columns keys: number and shade, or shades alone where there is no room.

    An entry that is None may not be seen.
    """
    seen = [value for row in values for value in row if value is not None]
    low, high = min(0.0, *seen), max(seen)  # weights start at 0, whatever the smallest is
    figures = [[_figure(value) for value in row] for row in values]
    cell = 2 + max(len(text) for row in figures for text in row)
    cell = max(cell, *(1 + cell_len(name) for name in columns))
    fits = max(cell_len(name) for name in rows) + 1 + cell * len(columns) <= width
    cell = cell if fits else 2
    header = Text()
    for name in columns:
        header.append((name if fits else name[:2]).rjust(cell - cell_len(name) + len(name)), "dim")
    table = Table.grid()
    table.add_row("", header)
    for name, row, texts in zip(rows, values, figures, strict=True):
        line = Text()
        for value, text in zip(row, texts, strict=True):
            share = 0.0 if value is None else (value - low) / ((high - low) or 1.0)
            shade = SHADES[round(share * (len(SHADES) - 1))]
            ink = f"{text:>{cell - 1}}{shade}" if fits else ("·" if value is None else shade) * 2
            line.append(ink, _tile(share) if value is not None else "dim")
        table.add_row(_label(name), line)
    return table


def strip(lines: dict[str, Sequence[str]], width: int) -> RenderableType:
    """Labels side by side, in as many strips as the width asks for: tokens above their ids."""
    cells = [2 + max(cell_len(text) for text in column) for column in zip(*lines.values(), strict=True)]
    name = 1 + max(len(title) for title in lines)
    breaks, used = [0], name
    for i, cell in enumerate(cells):
        if used + cell > width:
            breaks.append(i)
            used = name
        used += cell
    strips = []
    for start, end in pairwise([*breaks, len(cells)]):
        for k, (title, texts) in enumerate(lines.items()):
            line = Text(title.ljust(name), "dim")
            for text, cell in zip(texts[start:end], cells[start:end], strict=True):
                line.append(text + " " * (cell - cell_len(text)), "not dim" + " bold" * (k == 0))
            strips.append(line)
    return Group(*strips)


def guesses(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Values,
    right: Sequence[str | None],
    width: int,
) -> Table:
    """The most probable few of each row as bars, beside what would be right where that is known.

    Where something is right for some rows only, only they are shown.
    """
    names = 1 + max(cell_len(name) for name in columns)
    count = min(MOST_GUESSES, len(columns))
    table = Table.grid(padding=(0, 2, 0, 0))
    if any(right):
        table.add_row(*(Text(t, "dim") for t in ("after" if all(right) else "at", "right", "most probable")))
    bar = max(4, min(12, (width - 24) // count - names - 7))
    largest = _largest(values)
    for i, name in enumerate(rows):
        expected = right[i] if i < len(right) else None
        if any(right) and expected is None:
            continue
        order = sorted(range(len(columns)), key=lambda j: -(values[i][j] or 0.0))
        line = Text()
        for j in order[:count]:
            share = values[i][j] or 0.0
            line.append(columns[j] + " " * (names - cell_len(columns[j])), "bold" * (columns[j] == expected))
            line.append(f"{share:.2f} ")
            line.append(_bar(share / largest, bar).ljust(bar + 1), "rgb(214,104,24)")
        known = [] if expected is None else [
            Text.assemble((expected, "bold"), f" {values[i][columns.index(expected)]:.2f}")
        ]
        table.add_row(_label(name), *known, line)
    return table


def width_of(table: RenderableType, console_width: int) -> int:
    """How many cells a table takes."""
    from rich.console import Console

    console = Console(width=console_width)
    return Measurement.get(console, console.options, table).maximum
