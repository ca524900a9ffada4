"""The specification is Transformer.step in model/transformer.py: kernels of a decoding step.

A step has few rows and reads every weight once, so it cannot be faster than reading the weights. In
practice most of its time is the launch of kernels. Each kernel here does the work of several
PyTorch kernels: a product with the norm before it and the sum after it, and attention that also
writes the new keys and values. The search over the vocabulary is in search_kernels.py.

This module is imported only on machines with a GPU. decoding/engines/cuda_step.py calls these
kernels; tests/gpu compares them with the eager step.
"""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import os

import torch
import triton
import triton.language as tl

try:  # A kernel can start while the previous one runs, and waits before it reads its results.
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:
    gdc_launch_dependents = gdc_wait = None

EARLY = (
    gdc_wait is not None
    and not os.environ.get("TRITON_INTERPRET")
    and torch.cuda.is_available()
    and torch.cuda.get_device_capability() >= (9, 0)
)


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait until the previous kernel has written all its results. The barrier prevents the compiler
    from loading them earlier."""
    if EARLY:
        gdc_wait()
        tl.debug_barrier()


@triton.jit
def multiplied(a, w, DOT: tl.constexpr):
    """a[ROWS, D] w[V, D]ᵀ."""
    if DOT:
        return tl.dot(a, tl.trans(w), input_precision="ieee")
    return tl.sum(a.to(tl.float32)[:, None, :] * w.to(tl.float32)[None, :, :], 2)


@triton.jit
def normalised(x, inside, gain, shift, D, epsilon, NORM: tl.constexpr, SHIFT: tl.constexpr):
    """The rows of x normalised, times a gain, plus a shift: float32, [ROWS, D]."""
    mean = tl.zeros([x.shape[0]], tl.float32)
    if NORM == 1:
        mean = tl.sum(x, 1) / D
    x = tl.where(inside, x - mean[:, None], 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 1) / D + epsilon)
    x = x * inverse[:, None] * gain.to(tl.float32)[None, :]
    if SHIFT:
        x += shift.to(tl.float32)[None, :]
    return x


@triton.jit
def product_kernel(
    out, x, weight, bias, gain, shift, normed, residual, R, D, V, epsilon,
    BIAS: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr, ACTIVATION: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE_D: tl.constexpr,
    DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out[R, V] = f(norm(x)[R, D] weight[V, D]ᵀ + bias) + residual[R, V], for R <= ROWS.

    WHOLE_D: BLOCK_D holds a whole row of x, which a norm needs; the norm is written to `normed`.
    Weights are loaded before the previous kernel has ended.
    """
    if EARLY:
        gdc_launch_dependents()
    rows = tl.arange(0, ROWS)
    real = rows < R
    v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    total = tl.zeros([ROWS, BLOCK_V], tl.float32)
    if BIAS:
        total += tl.load(bias + v, v < V, 0.0).to(tl.float32)[None, :]
    if WHOLE_D:
        d = tl.arange(0, BLOCK_D)
        w = tl.load(
            weight + v[:, None].to(tl.int64) * D + d[None, :],
            (v < V)[:, None] & (d < D)[None, :], 0.0,
        )  # fmt: skip
        if NORM > 0:
            g, s = tl.load(gain + d, d < D, 0.0), tl.load(shift + d, d < D, 0.0)
        wait(EARLY)
        inside = real[:, None] & (d < D)[None, :]
        a = tl.load(x + rows[:, None] * D + d[None, :], inside, 0.0)
        if NORM > 0:
            a = normalised(a.to(tl.float32), inside, g, s, D, epsilon, NORM, SHIFT).to(w.dtype)
            if tl.program_id(0) == 0:
                tl.store(normed + rows[:, None] * D + d[None, :], a, inside)
        total += multiplied(a, w, DOT)
    else:
        wait(EARLY)
        for start in range(0, D, BLOCK_D):
            e = start + tl.arange(0, BLOCK_D)
            part = tl.load(
                weight + v[:, None].to(tl.int64) * D + e[None, :],
                (v < V)[:, None] & (e < D)[None, :], 0.0,
            )  # fmt: skip
            some = real[:, None] & (e < D)[None, :]
            total += multiplied(tl.load(x + rows[:, None] * D + e[None, :], some, 0.0), part, DOT)
    finish(out, total, residual, rows, v, R, V, ACTIVATION, RESIDUAL)


