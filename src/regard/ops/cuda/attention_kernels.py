"""The specification is ops/reference.py: `attention`, over packed rows, forward and backward.

Triton kernels; attention.py calls them. A program processes one tile of queries (or of keys) of one
head. It iterates over the keys (queries) that its own may see, a block at a time, so that no score
is written to memory. A query sees the run of keys from `first` to `last`; the table `tiles` has the
begin and end of each tile and of the range it processes, and is padded with empty tiles.
"""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def block(x, row, real, stride, head, size, SIZE: tl.constexpr):
    """Some rows of one head of x[N, H, K]: [ROWS, SIZE]."""
    c = tl.arange(0, SIZE)
    place = row[:, None].to(tl.int64) * stride + head * size + c[None, :]
    return tl.load(x + place, real[:, None] & (c < size)[None, :], 0.0)


@triton.jit
def put(x, values, row, real, stride, head, size, SIZE: tl.constexpr):
    c = tl.arange(0, SIZE)
    place = row[:, None].to(tl.int64) * stride + head * size + c[None, :]
    tl.store(x + place, values.to(x.dtype.element_ty), real[:, None] & (c < size)[None, :])


@triton.jit
def tile_of(tiles, COLUMNS: tl.constexpr):
    """Begin and end of the tile of this program, of the range that it processes, and of the part of
    that range in which all keys are visible to all queries, so that it needs no mask. Only LONG
    sequences have such a part."""
    row = tiles + tl.program_id(1) * 6
    low = tl.load(row + 2)
    inner = low + tl.cdiv(tl.maximum(tl.load(row + 4) - low, 0), COLUMNS) * COLUMNS
    outer = low + tl.maximum(tl.load(row + 5) - low, 0) // COLUMNS * COLUMNS
    high = tl.load(row + 3)
    inner = tl.minimum(inner, low + tl.cdiv(high - low, COLUMNS) * COLUMNS)
    return tl.load(row), tl.load(row + 1), low, high, inner, tl.maximum(inner, outer)


