"""Attention as figures: small and large heat maps, and lines between two columns of tokens.

The colour depends on the square root of a weight, so that a weight of 0.04 is visible; the colour
bar shows this. Lightness carries the value, not hue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.predictor.attention import Attention, Panel, Stack, View, Weights, panels
from regard.predictor.figure import new_figure, plot_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#ffffff", "#dbe8f4", "#a9c9e3", "#6a9fcb", "#2f6ea5", "#12406f", "#041c3a")
NUMBERED = 20  # with at most this many tokens per side, cells show their weights
NAMED = 32  # with at most this many tokens per side, small maps name them
FAINT = 0.01  # smaller weights have no line
TICKS = (0, 0.02, 0.1, 0.25, 0.5, 1)


def attention_figure(attention: Attention, view: View) -> Figure:
    """Draw the weights of a view."""
    stack = attention.stacks[view.stack]
    grid = panels(view, stack)
    with plot_settings():
        if view.kind == "lines":
            return lines_picture(attention, view, stack, grid[0][0])
        if len(grid) == len(grid[0]) == 1:
            return large_picture(attention, view, stack, grid[0][0])
        return small_pictures(attention, view, stack, grid)


def headed(picture: Figure, attention: Attention, view: View) -> None:
    """Set the title: the view and the texts."""
    most = int(picture.get_size_inches()[0] * 8.5)
    words = [view.title[0].upper() + view.title[1:]]
    for text in filter(None, (attention.text, attention.target and f"→ {attention.target}")):
        text = " ".join(text.split())
        words.append(text if len(text) <= most else text[: most - 1] + "…")
    picture.suptitle("\n".join(words), fontsize=13, parse_math=False)


def scale() -> dict[str, Any]:
    """The colour scale of weights, the same in every picture."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colours = LinearSegmentedColormap.from_list("attention", COLOURS)
    return {"cmap": colours, "norm": PowerNorm(0.5, 0, 1)}


def add_scale(picture: Figure, image: Any, axes: Any) -> None:
    bar = picture.colorbar(image, ax=axes, ticks=TICKS, shrink=0.9, aspect=30, pad=0.02)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in TICKS])
    bar.set_label("attention weight,\nsquare-root scale", fontsize=11)
    bar.outline.set_visible(False)


def heat_map(axes: Axes, weights: Weights) -> Any:
    axes.grid(False)
    image = axes.imshow(weights, aspect="auto", interpolation="nearest", **scale())
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color("#999999")
    return image


def name_tokens(axis: Any, tokens: Sequence[str], size: float, **options: Any) -> None:
    axis.set_ticks(range(len(tokens)), tokens, fontsize=size, **options)
    for label in axis.get_ticklabels():
        label.set_parse_math(False)  # a dollar sign is not mathematics


def count_tokens(axis: Any, tokens: Sequence[str], size: float, **_: Any) -> None:
    """Instead of `name_tokens`: only the numbers of the first and the last token."""
    ends = sorted({0, len(tokens) - 1})
    axis.set_ticks(ends)
    axis.set_ticklabels([str(end + 1) for end in ends], fontsize=size)


def reads(stack: Stack) -> tuple[str, str]:
    """The labels of the two axes."""
    keys = "key (source token)" if stack.name == "cross" else "key (token that the query looks at)"
    if stack.writes:
        return "query (token that the decoder reads before it writes the next one)", keys
    return "query (token that looks)", keys


def small_pictures(
    attention: Attention, view: View, stack: Stack, shown: list[list[Panel]]
) -> Figure:
    """Every layer and head as a small map; the outer maps name the tokens."""
    n, m = len(stack.rows), len(stack.columns)
    few = max(n, m) <= NAMED
    name, cell = (name_tokens, 0.16) if few else (count_tokens, 2.4 / max(n, m))
    high, wide = (max(1.1, cell * count) for count in (n, m))
    rows, columns = len(shown), len(shown[0])
    longest = [max(map(len, tokens)) * 0.09 + 0.3 for tokens in (stack.rows, stack.columns)]
    width = max(6.5, columns * (wide + 0.25) + longest[0] + 1.6)
    picture = new_figure(width, rows * (high + 0.42) + longest[1] + 1.5)
    every = picture.subplots(rows, columns, squeeze=False)
    image = None
    for i, row in enumerate(shown):
        for j, panel in enumerate(row):
            axes = every[i, j]
            image = heat_map(axes, panel.weights)
            axes.set_title(panel.title, fontsize=11, pad=4)
            axes.set(xticks=[], yticks=[])
            if j == 0:
                name(axes.yaxis, stack.rows, 9)
            if i == rows - 1:
                name(axes.xaxis, stack.columns, 9, rotation=90)
    looks, seen = reads(stack)
    picture.supylabel(looks if rows * high > 5 else "query", fontsize=11)
    picture.supxlabel(seen, fontsize=11)
    add_scale(picture, image, every)
    headed(picture, attention, view)
    return picture


