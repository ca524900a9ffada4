"""The specification is ops/reference.py: add & norm with dropout, the embedding, bias gradients.

Triton kernels of a training step; training.py calls them. Their time is that of reading and writing
memory, so each kernel reads every number once. Dropout masks are not stored: they are recomputed
from the index of a number and a seed. Sums over rows are computed in two steps, over the rows of
each program and then over programs, in a fixed order, so that runs are reproducible bit for bit.
"""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def hash_bits(x):
    """A hash of 32 bits: each output bit depends on all input bits (Wellons' lowbias32)."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def keep_mask(seed, base, row, column, threshold):
    """The dropout mask of some rows and columns: True where the random 32 bits are not below the
    threshold. The random numbers of a row begin at a position that depends on the seed."""
    begin = hash_bits(
        hash_bits(row.to(tl.uint32) ^ tl.load(base).to(tl.uint32)) ^ seed.to(tl.uint32)
    )
    step = column.to(tl.uint32) * 0x9E3779B9
    return hash_bits(begin[:, None] + step[None, :]) >= threshold.to(tl.uint32)


@triton.jit
def sum_with_dropout(
    x,
    y,
    place,
    inside,
    seed,
    base,
    row,
    d,
    threshold,
    factor,
    ADD: tl.constexpr,
    DROP: tl.constexpr,
):
    """x + dropout(y) of some rows, in float32."""
    total = tl.load(x + place, inside, 0.0).to(tl.float32)
    if ADD:
        more = tl.load(y + place, inside, 0.0).to(tl.float32)
        if DROP:
            more = tl.where(keep_mask(seed, base, row, d, threshold), more * factor, 0.0)
        total += more
    return total


@triton.jit
def normalise(x, inside, D, epsilon, NORM: tl.constexpr):
    """The normalised rows of x (NORM 1: layer norm; 2: RMS norm, without the mean), and the
    factor of each row."""
    if NORM == 1:
        x = tl.where(inside, x - (tl.sum(x, 1) / D)[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 1) / D + epsilon)
    return x * inverse[:, None], inverse


@triton.jit(do_not_specialize=["seed", "threshold", "rows"])
def add_norm_kernel(
    out, x, y, gain, shift, seed, base, threshold, factor, rows, D, epsilon,
    ADD: tl.constexpr, DROP: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = norm(x + dropout(y))."""
    row, d = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (d < D)[None, :]
    place = row[:, None].to(tl.int64) * D + d[None, :]
    total = sum_with_dropout(x, y, place, inside, seed, base, row, d, threshold, factor, ADD, DROP)
    if NORM > 0:
        total, _ = normalise(total, inside, D, epsilon, NORM)
        total *= tl.load(gain + d, d < D, 0.0).to(tl.float32)[None, :]
        if SHIFT:
            total += tl.load(shift + d, d < D, 0.0).to(tl.float32)[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["seed", "threshold", "rows"])
