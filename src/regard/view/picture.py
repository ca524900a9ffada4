"""Drawing and saving pictures: one style, and one pair of files (PNG and SVG), written atomically.

Lines differ in dash pattern and marker as well as in colour, so pictures are readable in black and
white. The same data gives the same bytes, so pictures can be kept in git.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import InputError
from regard.files import check_destination, write_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0b62a4", "#bf4a00", "#222222", "#00785a", "#8a2a63")
DASHES = ("-", (0, (6, 2)), (0, (8, 2, 1.5, 2)), (0, (1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # 5 x 4 x 7: 140 different lines
SETTINGS: dict[Any, Any] = {
    "font.size": 13, "axes.grid": True, "grid.color": "#e4e4e4",
    "axes.spines.top": False, "axes.spines.right": False,
    "figure.constrained_layout.w_pad": 0.2, "figure.constrained_layout.h_pad": 0.15,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "regard",  # ids of elements depend on their content only
}  # fmt: skip
NOT_XML = bytes({*range(32)} - {9, 10, 13})  # control characters that XML does not allow


def picture_name(out: Path) -> Path:
    """Check that both files of `--out` can be written; call it before the work."""
    if out.suffix not in ("", ".png", ".svg"):
        raise InputError(f"--out {out}: write NAME.png or NAME.svg (both files are made)")
    for path in both_files(out):
        check_destination(path)
    return out


def both_files(out: Path) -> list[Path]:
    return [out.with_suffix(".png"), out.with_suffix(".svg")]


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """An empty figure; width and height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    if title:
        figure.suptitle(title, fontsize=17, weight="bold", parse_math=False)
    return figure


def save_picture(draw: Callable[[], Figure], out: Path) -> list[Path]:
    """Draw a figure and write NAME.png and NAME.svg; returns the two files."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("pictures need matplotlib: pip install matplotlib") from None
    paths = both_files(out)
    with matplotlib.rc_context(), warnings.catch_warnings():  # the settings are restored
        warnings.filterwarnings("ignore", "Glyph")  # missing in the PNG; the SVG keeps the text
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        picture = draw()
        for path, keys in zip(paths, (("Software",), ("Date", "Creator")), strict=True):
            content = io.BytesIO()
            picture.savefig(content, format=path.suffix[1:], metadata=dict.fromkeys(keys))
            drawn = content.getvalue()
            write_result(path, drawn.translate(None, NOT_XML) if path.suffix == ".svg" else drawn)
    return paths
