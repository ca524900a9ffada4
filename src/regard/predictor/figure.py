"""Figures in one style. They do not use pyplot, so they are not in its global list of figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from regard.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETTINGS: dict[Any, Any] = {
    "font.size": 13, "axes.grid": True, "grid.color": "#e4e4e4",
    "axes.spines.top": False, "axes.spines.right": False,
    "figure.constrained_layout.w_pad": 0.2, "figure.constrained_layout.h_pad": 0.15,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "regard",  # ids of elements depend on their content only
}  # fmt: skip


@contextmanager
def plot_settings() -> Iterator[None]:
    """Draw with the settings of this package; the settings of the user are restored afterwards."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("figures need matplotlib: pip install matplotlib") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """An empty figure; width and height in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    if title:
        figure.suptitle(title, fontsize=17, weight="bold", parse_math=False)
    return figure
