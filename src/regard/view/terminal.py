"""Tables of numbers in a terminal: vectors, matrices, ids and predictions, as lines of text.

Every table shows its values by colour and by characters (a number, a shade, a bar), so it is also
readable in a pipe and in black and white. Widths are counted in terminal cells; a Chinese
character takes two.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest

from rich.cells import cell_len
from rich.text import Text

Values = list[list[float | None]]

SHADES = " ░▒▓█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
MOST_ROWS, MOST_COLUMNS, MOST_PREDICTIONS = 9, 8, 3  # of a table that is not always complete
MOST_TOKENS, MOST_LABELS = 25, 60  # of a matrix or a list of predictions; of a strip of labels
GAP = "…"  # label of the rows or columns that are left out
SHORTEST_BAR = 6
# Dark tiles with white figures: both are set, so a light and a dark terminal show the same.
DARK, WARM, COLD = (34, 36, 44), (206, 98, 22), (40, 104, 204)


def visible_name(character: str) -> str:
    """A character as a label; an invisible one is shown as a symbol or its code point."""
    if character == " ":
        return "␣"
    if not character.isprintable() or character == "␣":  # labels are unique
        return f"U+{ord(character):04X}"
    return f"◌{character}" if unicodedata.category(character).startswith("M") else character


def vectors(rows: Sequence[str], columns: Sequence[str], values: Values, width: int) -> list[Text]:
    """One row per vector, with as many of its first numbers as fit, and column names if any."""
    figures = [[_figure(value) for value in row] for row in values]
    named = not all(name.isdecimal() for name in columns)
    label, count = _widest(rows) + 1, min(len(columns), MOST_COLUMNS)
    figure = max(len(text) for row in figures for text in row[:count])
    cells = [1 + max(figure, cell_len(name) if named else 0) for name in columns[:count]]
    while count > 1 and label + sum(cells[:count]) + (2 if count < len(columns) else 0) > width:
        count -= 1
    more = " …" if count < len(columns) else ""
    largest = max(abs(value or 0.0) for row in values for value in row) or 1.0
    lines = []
    if named:
        names = [_pad(name, cell, right=True) for name, cell in zip(columns, cells, strict=False)]
        lines.append(Text(" " * label + "".join(names[:count]) + more, "dim"))
    for i, name in enumerate(rows):
        if len(rows) > MOST_ROWS and MOST_ROWS - 2 <= i < len(rows) - 1:
            if i == MOST_ROWS - 2:
                lines.append(Text("⋮", "dim"))
            continue
        line = Text(_pad(name, label))
        for j in range(count):
            line.append(figures[i][j].rjust(cells[j]), _tile((values[i][j] or 0.0) / largest))
        lines.append(line.append(more, "dim"))
    return lines


def matrix(rows: Sequence[str], columns: Sequence[str], values: Values, width: int) -> list[Text]:
    """Rows are queries, columns are keys: number and shade, or only shades if the numbers do not
    fit. A value of None is masked. Of more than 25 rows or columns the middle is left out."""
    finite = [value for row in values for value in row if value is not None]
    low, high = min(0.0, *finite), max(finite)  # weights are shaded from 0, not from their minimum
    largest = max(high, -low) or 1.0
    across = middle_out(len(columns))
    headings = [GAP if j is None else columns[j] for j in across]
    figures = [[GAP if j is None else _figure(row[j]) for j in across] for row in values]
    label = _widest(rows) + 1
    figure = max(len(text) for row in figures for text in row)
    cells = [1 + max(figure, cell_len(name)) for name in headings]  # the shade takes one more
    fits = label + sum(cells) + len(cells) <= width
    wide = " ".join(
        _pad(name, cell, right=True) for name, cell in zip(headings, cells, strict=True)
    )
    narrow = "".join(_pad(_short(name), 2) for name in headings)
    lines = [Text(" " * label + (wide if fits else narrow), "dim")]
    for i in middle_out(len(rows)):
        if i is None:
            lines.append(Text("⋮", "dim"))
            continue
        line = Text(_pad(rows[i], label))
        for j, text, cell in zip(across, figures[i], cells, strict=True):
            value = None if j is None else values[i][j]
            share = 0.0 if value is None else (value - low) / ((high - low) or 1.0)
            shade = SHADES[round(share * (len(SHADES) - 1))]
            ink = text.rjust(cell) + shade if fits else 2 * ("·" if value is None else shade)
            if j is None:
                ink = ink if fits else f"{GAP} "
            line.append(ink, "dim" if value is None else _tile(value / largest))
        lines.append(line)
    return lines


def middle_out(count: int, most: int = MOST_TOKENS) -> list[int | None]:
    """The numbers from 0 to `count`; of more than `most`, the first two thirds and the last, with
    None between them for those that are left out."""
    if count <= most:
        return list(range(count))
    last = most // 3
    return [*range(most - 1 - last), None, *range(count - last, count)]


def _short(name: str) -> str:
    """A label of one character for a narrow column; wide ones (Chinese) take two cells."""
    if cell_len(name) <= 2 and not name.startswith("<"):
        return name
    return "<" if name.startswith("<") else "□"


def strip(titled: Mapping[str, Sequence[str]], width: int) -> list[Text]:
    """Labels side by side, wrapped at the width: tokens above their ids. Of more than 60 labels the
    middle is left out."""
    chosen = middle_out(len(next(iter(titled.values()))), MOST_LABELS)
    titled = {
        title: [GAP if i is None else labels[i] for i in chosen] for title, labels in titled.items()
    }
    cells = [2 + _widest(column) for column in zip(*titled.values(), strict=True)]
    title_width = 2 + _widest(list(titled))
    breaks, used = [0], title_width
    for i, cell in enumerate(cells):
        if used + cell > width:
            breaks.append(i)
            used = title_width
        used += cell
    lines = []
    for start, end in pairwise([*breaks, len(cells)]):
        for title, labels in titled.items():
            line = Text(_pad(title, title_width), "dim")
            for text, cell in zip(labels[start:end], cells[start:end], strict=True):
                line.append(_pad(text, cell), "not dim bold")
            line.rstrip()
            lines.append(line)
    return lines


def predictions(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Values,
    answers: Sequence[str | None],
    width: int,
) -> list[Text]:
    """The most probable tokens of each row as bars, after the correct one. If only some rows have
    a correct token, only these are shown. Of more than 25 rows the middle is left out."""
    label, names = _widest(rows) + 1, _widest(columns) + 1
    room = width - label - names - len("0.00   ")
    guess = names + len("0.00   ")  # and a bar
    count = max(1, min(MOST_PREDICTIONS, len(columns), room // (guess + SHORTEST_BAR)))
    bar = max(SHORTEST_BAR, min(12, room // count - guess))
    largest = max(value or 0.0 for row in values for value in row)
    lines = []
    if any(answers):
        header = f"{'':{label}}{_pad('answer', names + 7)}most probable"
        lines.append(Text(header, "dim"))
    chosen = [i for i in range(len(rows)) if not any(answers) or answers[i] is not None]
    for place in middle_out(len(chosen)):
        if place is None:
            lines.append(Text("⋮", "dim"))
            continue
        i = chosen[place]
        row, answer = values[i], answers[i] if answers else None
        line = Text(_pad(rows[i], label))
        if answer is not None:
            line.append(_pad(answer, names), "bold")
            line.append(f"{row[columns.index(answer)]:.2f}   ")
        for j in sorted(range(len(columns)), key=lambda j: -(row[j] or 0.0))[:count]:
            share = row[j] or 0.0
            line.append(_pad(columns[j], names), "bold" if columns[j] == answer else "")
            line.append(f"{share:.2f} ")
            eighths = round(share / largest * bar * 8)
            ink = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
            line.append(ink.ljust(bar + 2), f"rgb({','.join(map(str, WARM))})")
        line.rstrip()
        lines.append(line)
    return lines


def wrap(sentence: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken at spaces."""
    lines = [""]
    for word in sentence.split(" "):
        if lines[-1] and cell_len(f"{lines[-1]} {word}") > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def side_by_side(left: list[str], right: list[Text], indent: int, column: int) -> list[Text]:
    """Two blocks of lines, the right one from cell `column` on."""
    lines = []
    for text, line in zip_longest(left, right, fillvalue=""):
        start = " " * indent + str(text)
        lines.append(Text(_pad(start, column) if line else start).append(line))
    return lines


def _figure(value: float | None) -> str:
    if value is None:
        return "-∞"
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


def _tile(share: float) -> str:
    """A style for a share from -1 (cold) to 1 (warm)."""
    end = WARM if share > 0 else COLD
    mix = (round(a + (b - a) * min(1.0, abs(share))) for a, b in zip(DARK, end, strict=True))
    return f"bright_white on rgb({','.join(map(str, mix))})"


def _widest(labels: Sequence[str]) -> int:
    return max(cell_len(label) for label in labels)


def _pad(label: str, width: int, right: bool = False) -> str:
    space = " " * (width - cell_len(label))
    return space + label if right else label + space
