"""Triton kernels of a decoding step on a GPU.

A step has few rows and reads every weight once, so its floor is the time to read them; what it
really costs is the number of kernels. These do in one launch what PyTorch does in several: a
product with the norm before it and the sum after it, attention with the new keys and values
written on the way, and the whole of beam search over the vocabulary in two.

Imported only where there is a GPU; fused.py calls them, tests/gpu holds them to the plain step.
"""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import triton
import triton.language as tl

LAYER_NORM, RMS_NORM = 1, 2  # 0: no norm
RELU, GELU = 1, 2  # 0: neither


@triton.jit
def moments(x, row_stride, rows, real, D, epsilon, NORM: tl.constexpr, BLOCK: tl.constexpr):
    """Mean and 1 / standard deviation of the rows of x[*, D]; of RMSNorm the mean is 0."""
    mean = tl.zeros([rows.shape[0]], tl.float32)
    if NORM == 1:
        for start in range(0, D, BLOCK):
            d = start + tl.arange(0, BLOCK)
            inside = real[:, None] & (d < D)[None, :]
            part = tl.load(x + rows[:, None] * row_stride + d[None, :], inside, 0.0)
            mean += tl.sum(part.to(tl.float32), 1)
        mean = mean / D
    square = tl.zeros([rows.shape[0]], tl.float32)
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)
        inside = real[:, None] & (d < D)[None, :]
        part = tl.load(x + rows[:, None] * row_stride + d[None, :], inside, 0.0).to(tl.float32)
        part = tl.where(inside, part - mean[:, None], 0.0)
        square += tl.sum(part * part, 1)
    return mean, 1.0 / tl.sqrt(square / D + epsilon)


