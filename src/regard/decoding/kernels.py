"""Triton kernels of a decoding step on a GPU.

A step has few rows and reads every weight once, so its floor is the time to read them; what it
really costs is the number of kernels. These do in one launch what PyTorch does in several: a
product with the norm before it and the sum after it, attention with the new keys and values
written on the way, and the whole of beam search over the vocabulary in two.

Imported only where there is a GPU; fused.py calls them, tests/gpu holds them to the plain step.
"""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import os

import triton
import triton.language as tl

try:  # A kernel may start while the one before still runs, and wait when it needs its results.
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:
    gdc_launch_dependents = gdc_wait = None

EARLY = gdc_wait is not None and not os.environ.get("TRITON_INTERPRET")
LAYER_NORM, RMS_NORM = 1, 2  # 0: no norm
RELU, GELU = 1, 2  # 0: neither


@triton.jit
def wait(EARLY: tl.constexpr):
    """Until the kernel before has written all its results. The barrier keeps the compiler from
    loading them earlier."""
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
    """The rows of x, normalised, times a gain, and a shift added: all float32, [ROWS, D]."""
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
    out, x, weight, bias, gain, shift, residual, residual_gain, residual_shift,
    R, D, V, epsilon,
    BIAS: tl.constexpr, NORM: tl.constexpr, SHIFT: tl.constexpr, ACTIVATION: tl.constexpr,
    RESIDUAL: tl.constexpr, RESIDUAL_NORM: tl.constexpr, RESIDUAL_SHIFT: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE_V: tl.constexpr,
    WHOLE_D: tl.constexpr, DOT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """out[R, V] = f(norm(x)[R, D] weight[V, D]ᵀ + bias) + norm(residual)[R, V], for R <= ROWS.

    WHOLE_D: BLOCK_D holds a whole row of x, which a norm needs; WHOLE_V: the same of the residual.
    Weights are loaded before there is anything to multiply them with.
    """
    if EARLY:
        gdc_launch_dependents()
    rows = tl.arange(0, ROWS)
    real = rows < R
    v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    place = rows[:, None] * V + v[None, :]
    inside_v = real[:, None] & (v < V)[None, :]
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
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0)
    if ACTIVATION == 2:
        total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    if RESIDUAL:
        add = tl.load(residual + place, inside_v, 0.0).to(tl.float32)
        if RESIDUAL_NORM > 0:
            # The norm needs whole rows, of which this program keeps its own columns.
            u = tl.arange(0, WHOLE_V)
            inside_u = real[:, None] & (u < V)[None, :]
            whole = tl.load(residual + rows[:, None] * V + u[None, :], inside_u, 0.0)
            whole = whole.to(tl.float32)
            mean = tl.zeros([ROWS], tl.float32)
            if RESIDUAL_NORM == 1:
                mean = tl.sum(whole, 1) / V
            whole = tl.where(inside_u, whole - mean[:, None], 0.0)
            inverse = 1.0 / tl.sqrt(tl.sum(whole * whole, 1) / V + epsilon)
            add = (add - mean[:, None]) * inverse[:, None]
            add = add * tl.load(residual_gain + v, v < V, 0.0).to(tl.float32)[None, :]
            if RESIDUAL_SHIFT:
                add += tl.load(residual_shift + v, v < V, 0.0).to(tl.float32)[None, :]
        total += add
    tl.store(out + place, total.to(out.dtype.element_ty), inside_v)


