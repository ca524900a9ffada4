"""The base class of all reports, and the tables and line styles that they share.

Every report is printed as tables and written to a folder: COMMAND.json (everything), COMMAND.csv
(one row per figure) and pictures (PNG and SVG).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rich.table import Table

from regard.console import make_console
from regard.files import write_result
from regard.view.picture import COLOURS, DASHES, MARKERS, both_files, new_figure, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

WIDE = 160  # columns of a table whose figures must not be cut
MARKS = {True: "✓", False: "✗", None: ""}  # agreement with theory
ALL_COLUMNS = range(1000)


class Picture(NamedTuple):
    """A picture of a report; `draw` adds the panels."""

    name: str  # of the files, without suffix
    size: tuple[float, float]
    title: str
    draw: Callable[[Figure, Any], None]  # its second argument is the report

    def make(self, report: LabReport) -> Figure:
        figure = new_figure(*self.size, self.title)
        self.draw(figure, report)
        return figure


@dataclass
class LabReport:
    """The result of one `regard lab` command. Subclasses define its content and its layout."""

    command: ClassVar[str]
    width: ClassVar[int | None] = None  # of the console; None: as wide as the terminal
    files: list[Path] = field(default_factory=list, init=False)  # that were written

    def figures(self) -> dict[str, Any]:
        """Everything that was measured, as JSON values."""
        raise NotImplementedError

    def csv_rows(self) -> list[dict[str, Any]]:
        """The rows of the CSV file; its columns are their keys."""
        raise NotImplementedError

    def pictures(self) -> list[Picture]:
        raise NotImplementedError

    def print_tables(self, console: Console) -> None:
        """Print the report for a reader."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints and COMMAND.json contains."""
        return {**self.figures(), "files": [str(path) for path in self.files]}

    def write(self, out: Path) -> None:
        """Write all files to the folder `out`; the tables first, since drawing can fail."""
        pictures = self.pictures()
        self.files = [out / f"{self.command}.{suffix}" for suffix in ("json", "csv")]
        self.files += [path for drawing in pictures for path in both_files(out / drawing.name)]
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        write_result(self.files[0], f"{text}\n")
        write_csv(self.files[1], self.csv_rows())
        for drawing in pictures:
            save_picture(partial(drawing.make, self), out / drawing.name)

    def show(self) -> None:
        """Print the report and the names of the files on standard output."""
        console = make_console(width=self.width)
        self.print_tables(console)
        for path in self.files:
            console.print(f"written: {path}", soft_wrap=True)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows that may have different keys; a missing value is an empty cell."""
    text = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_result(path, text.getvalue())


def plain_table(
    *columns: str, left: Container[int] = (0,), wrap: Container[int] = (), title: str | None = None
) -> Table:
    """A table without rules.

    left: the columns that are aligned left; the others are aligned right.
    wrap: the columns whose cells may be wrapped on a narrow terminal.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i in left else "right", no_wrap=i not in wrap)
    return table


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def line_styles() -> Iterator[dict[str, Any]]:
    """Matplotlib options of one line after the other; lines also differ in black and white."""
    for colour, dashes, marker in zip(cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=True):
        style = {"color": colour, "linestyle": dashes, "marker": marker}
        yield {**style, "markersize": 8, "linewidth": 2}


def set_distance_axis(panel: Axes, distances: Sequence[int]) -> None:
    """A logarithmic x axis with a tick at each distance."""
    from matplotlib.ticker import NullLocator

    panel.set_xscale("log", base=2)
    panel.set_xticks(distances, [str(t) for t in distances])
    panel.xaxis.set_minor_locator(NullLocator())


def add_legend_below(picture: Figure, panel: Axes, title: str | None = None) -> None:
    """The legend of one panel, below the whole picture."""
    handles, names = panel.get_legend_handles_labels()
    look: dict[str, Any] = {"ncols": 4, "handlelength": 5, "frameon": False, "title": title}
    picture.legend(handles, names, loc="outside lower center", **look)