@triton.jit
def product_kernel(
    out, x, weight, bias, gain, shift, residual, residual_gain, residual_shift,
    R, D, V, epsilon,
    BIAS: tl.constexpr, SHIFT: tl.constexpr, NORM: tl.constexpr, ACTIVATION: tl.constexpr,
    RESIDUAL: tl.constexpr, RESIDUAL_NORM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[R, V] = f(norm(x)[R, D] weight[V, D]ᵀ + bias) + norm(residual)[R, V], for R <= ROWS."""
    rows = tl.arange(0, ROWS)
    real = rows < R
    v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    if NORM > 0:
        mean, inverse = moments(x, D, rows, real, D, epsilon, NORM, BLOCK_D)
    total = tl.zeros([ROWS, BLOCK_V], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        inside = (v < V)[:, None] & (d < D)[None, :]
        w = tl.load(weight + v[:, None].to(tl.int64) * D + d[None, :], inside, 0.0)
        a = tl.load(x + rows[:, None] * D + d[None, :], real[:, None] & (d < D)[None, :], 0.0)
        if NORM > 0:
            a = (a.to(tl.float32) - mean[:, None]) * inverse[:, None]
            a = a * tl.load(gain + d, d < D, 0.0).to(tl.float32)[None, :]
            if SHIFT:
                a += tl.load(shift + d, d < D, 0.0).to(tl.float32)[None, :]
        total += tl.dot(a.to(w.dtype), tl.trans(w), input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + v, v < V, 0.0).to(tl.float32)[None, :]
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0)
    if ACTIVATION == 2:
        total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    place = rows[:, None] * V + v[None, :]
    inside = real[:, None] & (v < V)[None, :]
    if RESIDUAL:
        add = tl.load(residual + place, inside, 0.0).to(tl.float32)
        if RESIDUAL_NORM > 0:
            mean, inverse = moments(residual, V, rows, real, V, epsilon, RESIDUAL_NORM, BLOCK_D)
            add = (add - mean[:, None]) * inverse[:, None]
            add = add * tl.load(residual_gain + v, v < V, 0.0).to(tl.float32)[None, :]
            if SHIFT:
                add += tl.load(residual_shift + v, v < V, 0.0).to(tl.float32)[None, :]
        total += add
    tl.store(out + place, total.to(out.dtype.element_ty), inside)


@triton.jit
def attend_kernel(
    out, query, new_key, new_value, keys, values, visible, limit, scale, heads, slots, stride,
    NEW: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head of one sentence.

    NEW: self-attention. A hypothesis looks at those of the first `limit` slots that are visible to
    it, and at its own new key and value, which are written to the slots from `limit` on.
    Otherwise: cross-attention, to the first `limit[sentence]` slots.
    """
    sentence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    hypothesis, c = tl.arange(0, ROWS), tl.arange(0, SIZE)
    real = (hypothesis < WIDTH)[:, None]
    row = sentence * WIDTH + hypothesis
    place = head * SIZE + c[None, :]
    q = tl.load(query + row[:, None] * stride + place, real, 0.0)  # [ROWS, SIZE]
    base = tl.program_id(0).to(tl.int64) * slots * SIZE
    if NEW:
        end = tl.load(limit)
        key = tl.load(new_key + row[:, None] * stride + place, real, 0.0)
        value = tl.load(new_value + row[:, None] * stride + place, real, 0.0)
        slot = base + (end + hypothesis[:, None]) * SIZE + c[None, :]
        tl.store(keys + slot, key, real)
        tl.store(values + slot, value, real)
        most = tl.sum(q.to(tl.float32) * key.to(tl.float32), 1) * scale
        mass = tl.full([ROWS], 1.0, tl.float32)
        total = value.to(tl.float32)
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
        scores = tl.dot(q, tl.trans(key), input_precision=PRECISION) * scale  # [ROWS, BLOCK]
        seen = real & (t < end)[None, :]
        if NEW:
            seen = tl.load(visible + row[:, None] * slots + t[None, :], seen, 0) != 0
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(most, tl.max(scores, 1))
        weight = tl.where(seen, tl.exp(scores - higher[:, None]), 0.0)
        old = tl.exp(most - higher)
        mass = mass * old + tl.sum(weight, 1)
        total = total * old[:, None]
        total += tl.dot(weight.to(value.dtype), value, input_precision=PRECISION)
        most = higher
    total = total / tl.where(mass > 0, mass, 1.0)[:, None]  # 0: rows that do not exist
    place = row[:, None] * heads * SIZE + place
    tl.store(out + place, total.to(out.dtype.element_ty), real)


@triton.jit
def embed_kernel(
    out, tokens, positions, table, rows, scale, D,
    WIDTH: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[n] = table[tokens[n]] * scale + rows[the position of its sentence]."""
    n = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    token = tl.load(tokens + n)
    x = tl.load(table + token * D + d, d < D, 0.0).to(tl.float32) * scale
    x = x.to(out.dtype.element_ty).to(tl.float32)
    if ADD:
        position = tl.load(positions + n // WIDTH)
        add = tl.load(rows + position * D + d, d < D, 0.0)
        x += add.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + n * D + d, x.to(out.dtype.element_ty), d < D)


@triton.jit
def move_kernel(
    visible, parents, next, slots,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Every hypothesis sees what its parent saw, and from now on its own new slot."""
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
    logits, part, values, tokens, time, least, V, blocks, eos,
    WIDTH: tl.constexpr, CANDIDATES: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one block of one row of logits: its maximum and sum of exponentials, and its best."""
    row, block = tl.program_id(0), tl.program_id(1)
    v = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row.to(tl.int64) * V + v, v < V, -float("inf")).to(tl.float32)
    most = tl.max(x, 0)
    mass = tl.sum(tl.exp(x - most), 0)
    place = row * blocks + block
    tl.store(part + place * 2, most)
    tl.store(part + place * 2 + 1, mass)
    if LEAST:
        early = tl.load(time) < tl.load(least + row // WIDTH)
        x = tl.where((v == eos) & early, -float("inf"), x)
    for i in tl.static_range(CANDIDATES):
        best = tl.max(x, 0)
        at = tl.argmax(x, 0)
        tl.store(values + place * CANDIDATES + i, best)
        tl.store(tokens + place * CANDIDATES + i, block * BLOCK + at)
        x = tl.where(v == block * BLOCK + at, -float("inf"), x)


@triton.jit
def choose_kernel(
    part, values, tokens, scores, newest, parents, answers, done, limits, records, time, rows,
    blocks, sentences, eos,
    WIDTH: tl.constexpr, CANDIDATES: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    ALL: tl.constexpr,
):  # fmt: skip
    """Beam search of one sentence, as Beams.advance describes it."""
    sentence = tl.program_id(0)
    hypothesis, block = tl.arange(0, ROWS), tl.arange(0, BLOCKS)
    inside = (hypothesis < WIDTH)[:, None] & (block < blocks)[None, :]
    place = ((sentence * WIDTH + hypothesis[:, None]) * blocks + block[None, :]) * 2
    most = tl.load(part + place, inside, -float("inf"))
    mass = tl.load(part + place + 1, inside, 0.0)
    top = tl.max(most, 1)  # [ROWS]
    total = tl.sum(tl.where(inside, mass * tl.exp(most - top[:, None]), 0.0), 1)
    normal = tl.where(hypothesis < WIDTH, top + tl.log(total), 0.0)
    # All candidates of all blocks in one row; which hypothesis each belongs to follows from where
    # it stands.
    each = blocks * CANDIDATES
    i = tl.arange(0, ALL)
    parent = i // each
    there = i < WIDTH * each
    value = tl.load(values + sentence * WIDTH * each + i, there, -float("inf"))
    token = tl.load(tokens + sentence * WIDTH * each + i, there, 0)
    logprob = value
    score = tl.full([ALL], -float("inf"), tl.float64)
    for w in tl.static_range(WIDTH):
        mine = there & (parent == w)
        before = tl.load(scores + sentence * WIDTH + w)
        lse = tl.sum(tl.where(hypothesis == w, normal, 0.0), 0)
        logprob = tl.where(mine, value - lse, logprob)
        score = tl.where(mine, before + (value - lse).to(tl.float64), score)
    now = tl.load(time)
    row = tl.load(rows + sentence)
    record = ((now * sentences + row) * CANDIDATES) * 4
    live, ended, alive = sentence * 0, sentence * 0, sentence * 0
    tl.debug_barrier()  # the scores are read before they are written
    for rank in tl.static_range(CANDIDATES):
        best = tl.max(score, 0)
        at = tl.argmax(score, 0)
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
def tick_kernel(time, next, positions, sentences, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One step later: time, the next slots, and every sentence's position."""
    if tl.program_id(0) == 0:
        tl.store(time, tl.load(time) + 1)
        for w in tl.static_range(WIDTH):
            tl.store(next + w, tl.load(next + w) + WIDTH)
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(positions + b, b < sentences, 0)
    tl.store(positions + b, old + 1, b < sentences)