@triton.jit
def sum_norm_kernel(
    total, normed, x, add, gain, shift, D, epsilon,
    NORM: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """total = x + add, and its norm, one row a program."""
    row = tl.program_id(0).to(tl.int64) * D
    d = tl.arange(0, BLOCK)
    inside = d < D
    a, b = tl.load(x + row + d, inside, 0.0), tl.load(add + row + d, inside, 0.0)
    both = (a.to(tl.float32) + b.to(tl.float32)).to(total.dtype.element_ty)
    tl.store(total + row + d, both, inside)
    g, s = tl.load(gain + d, inside, 0.0), tl.load(shift + d, inside, 0.0)
    whole = tl.reshape(both.to(tl.float32), [1, BLOCK])
    seen = tl.reshape(inside, [1, BLOCK])
    result = normalised(whole, seen, g, s, D, epsilon, NORM, SHIFT)
    tl.store(normed + row + d, tl.reshape(result, [BLOCK]).to(normed.dtype.element_ty), inside)


@triton.jit
def attend_kernel(
    out, query, new_key, new_value, keys, values, visible, limit, scale, heads, slots, stride,
    NEW: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One head of one sentence.

    NEW: self-attention. A hypothesis looks at those of the first `limit` slots that are visible to
    it, and at its own new key and value, which are written to the slots from `limit` on.
    Otherwise: cross-attention, to the first `limit[sentence]` slots.
    """
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    sentence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    hypothesis, c = tl.arange(0, ROWS), tl.arange(0, SIZE)
    real = (hypothesis < WIDTH)[:, None]
    row = sentence * WIDTH + hypothesis
    place = head * SIZE + c[None, :]
    q = tl.load(query + row[:, None] * stride + place, real, 0.0)  # [ROWS, SIZE]
    base = tl.program_id(0).to(tl.int64) * slots * SIZE
    if NEW:
        end = tl.load(limit)
        own_key = tl.load(new_key + row[:, None] * stride + place, real, 0.0)
        own_value = tl.load(new_value + row[:, None] * stride + place, real, 0.0)
        slot = base + (end + hypothesis[:, None]) * SIZE + c[None, :]
        tl.store(keys + slot, own_key, real)
        tl.store(values + slot, own_value, real)
        most = tl.sum(q.to(tl.float32) * own_key.to(tl.float32), 1) * scale
        mass = tl.full([ROWS], 1.0, tl.float32)
        total = own_value.to(tl.float32)
    else:
        end = tl.load(limit + sentence)
        most = tl.full([ROWS], -1e30, tl.float32)
        mass = tl.zeros([ROWS], tl.float32)
        total = tl.zeros([ROWS, SIZE], tl.float32)
    for start in range(0, end, BLOCK):
        t = start + tl.arange(0, BLOCK)
        there = (t < end)[:, None]
        key = tl.load(keys + base + t[:, None] * SIZE + c[None, :], there, 0.0)
        value = tl.load(values + base + t[:, None] * SIZE + c[None, :], there, 0.0)
        scores = tl.dot(q, tl.trans(key), input_precision="ieee") * scale  # [ROWS, BLOCK]
        seen = real & (t < end)[None, :]
        if NEW:
            seen = tl.load(visible + row[:, None] * slots + t[None, :], seen, 0) != 0
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(most, tl.max(scores, 1))
        weight = tl.where(seen, tl.exp(scores - higher[:, None]), 0.0)
        old = tl.exp(most - higher)
        mass = mass * old + tl.sum(weight, 1)
        total = total * old[:, None]
        total += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        most = higher
    total = total / tl.where(mass > 0, mass, 1.0)[:, None]  # 0: rows that do not exist
    place = row[:, None] * heads * SIZE + place
    tl.store(out + place, total.to(out.dtype.element_ty), real)


@triton.jit
def embed_kernel(
    out, tokens, positions, table, rows, scale, D, places,
    WIDTH: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """out[n] = table[tokens[n]] * scale + rows[the position of its sentence]."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    n = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    token = tl.load(tokens + n)
    x = tl.load(table + token * D + d, d < D, 0.0).to(tl.float32) * scale
    x = x.to(out.dtype.element_ty).to(tl.float32)
    if ADD:
        # A sentence that is done may have gone on past the last position.
        position = tl.minimum(tl.load(positions + n // WIDTH), places - 1)
        add = tl.load(rows + position * D + d, d < D, 0.0)
        x += add.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + n * D + d, x.to(out.dtype.element_ty), d < D)


@triton.jit
def move_kernel(
    visible, parents, next, slots,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Every hypothesis sees what its parent saw, and from now on its own new slot."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    sentence = tl.program_id(0)
    hypothesis = tl.arange(0, ROWS)
    real = hypothesis < WIDTH
    parent = tl.load(parents + sentence * WIDTH + hypothesis, real, 0)
    begin = tl.load(next)
    base = sentence.to(tl.int64) * WIDTH * slots
    for start in range(0, begin + WIDTH, BLOCK):
        t = start + tl.arange(0, BLOCK)
        inside = real[:, None] & (t < slots)[None, :]
        seen = tl.load(visible + base + parent[:, None] * slots + t[None, :], inside, 0)
        own = t[None, :] == begin + hypothesis[:, None]
        seen = tl.where(t[None, :] < begin, seen, own.to(seen.dtype))
        tl.debug_barrier()  # every row is read before any is written
        tl.store(visible + base + hypothesis[:, None] * slots + t[None, :], seen, inside)


@triton.jit
def scan_kernel(
    logits, part, highest, time, least, V, blocks, eos,
    WIDTH: tl.constexpr, LEAST: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Of one block of one row of logits: its maximum and sum of exponentials, and the maximum of
    each of its pieces."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    row, block = tl.program_id(0), tl.program_id(1)
    piece = block * PIECES + tl.arange(0, PIECES)
    v = piece[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    x = tl.load(logits + row.to(tl.int64) * V + v, v < V, -float("inf")).to(tl.float32)
    most = tl.max(tl.max(x, 1), 0)
    mass = tl.sum(tl.sum(tl.exp(x - most), 1), 0)
    tl.store(part + (row * blocks + block) * 2, most)
    tl.store(part + (row * blocks + block) * 2 + 1, mass)
    if LEAST:
        early = tl.load(time) < tl.load(least + row // WIDTH)
        x = tl.where((v == eos) & early, -float("inf"), x)
    tl.store(highest + row * blocks * PIECES + piece, tl.max(x, 1))


@triton.jit
def narrow_kernel(
    logits, part, highest, values, tokens, time, least, V, blocks, eos,
    WIDTH: tl.constexpr, CANDIDATES: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr,
    BLOCKS: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr, ALL: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The best of one row, as log-probabilities. The C best logits lie in the C pieces whose
    maxima are highest: only these are looked through."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    most = tl.load(part + (row * blocks + block) * 2, block < blocks, -float("inf"))
    mass = tl.load(part + (row * blocks + block) * 2 + 1, block < blocks, 0.0)
    top = tl.max(most, 0)
    normal = top + tl.log(tl.sum(mass * tl.exp(most - top), 0))
    i = tl.arange(0, ALL)
    maxima = tl.load(highest + row * blocks * PIECES + i, i < blocks * PIECES, -float("inf"))
    rank = tl.arange(0, MOST)
    chosen = tl.full([MOST], -1, tl.int32)
    for c in tl.static_range(CANDIDATES):
        best, at = tl.max(maxima, 0, return_indices=True)
        at_or_none = tl.where(best > -float("inf"), at, -1)
        chosen = tl.where(rank == c, at_or_none, chosen)
        maxima = tl.where(i == at, -float("inf"), maxima)
    v = chosen[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    inside = (chosen >= 0)[:, None] & (v < V)
    x = tl.load(logits + row.to(tl.int64) * V + v, inside, -float("inf")).to(tl.float32)
    if LEAST:
        early = tl.load(time) < tl.load(least + row // WIDTH)
        x = tl.where((v == eos) & early, -float("inf"), x)
    x = tl.reshape(x, [MOST * PIECE])
    v = tl.reshape(v, [MOST * PIECE])
    j = tl.arange(0, MOST * PIECE)
    for c in tl.static_range(CANDIDATES):
        best, at = tl.max(x, 0, return_indices=True)
        tl.store(values + row * CANDIDATES + c, best - normal)
        tl.store(tokens + row * CANDIDATES + c, tl.sum(tl.where(j == at, v, 0), 0))
        x = tl.where(j == at, -float("inf"), x)


@triton.jit
def choose_kernel(
    values, tokens, scores, newest, parents, answers, done, limits, records, time, rows,
    sentences, eos,
    WIDTH: tl.constexpr, CANDIDATES: tl.constexpr, ALL: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Beam search of one sentence, as Beams.advance describes it."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    sentence = tl.program_id(0)
    i = tl.arange(0, ALL)
    there = i < WIDTH * CANDIDATES
    parent = i // CANDIDATES
    place = sentence * WIDTH * CANDIDATES + i
    logprob = tl.load(values + place, there, -float("inf"))
    token = tl.load(tokens + place, there, 0)
    before = tl.load(scores + sentence * WIDTH + parent, there, -float("inf"))
    score = before + logprob.to(tl.float64)
    now = tl.load(time)
    record = (now * sentences + tl.load(rows + sentence)) * CANDIDATES * 4
    live, ended, alive = sentence * 0, sentence * 0, sentence * 0
    tl.debug_barrier()  # the scores are read before they are written
    for rank in tl.static_range(CANDIDATES):
        best, at = tl.max(score, 0, return_indices=True)
        chosen = i == at
        its_token = tl.sum(tl.where(chosen, token, 0), 0)
        its_parent = tl.sum(tl.where(chosen, parent, 0), 0)
        its_logprob = tl.max(tl.where(chosen, logprob, -float("inf")), 0)
        score = tl.where(chosen, -float("inf"), score)
        token = tl.where(chosen, -1, token)  # where nothing is possible: not the same one again
        tl.store(records + record + rank * 4, its_token.to(tl.float64))
        tl.store(records + record + rank * 4 + 1, its_parent.to(tl.float64))
        tl.store(records + record + rank * 4 + 2, its_logprob.to(tl.float64))
        tl.store(records + record + rank * 4 + 3, best)
        is_end = its_token == eos
        possible = best > -float("inf")
        if rank < WIDTH:
            ended += (is_end & possible).to(tl.int32)
        goes_on = (is_end == 0) & (live < WIDTH)
        tl.store(newest + sentence * WIDTH + live, tl.maximum(its_token, 0), goes_on)
        tl.store(parents + sentence * WIDTH + live, its_parent, goes_on)
        tl.store(scores + sentence * WIDTH + live, best, goes_on)
        alive += (goes_on & possible).to(tl.int32)
        live += goes_on.to(tl.int32)
    found = tl.load(answers + sentence) + ended
    tl.store(answers + sentence, found)
    over = (found >= WIDTH) | (now + 1 >= tl.load(limits + sentence)) | (alive == 0)
    tl.store(done + sentence, (tl.load(done + sentence) != 0) | over)


@triton.jit
def tick_kernel(
    time, next, positions, sentences, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """One step later: time, the next slots, and every sentence's position."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    if tl.program_id(0) == 0:
        tl.store(time, tl.load(time) + 1)
        for w in tl.static_range(WIDTH):
            tl.store(next + w, tl.load(next + w) + WIDTH)
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(positions + b, b < sentences, 0)
    tl.store(positions + b, old + 1, b < sentences)