def add_norm_grad_kernel(
    x_grad, y_grad, partial, grad, x, y, gain, seed, base, threshold, factor, rows, D, epsilon,
    ADD: tl.constexpr, DROP: tl.constexpr, NORM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of x and y, and the gradients of gain and shift summed over the rows of this
    program: partial[programs, 2, D]. Without a norm the gradient of x is that of the output."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    d = tl.arange(0, BLOCK)
    gain_total = tl.zeros([ROWS, BLOCK], tl.float32)
    shift_total = tl.zeros([ROWS, BLOCK], tl.float32)
    if NORM > 0:
        g = tl.load(gain + d, d < D, 0.0).to(tl.float32)[None, :]
    for at in range(program * ROWS, rows, programs * ROWS):
        row = at + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (d < D)[None, :]
        place = row[:, None].to(tl.int64) * D + d[None, :]
        up = tl.load(grad + place, inside, 0.0).to(tl.float32)
        if NORM > 0:
            total = sum_with_dropout(
                x, y, place, inside, seed, base, row, d, threshold, factor, ADD, DROP
            )
            total, inverse = normalise(total, inside, D, epsilon, NORM)
            gain_total += up * total
            shift_total += up
            up = up * g
            along = tl.sum(up * total, 1) / D
            if NORM == 1:
                up -= (tl.sum(up, 1) / D)[:, None]
            up = (up - total * along[:, None]) * inverse[:, None]
            tl.store(x_grad + place, up.to(x_grad.dtype.element_ty), inside)
        if DROP:
            up = tl.where(keep_mask(seed, base, row, d, threshold), up * factor, 0.0)
            tl.store(y_grad + place, up.to(y_grad.dtype.element_ty), inside)
    if NORM > 0:
        place = partial + program * 2 * D + d
        tl.store(place, tl.sum(gain_total, 0), d < D)
        tl.store(place + D, tl.sum(shift_total, 0), d < D)


@triton.jit(do_not_specialize=["seed", "threshold", "rows"])
def embed_kernel(
    out, table, tokens, add, positions, scale, seed, base, threshold, factor, rows, D,
    ADD: tl.constexpr, DROP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[n] = dropout(table[tokens[n]] * scale + add[positions[n]])."""
    row, d = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    real, inner = row < rows, (d < D)[None, :]
    inside = real[:, None] & inner
    token = tl.load(tokens + row, real, 0)
    total = tl.load(table + token[:, None] * D + d[None, :], inside, 0.0).to(tl.float32) * scale
    if ADD:
        position = tl.load(positions + row, real, 0)
        total += tl.load(add + position[:, None] * D + d[None, :], inside, 0.0).to(tl.float32)
    if DROP:
        total = tl.where(keep_mask(seed, base, row, d, threshold), total * factor, 0.0)
    place = row[:, None].to(tl.int64) * D + d[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["seed", "threshold", "rows"])
def embed_grad_kernel(
    result, grad, seed, base, threshold, factor, rows, D,
    DROP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient before dropout; factor: the factor of dropout times the scale."""
    row, d = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (d < D)[None, :]
    place = row[:, None].to(tl.int64) * D + d[None, :]
    up = tl.load(grad + place, inside, 0.0).to(tl.float32) * factor
    if DROP:
        up = tl.where(keep_mask(seed, base, row, d, threshold), up, 0.0)
    tl.store(result + place, up, inside)


@triton.jit(do_not_specialize=["rows"])
def bias_grad_kernel(
    partial, result, grad, seen, rows, F,
    ACTIVATION: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the gradient[N, F] of a product with a bias over some rows: partial[programs, F].

    ACTIVATION: `grad` is the gradient after an activation; the gradient before it is written to
    `result`. seen: the output of ReLU (1), or the input of GELU (2).
    """
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for step in range(STEPS):
        row = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (f < F)[None, :]
        place = row[:, None].to(tl.int64) * F + f[None, :]
        up = tl.load(grad + place, inside, 0.0).to(tl.float32)
        if ACTIVATION > 0:
            x = tl.load(seen + place, inside, 0.0).to(tl.float32)
            if ACTIVATION == 1:
                up = tl.where(x > 0, up, 0.0)
            else:
                below = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)
                up *= below + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
            tl.store(result + place, up.to(result.dtype.element_ty), inside)
        total += up
    tl.store(partial + tl.program_id(0) * F + f, tl.sum(total, 0), f < F)


@triton.jit(do_not_specialize=["count"])
def sum_kernel(out, partial, count, F, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out[F] = the sum of partial[count, F] over its rows."""
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for at in range(0, count, ROWS):
        row = at + tl.arange(0, ROWS)
        inside = (row < count)[:, None] & (f < F)[None, :]
        total += tl.load(partial + row[:, None] * F + f[None, :], inside, 0.0)
    tl.store(out + f, tl.sum(total, 0), f < F)
