"""`regard view positions`: the position encodings (section 3.5 of the paper) as PNG and SVG.

A heat map has a row for each position; beside it is the dot product of one position's row with all
others. Rotary positions are not added to the embeddings: there, a row is the rotated vector (1, 0)
of each pair, its cosine and sine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.config.model import ModelConfig
from regard.errors import InputError
from regard.files import real_path
from regard.model.positions import Rotation, sinusoids
from regard.predictor.attention import stacks_of
from regard.training.model_folder import read_config
from regard.training.unfinished import model_weights
from regard.view.picture import COLOURS, DASHES, new_figure, picture_name, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTH, D_MODEL, BASE = 256, 512, 10_000.0  # defaults of the options
MOST_BASE = 1e100  # a larger base could give infinite wavelengths
MOST = 2**25  # values in a picture


class Encodings(NamedTuple):
    """The position encodings of one stack, or of a formula."""

    name: str
    rows: Tensor  # [n, D], float64
    features: str  # label of the axis D
    product: str = "PE(p)·PE(p+k)"


def draw_positions(
    model: Path | None,
    length: int | None = None,
    d_model: int | None = None,
    base: float | None = None,
    out: Path | None = None,
) -> list[Path]:
    """Draw the sinusoids of the paper, or the positions of a model; returns the two files.

    out: NAME.png or NAME.svg, for both; None: positions.png beside the model, or here.
    """
    if model is not None and (d_model is not None or base is not None):
        name = "--d-model" if base is None else "--base"
        raise InputError(f"-m and {name} cannot be combined: a model has its own")
    if out is None:
        out = (model or Path()) / "positions"
    out = picture_name(out / "positions" if out.is_dir() else out)
    if model is None:
        length = LENGTH if length is None else length
        d_model = D_MODEL if d_model is None else d_model
        base = BASE if base is None else base
        check_sizes(length, d_model, base)
        drawn, heading = [formula(length, d_model, base)], "Sinusoidal positions"
    else:
        drawn = of_model(model, length)
        heading = f"Positions of {real_path(model).name}"
    return save_picture(lambda: draw(heading, drawn), out)


def check_sizes(length: int, d_model: int, base: float) -> None:
    if length < 2:
        raise InputError(f"--length must be at least 2, not {length}: positions are compared")
    if d_model < 2 or d_model % 2:
        raise InputError(
            f"--d-model must be even, not {d_model}: sinusoids come in sine and cosine pairs"
        )
    if not 1 < base <= MOST_BASE:
        end = f" and at most {MOST_BASE:g}" if base > MOST_BASE else ""
        raise InputError(
            f"--base must be above 1{end}, not {base:g}: wavelengths grow by this factor"
        )
    if length * d_model > MOST:
        raise InputError(
            f"--length {length} of {d_model} features is too large for a picture: "
            f"use at most {MOST // d_model} positions"
        )


def formula(length: int, d_model: int, base: float) -> Encodings:
    """The sinusoids of the paper: PE(p, 2i) = sin(a), PE(p, 2i+1) = cos(a), a = p / base^(2i/D)."""
    rows = sinusoids(torch.arange(length), d_model, base)
    return Encodings(f"sinusoidal, base {base:,g}", rows, "feature (even: sine, odd: cosine)")


def of_model(folder: Path, length: int | None) -> list[Encodings]:
    """The position encodings of a model, by stack if they differ."""
    config = read_config(folder).model
    if config.positions == "none":
        raise InputError(
            f"{folder} has no positions (model.positions=none): its views are regard view "
            + ("attention and curves" if stacks_of(config) else "curves")
        )
    learned = config.positions == "learned"
    size = config.head_size if config.positions == "rotary" else config.d_model
    if length is None:
        length = min(LENGTH, config.max_length) if learned else LENGTH
    check_sizes(length, 2 if learned else size, config.position_base)
    if config.positions == "rotary":
        return [rotary(config, length)]
    if not learned:
        return [formula(length, size, config.position_base)]
    if length > config.max_length:
        raise InputError(
            f"--length {length}: the learned table of {folder} has {config.max_length} rows"
        )
    weights = model_weights(folder)
    tables = []
    for stack in (s for s in ("encoder", "decoder") if getattr(config, f"has_{s}")):
        table = weights.get(name := f"{stack}.positions.weight")
        if table is None or table.shape != (config.max_length, size):
            raise InputError(
                f"{folder}: config.yaml requires {name}, which the weights do not contain"
            )
        tables.append(Encodings(f"learned by the {stack}", table[:length].double(), "feature"))
    return tables


def rotary(config: ModelConfig, length: int) -> Encodings:
    turn = Rotation(torch.arange(length), config.head_size, config.position_base)
    ones = torch.zeros(length, 1, config.head_size, dtype=torch.float64)  # [N, H, K]
    ones[..., 0::2] = 1
    return Encodings(
        f"rotary, base {config.position_base:,g}, in each head", turn(ones).squeeze(1),
        "feature of a head (even: cosine, odd: sine of its pair's angle)",
        "score of (1, 0)s at p and at p+k",
    )  # fmt: skip


def draw(heading: str, drawn: Sequence[Encodings]) -> Figure:
    picture = new_figure(16, 0.8 + 6.4 * len(drawn), heading)
    panels = picture.subplots(len(drawn), 2, squeeze=False, gridspec_kw={"width_ratios": (3, 2)})
    for (left, right), data in zip(panels, drawn, strict=True):
        draw_heat(left, data)
        draw_products(right, data)
    return picture


def draw_heat(panel: Axes, data: Encodings) -> None:
    """A row for each position. The colour map is monotonic in lightness, so it works in grey."""
    from matplotlib.ticker import MaxNLocator

    n, size = data.rows.shape
    most = float(data.rows.abs().max())
    image = panel.imshow(
        data.rows.numpy(), cmap="cividis", vmin=-most, vmax=most, aspect="auto",
        interpolation_stage="data",
    )  # fmt: skip
    panel.grid(False)
    panel.set(xlabel=data.features, ylabel="position")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True))
        axis.set_major_formatter("{x:,.0f}")
    panel.set_title(f"{data.name}: {n:,} × {size:,}", loc="left", pad=12)
    bar = panel.figure.colorbar(image, ax=panel, pad=0.02)
    bar.set_label(f"value: dark {-most:.2f}, light {most:.2f}")


def draw_products(panel: Axes, data: Encodings) -> None:
    """The dot products of row p with all rows, over their distance from p. Where only the distance
    matters, the lines coincide, so each is thinner than the one before it."""
    n = len(data.rows)
    for i, p in enumerate(places(n)):
        panel.plot(
            torch.arange(n) - p, data.rows @ data.rows[p], color=COLOURS[i], linestyle=DASHES[i],
            linewidth=(6, 4, 2.5, 1.2)[i], label=f"p = {p:,}", alpha=(0.35, 0.6, 1, 1)[i],
        )  # fmt: skip
    panel.set(xlabel="k: distance to the other position", ylabel=data.product)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_title(f"{data.product} over k", loc="left", pad=12)
    panel.legend(frameon=False, handlelength=4)


def places(n: int) -> list[int]:
    """Up to four evenly spaced positions, which are compared with all others."""
    return sorted({0, n // 4, n // 2, 3 * n // 4})
