"""The report of `regard lab positions`: tables of theory beside measurement, and two pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

from regard.lab.common.report import ALL_COLUMNS, LabReport, Picture, line_styles, plain_table
from regard.lab.positions.order_task import SHIFT, TESTED, TRAINED, VOCABULARY, PositionResult
from regard.lab.positions.sinusoids import EULER, OFFSETS, Nearest, Quantity, encodings
from regard.view.curves import Point, add_labels
from regard.view.picture import COLOURS, DASHES, MARKERS
from regard.view.positions import draw_heat, formula

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

LATER = 10_000  # the p whose dot products are drawn over those of p = 0
AGREES = {True: "yes", False: "NO", None: ""}


@dataclass
class PositionsReport(LabReport):
    command = "positions"

    length: int
    d_model: int
    bases: list[float]
    seeds: list[int]
    device: str
    budget: str  # of each training
    quantities: list[Quantity] = field(default_factory=list)
    products: dict[float, list[float]] = field(default_factory=dict)  # over k, of PE(0)·PE(0)
    nearest: list[Nearest] = field(default_factory=list)
    trained: list[PositionResult] = field(default_factory=list)
    blind: dict[int, float] = field(default_factory=dict)  # the best accuracy without order
    changes: list[float] = field(default_factory=list)  # of `none`, when tokens are shuffled
    map_errors: list[dict[str, float]] = field(default_factory=list)  # for each seed

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(item.kind for item in self.trained))

    def accuracy(self, kind: str, length: int, beyond: bool = False) -> tuple[float, float]:
        """Mean and deviation over seeds."""
        runs = [item for item in self.trained if item.kind == kind]
        return mean([(item.beyond if beyond else item.right)[length] for item in runs])

    def mean_map_errors(self) -> dict[str, tuple[float, float]]:
        every = self.map_errors
        return {name: mean([errors[name] for errors in every]) for name in every[0]}

    def model_quantities(self) -> list[Quantity]:
        """Theory about the models: a model without positions can only guess."""
        measured, _ = self.accuracy("none", TRAINED)
        best = f"none: correct at {TRAINED}, best without order"
        return [
            Quantity("none: change when tokens are shuffled", None, max(self.changes), 0, 1e-3),
            Quantity(best, None, measured, self.blind[TRAINED], 0.03),
        ]

    def figures(self) -> dict[str, Any]:
        return {
            "length": self.length, "d_model": self.d_model, "bases": self.bases,
            "findings": [item.to_dict() for item in [*self.quantities, *self.model_quantities()]],
            "dot_product": {f"{base:g}": values for base, values in self.products.items()},
            "nearest": [item.to_dict() for item in self.nearest],
            "training": {
                "task": f"predict the token {SHIFT} places before", "trained_up_to": TRAINED,
                "chance": 1 / VOCABULARY, "best_without_order": self.blind, "seeds": self.seeds,
                "device": self.device, "runs": [asdict(item) for item in self.trained],
            },
            "table_maps": {name: value for name, (value, _) in self.mean_map_errors().items()},
        }  # fmt: skip

    def csv_rows(self) -> list[dict[str, Any]]:
        """One row per figure."""
        rows: list[dict[str, Any]] = []
        for quantity in [*self.quantities, *self.model_quantities()]:
            part = "training" if quantity.base is None else "formula"
            rows.append({"part": part, **quantity.to_dict()})
        for near in self.nearest:
            values = near.to_dict()
            values["measured"] = values.pop("distance")
            rows.append({"part": "uniqueness", "what": "smallest distance", **values})
        for item in self.trained:
            run = {"part": "training", "kind": item.kind, "seed": item.seed}
            for what, shares in (("correct", item.right), ("correct beyond training", item.beyond)):
                for length, share in shares.items():
                    rows.append({**run, "what": what, "length": length, "measured": share})
        for seed, errors in zip(self.seeds, self.map_errors, strict=True):
            run = {"part": "linear map of a table", "seed": seed, "what": "error"}
            rows += [{**run, "kind": name, "measured": error} for name, error in errors.items()]
        return rows

    def print_tables(self, console: Console) -> None:
        console.print(f"Sinusoids: {self.length:,} positions, d_model {self.d_model:,}\n")
        console.print(quantity_table(self.quantities))
        fitted, offsets = max(self.length, 16) + OFFSETS[-1], ", ".join(map(str, OFFSETS))
        console.print(
            f"\nM_k is the linear map with PE(p+k) = PE(p) M_k, k = {offsets}: "
            f"by formula, and fitted on three quarters of {fitted:,} positions. The table has the "
            "largest relative error, between those positions and beyond them."
        )
        for sentence in self.explanations():
            console.print(sentence)
        console.print("\nDistance of the nearest two of so many positions (and their offset)\n")
        console.print(self.nearest_table())
        count = len(self.seeds)
        console.print(
            f"\nEvery position predicts the token {SHIFT} places before it; trained on "
            f"{TRAINED // 2} to {TRAINED} tokens, {self.budget}, "
            f"{count} seed{'s: mean±deviation' if count > 1 else ''}.\n% correct by length, and at "
            f"positions from {TRAINED} on, which were never trained\n"
        )
        console.print(self.training_table())
        console.print()
        console.print(quantity_table(self.model_quantities()))
        guess = self.model_quantities()[-1]
        if guess.theory is not None and guess.measured < guess.theory - guess.tolerance:
            console.print(
                "The model without positions is still below the best accuracy without order."
            )
        console.print(
            f"\nA linear map from each of {TRAINED} rows to the one {SHIFT} places on, fitted on "
            "three quarters of them: relative error on the rest\n"
        )
        console.print(self.maps_table())

    def nearest_table(self) -> Table:
        counts = sorted({near.positions for near in self.nearest})
        names = ("d_model", "base", *(f"of {n:,}" for n in counts), "agrees")
        table = plain_table(*names, left=(len(names) - 1,), wrap=ALL_COLUMNS)
        for size in sorted({near.d_model for near in self.nearest}):
            for base in self.bases:
                row = self.nearest_of(size, base)
                cells = [f"{number(near.distance)} ({near.offset:,})" for near in row]
                agrees = AGREES[all(near.agrees for near in row)]
                table.add_row(f"{size:,}", f"{base:,g}", *cells, agrees)
        return table

    def nearest_of(self, d_model: int, base: float) -> list[Nearest]:
        return [item for item in self.nearest if (item.d_model, item.base) == (d_model, base)]

    def training_table(self) -> Table:
        unseen = (TESTED[1], TESTED[-1])
        columns = [*map(str, TESTED), *(f"≥{TRAINED}\nof {length}" for length in unseen)]
        table = plain_table("positions", *columns, wrap=ALL_COLUMNS)
        table.padding = (0, 1, 0, 0)
        table.pad_edge = True
        for kind in self.kinds:
            cells = [self.accuracy(kind, length) for length in TESTED]
            cells += [self.accuracy(kind, length, beyond=True) for length in unseen]
            table.add_row(kind, *(percent(cell, len(self.seeds)) for cell in cells))
        blind = [f"{100 * self.blind[length]:.1f}" for length in TESTED]
        table.add_row("best without order", *blind)
        table.add_row("chance", *[f"{100 / VOCABULARY:.1f}"] * len(columns))
        return table

    def maps_table(self) -> Table:
        table = plain_table("table", "error", wrap=ALL_COLUMNS)
        for name, (value, spread) in self.mean_map_errors().items():
            also = f" ± {spread:.2f}" if spread > 0.005 else ""
            table.add_row("random table" if name == "chance" else name, number(value) + also)
        return table

    def explanations(self) -> Iterator[str]:
        """The reasons why theory and measurement differ, where they do."""
        wrong = [quantity.what for quantity in self.quantities if quantity.agrees is False]
        if any("ln k" in name or "below half" in name for name in wrong):
            yield (
                f"The law of ln k holds for very many pairs; {self.d_model // 2} are not enough "
                "for it to hold everywhere."
            )
        if any("fitted" in name for name in wrong):
            yield (
                "One linear map fits all positions, but a few positions do not determine it: the "
                "slow waves hardly change over them, so that few of their rows are independent in "
                "float64. Of all maps that fit, least squares gives the smallest: correct "
                "between the positions, wrong beyond them."
            )

    def pictures(self) -> list[Picture]:
        training = f"Predicting the token {SHIFT} places before, trained on up to {TRAINED} tokens"
        return [
            Picture(self.command, (16, 13), "Sinusoidal positions", draw_sinusoids),
            Picture(f"{self.command}-training", (16, 7.5), training, draw_training),
        ]


def quantity_table(quantities: Sequence[Quantity]) -> Table:
    names = ("", "base", "theory", "measured", "agrees")
    table = plain_table(*names, left=(0, 4), wrap=ALL_COLUMNS)
    for item in quantities:
        base = "" if item.base is None else f"{item.base:,g}"
        theory = "" if item.theory is None else number(item.theory)
        table.add_row(item.what, base, theory, number(item.measured), AGREES[item.agrees])
    return table


def mean(values: Sequence[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def percent(cell: tuple[float, float], seeds: int) -> str:
    value, spread = (100 * part for part in cell)
    return f"{value:.1f}±{spread:.1f}" if seeds > 1 else f"{value:.1f}"


def draw_sinusoids(picture: Figure, report: PositionsReport) -> None:
    above, below = picture.subfigures(2, 1, squeeze=False, height_ratios=(5, 6))[:, 0]
    heat = above.subplots(1, len(report.bases), squeeze=False)[0]
    for panel, base in zip(heat, report.bases, strict=True):
        draw_heat(panel, formula(report.length, report.d_model, base))
    left, right = below.subplots(1, 2)
    draw_decay(left, report)
    draw_nearest(right, report)


def draw_decay(panel: Axes, report: PositionsReport) -> None:
    """The dot products of each base from p = 0 and from a large p, and the law of ln k."""
    for i, (base, products) in enumerate(report.products.items()):
        k = range(1, report.length)
        panel.plot(k, products[1:], color=COLOURS[i], linewidth=2.5, linestyle=DASHES[i],
                   label=f"base {base:,g}, p = 0")  # fmt: skip
        rows = encodings(LATER, LATER + report.length, report.d_model, base)
        some = sorted({min(report.length - 1, round(1.35**e)) for e in range(60)})
        panel.plot(some, (rows[some] @ rows[0]) * (2 / report.d_model), MARKERS[i], markersize=8,
                   color="white", markeredgecolor=COLOURS[i], label=f"p = {LATER:,}")  # fmt: skip
        law = [x for x in k if x <= base / 2]
        values = [1 - (math.log(x) + EULER) / math.log(base) for x in law]
        panel.plot(law, values, color="#777777", linewidth=1)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set(xlabel="k", ylabel="PE(p)·PE(p+k) / PE(p)·PE(p)")
    panel.set_title("Dot product over k; thin: 1 − (ln k + 0.577) / ln base", loc="left", pad=12)
    add_legend(panel)


def add_legend(panel: Axes) -> None:
    """A legend below the panel, where it covers nothing."""
    look: dict[str, Any] = {"ncols": 2, "frameon": False, "handlelength": 4, "fontsize": 12}
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), **look)


def draw_nearest(panel: Axes, report: PositionsReport) -> None:
    sizes = sorted({near.d_model for near in report.nearest})
    for i, size in enumerate(sizes):
        for j, base in enumerate(report.bases):
            row = report.nearest_of(size, base)
            panel.plot(
                [near.positions for near in row], [near.distance for near in row],
                color=COLOURS[j], linestyle=DASHES[j], marker=MARKERS[i], linewidth=2,
                markersize=9, label=f"d_model {size:,}, base {base:,g}",
            )  # fmt: skip
    panel.set(xscale="log", yscale="log", xlabel="positions", ylabel="smallest distance of two")
    panel.set_xticks(sorted({near.positions for near in report.nearest}))
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.xaxis.set_minor_formatter("")
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set_title("Distance of the nearest two positions", loc="left", pad=12)
    add_legend(panel)


def draw_training(picture: Figure, report: PositionsReport) -> None:
    left, right = picture.subplots(1, 2)
    for panel, beyond in ((left, False), (right, True)):
        draw_accuracy(panel, report, beyond)
    left.set_title("All positions", loc="left", pad=12)
    right.set_title(f"Positions from {TRAINED} on, never trained", loc="left", pad=12)


def draw_accuracy(panel: Axes, report: PositionsReport, beyond: bool) -> None:
    lengths = list(TESTED[1:] if beyond else TESTED)
    labels = []
    for kind, style in zip(report.kinds, line_styles(), strict=False):
        values = [report.accuracy(kind, n, beyond) for n in lengths]
        shares, spread = ([100 * value[part] for value in values] for part in (0, 1))
        panel.errorbar(lengths, shares, spread, capsize=5, **style)
        labels.append((Point(lengths[-1], shares[-1]), kind, style["color"]))
    blind = [100 * report.blind[n] for n in lengths]
    panel.plot(lengths, blind, color="#777777", linewidth=1)
    labels.append((Point(lengths[-1], blind[-1]), "best without order", "#555555"))
    panel.axhline(100 / VOCABULARY, color="#777777", linewidth=1, linestyle=(0, (1.5, 1.5)))
    labels.append((Point(lengths[-1], 100 / VOCABULARY), "chance", "#555555"))
    panel.set(xscale="log", xlabel="tokens", ylabel="correct, %", ylim=(0, 103))
    panel.set_xticks(lengths)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.xaxis.set_minor_formatter("")
    panel.minorticks_off()
    add_labels(panel, labels)
