"""Drawing and saving pictures: one style, and one pair of files (PNG and SVG), written atomically.

Lines differ in dash pattern and marker as well as in colour, so pictures are readable in black and
white. The same data gives the same bytes, so pictures can be kept in git.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import InputError
from regard.files import check_destination, write_result
from regard.predictor.figure import new_figure, plot_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS", "DASHES", "MARKERS", "both_files", "new_figure", "picture_name", "save_picture",
]  # fmt: skip

COLOURS = ("#0b62a4", "#bf4a00", "#222222", "#00785a", "#8a2a63")
DASHES = ("-", (0, (6, 2)), (0, (8, 2, 1.5, 2)), (0, (1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # 5 x 4 x 7: 140 different lines
NOT_XML = bytes({*range(32)} - {9, 10, 13})  # control characters that XML does not allow


def picture_name(out: Path) -> Path:
    """Check that both files of `--out` can be written; call it before the work."""
    if out.suffix not in ("", ".png", ".svg"):
        raise InputError(f"--out {out}: write NAME.png or NAME.svg (both files are written)")
    for path in both_files(out):
        check_destination(path)
    return out


def both_files(out: Path) -> list[Path]:
    return [out.with_suffix(".png"), out.with_suffix(".svg")]


def save_picture(draw: Callable[[], Figure], out: Path) -> list[Path]:
    """Draw a figure and write NAME.png and NAME.svg; returns the two files."""
    paths = both_files(out)
    with plot_settings(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # missing in the PNG; the SVG keeps the text
        picture = draw()
        for path, keys in zip(paths, (("Software",), ("Date", "Creator")), strict=True):
            content = io.BytesIO()
            picture.savefig(content, format=path.suffix[1:], metadata=dict.fromkeys(keys))
            drawn = content.getvalue()
            write_result(path, drawn.translate(None, NOT_XML) if path.suffix == ".svg" else drawn)
    return paths
