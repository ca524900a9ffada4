"""How every picture is made: one look, one pair of files (PNG and SVG), written whole.

Lines differ in style and marker as well as in colour, so that a picture also reads in black and
white. The same figures give the same bytes, so that a picture can be kept in git.
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
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # 5, 4 and 7 of them: 140 lines that look different
SETTINGS: dict[Any, Any] = {
    "font.size": 13, "axes.grid": True, "grid.color": "#e4e4e4",
    "axes.spines.top": False, "axes.spines.right": False,
    "figure.constrained_layout.w_pad": 0.2, "figure.constrained_layout.h_pad": 0.15,
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "svg.hashsalt": "regard",  # names of parts from their content, not from chance
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


def save_picture(draw: Callable[[], Figure], out: Path) -> list[Path]:
    """Draw, and write NAME.png and NAME.svg; gives back the two files."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("pictures need matplotlib: pip install matplotlib") from None
    paths = both_files(out)
    with matplotlib.rc_context(), warnings.catch_warnings():  # settings are put aside, and back
        warnings.filterwarnings("ignore", "Glyph")  # boxes in the PNG; the SVG has the name whole
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        picture = draw()
        for path, keys in zip(paths, (("Software",), ("Date", "Creator")), strict=True):
            content = io.BytesIO()
            picture.savefig(content, format=path.suffix[1:], metadata=dict.fromkeys(keys))
            drawn = content.getvalue()
            write_result(path, drawn.translate(None, NOT_XML) if path.suffix == ".svg" else drawn)
    return paths