@triton.jit
def finish(out, total, residual, rows, v, R, V, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr):
    """out = f(total) + residual, for these rows and columns."""
    place = rows[:, None].to(tl.int64) * V + v[None, :]
    inside = (rows < R)[:, None] & (v < V)[None, :]
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0)
    if ACTIVATION == 2:
        total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    if ACTIVATION == 4:  # 0.5 (1 + tanh(z)) = sigmoid(2 z)
        cube = total * total * total
        total *= tl.sigmoid(1.5957691216057308 * (total + 0.044715 * cube))
    if ACTIVATION == 5:
        total *= tl.sigmoid(total)
    if RESIDUAL:
        total += tl.load(residual + place, inside, 0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), inside)


@triton.jit
def tile_kernel(
    out, x, weight, bias, residual, R, D, V,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, RESIDUAL: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out[R, V] = f(x[R, D] weight[V, D]ᵀ + bias) + residual[R, V], one tile per program."""
    if EARLY:
        gdc_launch_dependents()
    v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    rows = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    total = tl.zeros([BLOCK_R, BLOCK_V], tl.float32)
    wait(EARLY)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        inside = (d < D)[None, :]
        a = tl.load(x + rows[:, None] * D + d[None, :], (rows < R)[:, None] & inside, 0.0)
        at = weight + v[:, None].to(tl.int64) * D + d[None, :]
        w = tl.load(at, (v < V)[:, None] & inside, 0.0)
        total = tl.dot(a, tl.trans(w), total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + v, v < V, 0.0).to(tl.float32)[None, :]
    finish(out, total, residual, rows, v, R, V, ACTIVATION, RESIDUAL)


@triton.jit
def sum_norm_kernel(
    total, normed, x, add, gain, shift, D, epsilon,
    ADD: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """total = x + add (without ADD: x, which is not written), and its norm, one row per program."""
    if EARLY:
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64) * D
    d = tl.arange(0, BLOCK)
    inside = d < D
    g, s = tl.load(gain + d, inside, 0.0), tl.load(shift + d, inside, 0.0)
    wait(EARLY)
    both = tl.load(x + row + d, inside, 0.0)
    if ADD:
        b = tl.load(add + row + d, inside, 0.0)
        both = (both.to(tl.float32) + b.to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + row + d, both, inside)
    whole = tl.reshape(both.to(tl.float32), [1, BLOCK])
    seen = tl.reshape(inside, [1, BLOCK])
    result = normalised(whole, seen, g, s, D, epsilon, NORM, SHIFT)
    tl.store(normed + row + d, tl.reshape(result, [BLOCK]).to(normed.dtype.element_ty), inside)


@triton.jit
def attend_block(peak, mass, total, q, key, value, seen, scale):
    """Add some keys and values to a softmax attention: its maximum, sum and weighted values."""
    scores = tl.dot(q, tl.trans(key), input_precision="ieee") * scale  # [ROWS, BLOCK]
    scores = tl.where(seen, scores, -1e30)
    higher = tl.maximum(peak, tl.max(scores, 1))
    weight = tl.where(seen, tl.exp(scores - higher[:, None]), 0.0)
    old = tl.exp(peak - higher)
    mass = mass * old + tl.sum(weight, 1)
    total = total * old[:, None]
    total += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return higher, mass, total


@triton.jit
def attend_kernel(
    out, query, new_key, new_value, keys, values, visible, limit, scale, heads, slots, stride,
    by_sentence, by_head, by_slot,
    NEW: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Attention of one head of one sentence.

    NEW: self-attention. A hypothesis attends to those of the first `limit` slots that are visible
    to it, and to its own new key and value, which are written to the slots from `limit` on.
    Otherwise: cross-attention to the first `limit[sentence]` slots.

    Old keys and values are loaded before the query is ready, because no kernel of this step writes
    them.
    """
    if EARLY:
        gdc_launch_dependents()
    sentence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    hypothesis, c = tl.arange(0, ROWS), tl.arange(0, SIZE)
    real = (hypothesis < WIDTH)[:, None]
    row = sentence * WIDTH + hypothesis
    place = head * SIZE + c[None, :]
    base = sentence.to(tl.int64) * by_sentence + head * by_head
    end = tl.load(limit if NEW else limit + sentence).to(tl.int32)
    t = tl.arange(0, BLOCK)
    at, in_use = base + t[:, None] * by_slot + c[None, :], (t < end)[:, None]
    key, value = tl.load(keys + at, in_use, 0.0), tl.load(values + at, in_use, 0.0)
    wait(EARLY)
    q = tl.load(query + row[:, None] * stride + place, real, 0.0)  # [ROWS, SIZE]
    if NEW:
        own_key = tl.load(new_key + row[:, None] * stride + place, real, 0.0)
        own_value = tl.load(new_value + row[:, None] * stride + place, real, 0.0)
        slot = base + (end + hypothesis[:, None]) * by_slot + c[None, :]
        tl.store(keys + slot, own_key, real)
        tl.store(values + slot, own_value, real)
        peak = tl.sum(q.to(tl.float32) * own_key.to(tl.float32), 1) * scale
        mass = tl.full([ROWS], 1.0, tl.float32)
        total = own_value.to(tl.float32)
    else:
        peak = tl.full([ROWS], -1e30, tl.float32)
        mass = tl.zeros([ROWS], tl.float32)
        total = tl.zeros([ROWS, SIZE], tl.float32)
    seen = real & (t < end)[None, :]
    if NEW:
        seen = tl.load(visible + row[:, None] * slots + t[None, :], seen, 0) != 0
    peak, mass, total = attend_block(peak, mass, total, q, key, value, seen, scale)
    for start in range(BLOCK, end, BLOCK):
        t = start + tl.arange(0, BLOCK)
        at, in_use = base + t[:, None] * by_slot + c[None, :], (t < end)[:, None]
        key, value = tl.load(keys + at, in_use, 0.0), tl.load(values + at, in_use, 0.0)
        seen = real & (t < end)[None, :]
        if NEW:
            seen = tl.load(visible + row[:, None] * slots + t[None, :], seen, 0) != 0
        peak, mass, total = attend_block(peak, mass, total, q, key, value, seen, scale)
    total = total / tl.where(mass > 0, mass, 1.0)[:, None]  # 0: rows that do not exist
    place = row[:, None] * heads * SIZE + place
    tl.store(out + place, total.to(out.dtype.element_ty), real)


@triton.jit
def begin_kernel(
    out, tokens, positions, table, rows, visible, parents, next, scale, D, places, slots,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
    SLOTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out[n] = table[tokens[n]] * scale + rows[position of the sentence]. The first program of a
    sentence also updates `visible`: each hypothesis sees the slots of its parent and its new slot.

    The kernel does not start before the previous step has ended, so that the kernels after it can
    load the results of earlier steps early.
    """
    if EARLY:
        gdc_launch_dependents()
    n = tl.program_id(0)
    sentence = n // WIDTH
    d = tl.arange(0, BLOCK)
    token = tl.load(tokens + n)
    x = tl.load(table + token * D + d, d < D, 0.0).to(tl.float32) * scale
    x = x.to(out.dtype.element_ty).to(tl.float32)
    if ADD:
        # A sentence that is done can be past the last position.
        position = tl.minimum(tl.load(positions + sentence), places - 1)
        add = tl.load(rows + position * D + d, d < D, 0.0)
        x += add.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + n * D + d, x.to(out.dtype.element_ty), d < D)
    if n % WIDTH == 0:
        hypothesis = tl.arange(0, ROWS)
        real = hypothesis < WIDTH
        parent = tl.load(parents + n + hypothesis, real, 0)
        begin = tl.load(next)
        base = n.to(tl.int64) * slots
        for start in range(0, begin + WIDTH, SLOTS):
            t = start + tl.arange(0, SLOTS)
            inside = real[:, None] & (t < slots)[None, :]
            seen = tl.load(visible + base + parent[:, None] * slots + t[None, :], inside, 0)
            own = t[None, :] == begin + hypothesis[:, None]
            seen = tl.where(t[None, :] < begin, seen, own.to(seen.dtype))
            tl.debug_barrier()  # every row is read before any is written
            tl.store(visible + base + hypothesis[:, None] * slots + t[None, :], seen, inside)