@triton.jit
def attend_block(
    at, high, q, begin, until, most, mass, total, key, value, scale, key_stride, value_stride,
    head, size, LOOK: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of the loop over keys: update maximum, sum and weighted values of the queries."""
    m = at + tl.arange(0, COLUMNS)
    k = block(key, m, m < high, key_stride, head, size, SIZE)
    v = block(value, m, m < high, value_stride, head, size, SIZE)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [ROWS, COLUMNS]
    if LOOK:
        seen = (begin[:, None] <= m[None, :]) & (m[None, :] <= until[:, None])
        scores = tl.where(seen, scores, -1e30)
    higher = tl.maximum(most, tl.max(scores, 1))
    weight = tl.exp2(scores - higher[:, None])
    if LOOK:
        weight = tl.where(seen, weight, 0.0)
    old = tl.exp2(most - higher)
    total = total * old[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
    return higher, mass * old + tl.sum(weight, 1), total


@triton.jit(do_not_specialize=["count"])
def attend_kernel(
    out, normal, query, key, value, tiles, first, last, scale, count,
    query_stride, key_stride, value_stride, size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
    LONG: tl.constexpr,
):  # fmt: skip
    """out[N, H, K] = softmax(scores) value; normal[H, N] = log2 of the sum of 2^scores.

    scale: includes the factor log2(e), because the hardware computes powers of two.
    """
    head, heads = tl.program_id(0), tl.num_programs(0)
    start, end, low, high, inner, outer = tile_of(tiles, COLUMNS)
    if start == end:
        return
    n = start + tl.arange(0, ROWS)
    real = n < end
    q = block(query, n, real, query_stride, head, size, SIZE)
    begin, until = tl.load(first + n, real, 0), tl.load(last + n, real, -1)
    most = tl.full([ROWS], -1e30, tl.float32)
    mass = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, SIZE], tl.float32)
    for at in range(low, inner if LONG else high, COLUMNS):
        most, mass, total = attend_block(
            at, high, q, begin, until, most, mass, total, key, value, scale, key_stride,
            value_stride, head, size, True, COLUMNS, SIZE, PRECISION,
        )  # fmt: skip
    if LONG:
        for at in range(inner, outer, COLUMNS):
            most, mass, total = attend_block(
                at, high, q, begin, until, most, mass, total, key, value, scale, key_stride,
                value_stride, head, size, False, COLUMNS, SIZE, PRECISION,
            )  # fmt: skip
        for at in range(outer, high, COLUMNS):
            most, mass, total = attend_block(
                at, high, q, begin, until, most, mass, total, key, value, scale, key_stride,
                value_stride, head, size, True, COLUMNS, SIZE, PRECISION,
            )  # fmt: skip
    mass = tl.where(real, mass, 1.0)
    put(out, total / mass[:, None], n, real, heads * size, head, size, SIZE)
    tl.store(normal + head * count + n, most + tl.log2(mass), real)


@triton.jit
def query_block(
    at, high, q, g, norm, own, begin, until, total, key, value, log_scale, key_stride,
    value_stride, head, size, LOOK: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of the loop over keys: update the gradient of the queries."""
    m = at + tl.arange(0, COLUMNS)
    k = block(key, m, m < high, key_stride, head, size, SIZE)
    v = block(value, m, m < high, value_stride, head, size, SIZE)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * log_scale
    weight = tl.exp2(scores - norm[:, None])  # [ROWS, COLUMNS]
    if LOOK:
        seen = (begin[:, None] <= m[None, :]) & (m[None, :] <= until[:, None])
        weight = tl.where(seen, weight, 0.0)
    change = tl.dot(g, tl.trans(v), input_precision=PRECISION) - own[:, None]
    return total + tl.dot((weight * change).to(k.dtype), k, input_precision=PRECISION)


@triton.jit(do_not_specialize=["count"])
def query_grad_kernel(
    query_grad, delta, grad, out, normal, query, key, value, tiles, first, last,
    scale, log_scale, count, query_stride, key_stride, value_stride, result_stride, size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
    LONG: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries of a tile, and delta[H, N] = sum of gradient * out, which the
    gradients of keys need as well."""
    head, heads = tl.program_id(0), tl.num_programs(0)
    start, end, low, high, inner, outer = tile_of(tiles, COLUMNS)
    if start == end:
        return
    n = start + tl.arange(0, ROWS)
    real = n < end
    q = block(query, n, real, query_stride, head, size, SIZE)
    g = block(grad, n, real, heads * size, head, size, SIZE)
    o = block(out, n, real, heads * size, head, size, SIZE)
    begin, until = tl.load(first + n, real, 0), tl.load(last + n, real, -1)
    norm = tl.load(normal + head * count + n, real, 0.0)
    own = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + head * count + n, own, real)
    total = tl.zeros([ROWS, SIZE], tl.float32)
    for at in range(low, inner if LONG else high, COLUMNS):
        total = query_block(
            at, high, q, g, norm, own, begin, until, total, key, value, log_scale, key_stride,
            value_stride, head, size, True, COLUMNS, SIZE, PRECISION,
        )  # fmt: skip
    if LONG:
        for at in range(inner, outer, COLUMNS):
            total = query_block(
                at, high, q, g, norm, own, begin, until, total, key, value, log_scale, key_stride,
                value_stride, head, size, False, COLUMNS, SIZE, PRECISION,
            )  # fmt: skip
        for at in range(outer, high, COLUMNS):
            total = query_block(
                at, high, q, g, norm, own, begin, until, total, key, value, log_scale, key_stride,
                value_stride, head, size, True, COLUMNS, SIZE, PRECISION,
            )  # fmt: skip
    put(query_grad, total * scale, n, real, result_stride, head, size, SIZE)


@triton.jit
def key_block(
    at, high, k, v, m, key_total, value_total, query, grad, normal, delta, first, last, log_scale,
    count, query_stride, grad_stride, head, size, LOOK: tl.constexpr, COLUMNS: tl.constexpr,
    SIZE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One step of the loop over queries: update the gradients of keys and values. The scores are
    transposed, [keys, queries], so that they can be multiplied by the queries directly."""
    n = at + tl.arange(0, COLUMNS)
    there = n < high
    q = block(query, n, there, query_stride, head, size, SIZE)
    g = block(grad, n, there, grad_stride, head, size, SIZE)
    norm = tl.load(normal + head * count + n, there, 0.0)
    own = tl.load(delta + head * count + n, there, 0.0)
    scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * log_scale  # [ROWS, COLUMNS]
    weight = tl.exp2(scores - norm[None, :])
    if LOOK:
        begin, until = tl.load(first + n, there, 0), tl.load(last + n, there, -1)
        seen = (begin[None, :] <= m[:, None]) & (m[:, None] <= until[None, :])
        weight = tl.where(seen, weight, 0.0)
    value_total += tl.dot(weight.to(g.dtype), g, input_precision=PRECISION)
    change = tl.dot(v, tl.trans(g), input_precision=PRECISION) - own[None, :]
    key_total += tl.dot((weight * change).to(q.dtype), q, input_precision=PRECISION)
    return key_total, value_total


@triton.jit(do_not_specialize=["count"])
def key_grad_kernel(
    key_grad, value_grad, delta, grad, normal, query, key, value, tiles, first, last,
    scale, log_scale, count, query_stride, key_stride, value_stride,
    key_result_stride, value_result_stride, size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr, PRECISION: tl.constexpr,
    LONG: tl.constexpr,
):  # fmt: skip
    """The gradients of the keys and values of a tile."""
    head, heads = tl.program_id(0), tl.num_programs(0)
    start, end, low, high, inner, outer = tile_of(tiles, COLUMNS)
    if start == end:
        return
    m = start + tl.arange(0, ROWS)
    real = m < end
    k = block(key, m, real, key_stride, head, size, SIZE)
    v = block(value, m, real, value_stride, head, size, SIZE)
    k_total = tl.zeros([ROWS, SIZE], tl.float32)
    v_total = tl.zeros([ROWS, SIZE], tl.float32)
    for at in range(low, inner if LONG else high, COLUMNS):
        k_total, v_total = key_block(
            at, high, k, v, m, k_total, v_total, query, grad, normal, delta, first, last,
            log_scale, count, query_stride, heads * size, head, size, True, COLUMNS, SIZE,
            PRECISION,
        )  # fmt: skip
    if LONG:
        for at in range(inner, outer, COLUMNS):
            k_total, v_total = key_block(
                at, high, k, v, m, k_total, v_total, query, grad, normal, delta, first, last,
                log_scale, count, query_stride, heads * size, head, size, False, COLUMNS, SIZE,
                PRECISION,
            )  # fmt: skip
        for at in range(outer, high, COLUMNS):
            k_total, v_total = key_block(
                at, high, k, v, m, k_total, v_total, query, grad, normal, delta, first, last,
                log_scale, count, query_stride, heads * size, head, size, True, COLUMNS, SIZE,
                PRECISION,
            )  # fmt: skip
    put(key_grad, k_total * scale, m, real, key_result_stride, head, size, SIZE)
    put(value_grad, v_total, m, real, value_result_stride, head, size, SIZE)