def large_picture(attention: Attention, view: View, stack: Stack, panel: Panel) -> Figure:
    """One matrix with tokens on both axes, and with numbers if they fit."""
    n, m = len(stack.rows), len(stack.columns)
    numbered = max(n, m) <= NUMBERED
    cell, size = (0.5, 12.0) if numbered else (0.22, 10.0) if max(n, m) <= 80 else (0.14, 7.0)
    margins = [max(map(len, tokens)) * size * 0.011 for tokens in (stack.rows, stack.columns)]
    width, height = m * cell + margins[0] + 2.2, n * cell + margins[1] + 2.1
    picture = new_figure(max(7.5, width), max(4.5, height))
    axes = picture.subplots()
    image = heat_map(axes, panel.weights)
    name_tokens(axes.yaxis, stack.rows, size)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    name_tokens(axes.xaxis, stack.columns, size, rotation=90)
    looks, seen = reads(stack)
    axes.set_ylabel(looks if n * cell > 5 else "query", fontsize=11)
    axes.set_xlabel(seen, fontsize=11, labelpad=8)
    if numbered:
        for i, row in enumerate(panel.weights.tolist()):
            for j, weight in enumerate(row):
                colour = "white" if weight > 0.3 else "#222222" if weight >= 0.005 else "#aaaaaa"
                axes.text(j, i, f"{weight:.2f}".lstrip("0") if weight < 0.995 else "1", ha="center",
                          va="center", fontsize=9.5, color=colour)  # fmt: skip
    add_scale(picture, image, axes)
    headed(picture, attention, view)
    return picture


def lines_picture(attention: Attention, view: View, stack: Stack, panel: Panel) -> Figure:
    tall = max(len(stack.rows), len(stack.columns))
    picture = new_figure(9, max(4, 0.3 * tall + 1.9))
    axes = picture.subplots()
    draw_lines(axes, stack, panel.weights)
    looks, seen = reads(stack)
    axes.set_title(f"left: {looks}\nright: {seen}", fontsize=11, loc="left")
    axes.text(0.5, -0.01, f"width and darkness: the weight; no line below {least_line(stack):.2g}",
              fontsize=11, transform=axes.transAxes, ha="center", va="top")  # fmt: skip
    headed(picture, attention, view)
    return picture


def least_line(stack: Stack) -> float:
    """The smallest weight that has a line: twice the uniform weight, within limits."""
    return float(np.clip(2 / len(stack.columns), FAINT, 5 * FAINT))


def draw_lines(axes: Axes, stack: Stack, weights: Weights, only: Sequence[int] = ()) -> None:
    """Two columns of tokens and a line for each weight.

    only: draw these rows only, in bold, and write their mean weights beside the columns
    """
    from matplotlib.collections import LineCollection

    tall = max(weights.shape)
    places = [np.arange(count) + (tall - count) / 2 for count in weights.shape]
    rows = list(only) or list(range(len(weights)))
    least = FAINT if only else least_line(stack)
    chosen = [(i, j) for i in rows for j in np.flatnonzero(weights[i] >= least)]
    chosen.sort(key=lambda pair: weights[pair])  # the strongest on top
    strength = np.array([weights[pair] for pair in chosen])
    dark = np.sqrt(strength)
    axes.add_collection(LineCollection(
        [[(0, places[0][i]), (1, places[1][j])] for i, j in chosen],
        linewidths=0.4 + 4.6 * strength, colors=[(0.03, 0.16, 0.3, a) for a in dark],
    ))  # fmt: skip
    for i, token in enumerate(stack.rows):
        looks = not only or i in only
        text = stack.named(i) if only and looks else token
        colour = "black" if looks else "#888888"
        label(axes, -0.02, places[0][i], text, bool(only) and looks, colour)
    seen = weights[rows].mean(0)
    for j, token in enumerate(stack.columns):
        numbered = bool(only) and seen[j] >= FAINT
        text = f"{token}  {seen[j]:.2f}" if numbered else token
        label(axes, 1.02, places[1][j], text, numbered and seen[j] >= 10 * FAINT, "black")
    axes.set(xlim=(0, 1), ylim=(tall - 0.5, -0.5))
    axes.axis("off")


def label(axes: Axes, x: float, y: float, text: str, bold: bool, colour: str) -> None:
    axes.text(
        x, y, text, ha="left" if x > 0 else "right", va="center", fontsize=12, color=colour,
        weight="bold" if bold else "normal", parse_math=False,
    )  # fmt: skip
