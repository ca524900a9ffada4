"""The properties that section 3.5 of the paper gives its sinusoids, measured beside theory.

With w_i = base^(-2i/D), the dot product PE(p)·PE(p+k) is the sum of cos(k w_i): it depends on k
alone. For many pairs the sum approaches an integral over ln w and falls like
1 - (ln k + 0.577) / ln base: by the same amount each time k doubles, until k comes near the base.
PE(p+k) is PE(p) with every pair rotated by k w_i: a linear map that does not depend on p.

Everything is computed in float64 on the CPU.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.model.positions import angles, sinusoids

POSITIONS = (256, 2048, 16_384)  # numbers of positions of which all pairs are compared
SMALL = (2, 4, 8)  # widths in which positions come near each other
OFFSETS = (1, 8, 64)  # whose linear maps are tested
EULER = 0.5772156649015329  # the 0.577 above
EXACT = 1e-9  # tolerance for rounding, for a quantity of size 1


@dataclass(frozen=True)
class Quantity:
    """A measured quantity, with its theoretical value where there is one."""

    what: str
    base: float | None  # of the sinusoids; None: not about sinusoids
    measured: float
    theory: float | None = None
    tolerance: float = 0.0

    @property
    def agrees(self) -> bool | None:
        return None if self.theory is None else abs(self.measured - self.theory) <= self.tolerance

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "agrees": self.agrees}


@dataclass(frozen=True)
class Nearest:
    """The two nearest of a number of positions."""

    d_model: int
    base: float
    positions: int
    offset: int  # the difference of the two positions
    distance: float
    theory: float

    @property
    def agrees(self) -> bool:
        return abs(self.distance - self.theory) <= 1e-6 * self.theory + EXACT

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "agrees": self.agrees}


def encodings(start: int, end: int, d_model: int, base: float) -> Tensor:
    """PE of these positions: [end - start, D]."""
    return sinusoids(torch.arange(start, end), d_model, base)


def frequencies(d_model: int, base: float) -> Tensor:
    """w_i by the formula, the rotation of a pair from one position to the next: [D/2]."""
    return angles(torch.ones(1), d_model, base)[0]


def wavelengths(length: int, d_model: int, base: float) -> list[Quantity]:
    """Wavelengths, from the rotation of each pair between the first two positions."""
    (sine, next_sine), (cosine, next_cosine) = (
        encodings(0, 2, d_model, base).unflatten(1, (-1, 2)).permute(2, 0, 1)  # [2, rows, D/2]
    )
    turn = torch.atan2(
        next_sine * cosine - next_cosine * sine, next_cosine * cosine + next_sine * sine
    )
    waves = 2 * math.pi / turn  # [D/2]
    longest = 2 * math.pi * base ** (1 - 2 / d_model)
    whole = sum(2 * math.pi * base ** (2 * i / d_model) <= length for i in range(d_model // 2))
    return [
        Quantity("shortest wavelength", base, float(waves.min()), 2 * math.pi, EXACT),
        Quantity("longest wavelength", base, float(waves.max()), longest, EXACT * longest),
        Quantity(f"pairs with a whole wave in {length:,}", base,
                int((waves <= length).sum()), whole),
    ]  # fmt: skip


def dot_products(length: int, d_model: int, base: float) -> Tensor:
    """PE(0)·PE(k) / PE(0)·PE(0) for k < length: [length]."""
    rows = encodings(0, length, d_model, base)
    return rows @ rows[0] * (2 / d_model)


def decay(length: int, d_model: int, base: float) -> list[Quantity]:
    """How the dot product falls with k. The theory holds for many pairs; 4 are not enough."""
    products = dot_products(length, d_model, base)
    k = torch.arange(length)
    cosines = (k[:, None] * frequencies(d_model, base)).cos().mean(-1)
    change = float((products - cosines).abs().max())
    quantities = [Quantity("PE(0)·PE(k) minus sum of cosines", base, change, 0.0, EXACT)]
    law = k[2 : int(min(length - 1, base / 4)) + 1]  # the law holds far from 1 and from the base
    if len(law) > 2:
        gradient = float(np.polyfit(law.double().log().numpy(), products[law].numpy(), 1)[0])
        theory = -1 / math.log(base)
        quantities.append(
            Quantity("its gradient over ln k", base, gradient, theory, abs(theory) / 10)
        )
    below = (products < 0.5).nonzero()
    if len(below):
        theory = math.exp(-EULER) * math.sqrt(base)
        quantities.append(
            Quantity("k where it is below half", base, int(below[0]), theory, 1 + theory / 10)
        )
    rises = (products.diff() > EXACT).nonzero()
    if len(rises):
        quantities.append(Quantity("k after which it first rises", base, int(rises[0])))
    return quantities


def compare_all(d_model: int, base: float) -> tuple[list[Nearest], float]:
    """The nearest of all pairs, for each number of positions; and the largest difference between
    two dot products of the same k, relative to PE(p)·PE(p). The products are computed in blocks,
    since all of them would fill gigabytes."""
    count, block = POSITIONS[-1], POSITIONS[0]
    rows = encodings(0, count, d_model, base)  # [n, D]
    same = rows @ rows[0]  # [n]: k = 0, 1, ...
    # Row p of the matrix same[|p - q|], for all q, is a window of this: [2n - 1].
    windows = torch.cat((same.flip(0), same[1:])).unfold(0, count, 1)
    apart = torch.arange(1, count)[:, None] * frequencies(d_model, base) / 2  # [n - 1, D/2]
    theory = 2 * apart.sin().square().sum(-1).sqrt()
    nearest: list[Nearest] = []
    deviation, closest, pair = 0.0, -math.inf, (0, 0)
    for end in range(block, count + 1, block):
        start = end - block
        products = rows[start:end] @ rows[:end].t()  # [block, end]
        expected = windows[count - end : count - start, :end].flip(0)
        deviation = max(deviation, float((products - expected).abs_().max()))
        products[:, start:].fill_diagonal_(-math.inf)  # a position is not its own neighbour
        value, at = products.flatten().max(0)
        if float(value) > closest + EXACT:
            p, q = divmod(int(at), end)
            closest, pair = float(value), (start + p, q)
        if end in POSITIONS:
            distance = float((rows[pair[0]] - rows[pair[1]]).norm())
            offset, smallest = abs(pair[0] - pair[1]), float(theory[: end - 1].min())
            nearest.append(Nearest(d_model, base, end, offset, distance, smallest))
    return nearest, deviation * 2 / d_model


def linear_map(offset: int, d_model: int, base: float) -> Tensor:
    """M_k in closed form, [D, D]: PE(p+k) = PE(p) M_k, where every pair (sine, cosine) is rotated
    by k w_i: sin(a + b) = sin a cos b + cos a sin b, cos(a + b) = cos a cos b - sin a sin b."""
    turn = offset * frequencies(d_model, base)
    pairs = torch.stack((turn.cos(), -turn.sin(), turn.sin(), turn.cos()), -1)  # [D/2, 4]
    return torch.block_diag(*pairs.view(-1, 2, 2))


def fit_map(rows: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """M_k by least squares from three quarters of the positions of rows[n, D]: the matrix, and
    the positions that were left out, [n/4], which are between the others."""
    p = torch.arange(len(rows) - offset)
    left_out = p % 4 == 2
    used = p[~left_out]
    fit = torch.linalg.lstsq(rows[used], rows[used + offset], driver="gelsd")
    return fit.solution, p[left_out]  # of equally good solutions the smallest


def map_error(matrix: Tensor, before: Tensor, after: Tensor) -> float:
    """The relative error of before[n, D] M as an estimate of after[n, D]."""
    return float((before @ matrix - after).norm() / after.norm())


def linear_maps(length: int, d_model: int, base: float) -> list[Quantity]:
    """Errors of M_k where it was not fitted, the largest of all offsets: at positions between
    those of the fit, and at as many after them."""
    positions = max(length, 16) + OFFSETS[-1]
    rows = encodings(0, 2 * positions, d_model, base)
    errors: dict[str, float] = {}
    for offset in OFFSETS:
        fitted, left_out = fit_map(rows[:positions], offset)
        beyond = torch.arange(positions, 2 * positions - offset)
        for name, matrix in (("by formula", linear_map(offset, d_model, base)), ("fitted", fitted)):
            for place, p in (("between", left_out), ("beyond", beyond)):
                error = map_error(matrix, rows[p], rows[p + offset])
                key = f"{name}: error {place}"
                errors[key] = max(errors.get(key, 0.0), error)
    quantities = [Quantity(f"M_k {key}", base, error, 0.0, 1e-6) for key, error in errors.items()]
    independent = int(torch.linalg.matrix_rank(rows[:positions]))
    name = f"independent rows of {positions:,}"
    return [*quantities, Quantity(name, base, independent, min(positions, d_model))]


def needed_memory(length: int, d_model: int) -> float:
    """Peak bytes: of comparing all pairs, or of fitting a map."""
    pairs = POSITIONS[-1] * (2.5 * d_model + 4 * POSITIONS[0])
    fit = 8 * (length + OFFSETS[-1]) * d_model + 4 * d_model**2
    return 8.0 * max(pairs, fit)
