"""The specification is decoding/beams.py: Triton kernels of beam search over the vocabulary.

Logits are read once, at the speed of memory; the choice is then made from a few blocks of them. The
last kernel also advances the clocks and writes which sentences are done to memory of the host: a
separate copy would take longer.
"""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import triton
import triton.language as tl

from regard.ops.cuda.decoding_kernels import gdc_launch_dependents, wait

LOWEST = tl.constexpr(-(2**31))  # of the whole numbers: below all that stand for a logit
NONE = tl.constexpr(2**31 - 1)


@triton.jit
def in_order(x):
    """Whole numbers in the order of these: a GPU finds the largest of a warp's in one go."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def value_of(order):
    """The number that in_order made this of."""
    return tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)


@triton.jit
def scan_kernel(
    logits, highest, mass, time, least, eos,
    V: tl.constexpr, WIDTH: tl.constexpr, LEAST: tl.constexpr, PIECES: tl.constexpr,
    PIECE: tl.constexpr, ALL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Of each of some pieces of one row of logits: the maximum, and the logarithm of the sum of
    exponentials. V is known to the compiler, which then knows how rows are aligned."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    row = tl.program_id(0)
    piece = tl.program_id(1) * PIECES + tl.arange(0, PIECES)
    v = piece[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    x = tl.load(logits + row.to(tl.int64) * V + v, v < V, -1e30).to(tl.float32)
    most = tl.max(x, 1)
    total = tl.sum(tl.exp(x - most[:, None]), 1)
    tl.store(mass + row * ALL + piece, most + tl.log(total))
    if LEAST:
        early = tl.load(time) < tl.load(least + row // WIDTH)
        if early & (eos // (PIECES * PIECE) == tl.program_id(1)):
            most = tl.max(tl.where(v == eos, -float("inf"), x), 1)
    tl.store(highest + row * ALL + piece, most)


@triton.jit
def narrow_kernel(
    logits, highest, mass, values, tokens, time, least, eos,
    V: tl.constexpr, WIDTH: tl.constexpr, LEAST: tl.constexpr, PIECES: tl.constexpr,
    PIECE: tl.constexpr, ALL: tl.constexpr, CANDIDATES: tl.constexpr, MOST: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The best of one row, as log-probabilities; of equals, the first. The C best logits lie in
    the C pieces whose maxima are highest: only these are looked through."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    row = tl.program_id(0)
    i = tl.arange(0, ALL)
    there = i * PIECE < V
    masses = tl.load(mass + row * ALL + i, there, -float("inf"))
    maxima = in_order(tl.load(highest + row * ALL + i, there, -float("inf")))
    if LEAST:
        early = tl.load(time) < tl.load(least + row // WIDTH)
    top = tl.max(masses, 0)
    normal = top + tl.log(tl.sum(tl.exp(masses - top), 0))
    rank = tl.arange(0, MOST)
    chosen = tl.full([MOST], 0, tl.int32)
    for c in tl.static_range(CANDIDATES):
        at = tl.min(tl.where(maxima == tl.max(maxima, 0), i, NONE), 0)
        chosen = tl.where(rank == c, at, chosen)
        maxima = tl.where(i == at, LOWEST, maxima)
    v = chosen[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    inside = (rank < CANDIDATES)[:, None] & (v < V)
    x = tl.load(logits + row.to(tl.int64) * V + v, inside, -float("inf")).to(tl.float32)
    if LEAST:
        x = tl.where((v == eos) & early, -float("inf"), x)
    x = tl.reshape(tl.where(inside, in_order(x), LOWEST), [MOST * PIECE])
    v = tl.reshape(v, [MOST * PIECE])
    for c in tl.static_range(CANDIDATES):
        best = tl.max(x, 0)
        token = tl.min(tl.where(x == best, v, NONE), 0)
        x = tl.where(v == token, LOWEST, x)
        some = best > LOWEST  # there may be fewer tokens than candidates
        value = tl.where(some, value_of(best) - normal, -float("inf"))
        tl.store(values + row * CANDIDATES + c, value)
        tl.store(tokens + row * CANDIDATES + c, tl.where(some, token, 0))


@triton.jit
def choose_kernel(
    values, tokens, scores, newest, parents, finished_counts, done, host_done, limits, records,
    time, next, positions, finished, rows, room, eos,
    WIDTH: tl.constexpr, CANDIDATES: tl.constexpr, ALL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Beam search of one sentence, as Beams.advance describes it, and its clocks; the program that
    comes last moves those of the whole batch. Every candidate counts those before it, so that none
    waits for another."""
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
    now, limit = tl.load(time), tl.load(limits + sentence)
    total, over = tl.load(finished_counts + sentence), tl.load(done + sentence) != 0
    position, slot = tl.load(positions + sentence), tl.load(next)
    record = (now * room + tl.load(rows + sentence)) * CANDIDATES * 4
    score = before + logprob.to(tl.float64)
    mine, other = score[:, None], score[None, :]
    first = (other > mine) | ((other == mine) & (i[None, :] < i[:, None]))
    rank = tl.sum((first & there[None, :]).to(tl.int32), 1)
    looked_at = there & (rank < CANDIDATES)
    possible = score > -float("inf")
    ends = token == eos
    ended = tl.sum((looked_at & ends & possible & (rank < WIDTH)).to(tl.int32), 0)
    going = (looked_at & (ends == 0)).to(tl.int32)
    live = tl.sum(first.to(tl.int32) * going[None, :], 1)  # those that go on before this one
    kept = (going != 0) & (live < WIDTH)
    alive = tl.sum((kept & possible).to(tl.int32), 0)
    tl.debug_barrier()  # the scores are read before they are written
    at = records + record + rank * 4
    tl.store(at, token.to(tl.float64), looked_at)
    tl.store(at + 1, parent.to(tl.float64), looked_at)
    tl.store(at + 2, logprob.to(tl.float64), looked_at)
    tl.store(at + 3, score, looked_at)
    tl.store(newest + sentence * WIDTH + live, token.to(tl.int64), kept)
    tl.store(parents + sentence * WIDTH + live, parent.to(tl.int64), kept)
    tl.store(scores + sentence * WIDTH + live, score, kept)
    total += ended
    over = over | (total >= WIDTH) | (now + 1 >= limit) | (alive == 0)
    tl.store(finished_counts + sentence, total)
    tl.store(done + sentence, over)
    tl.store(host_done + sentence, over)
    tl.store(positions + sentence, position + 1)
    if tl.atomic_add(finished, 1) == tl.num_programs(0) - 1:  # all others have read the time
        tl.store(finished, 0)
        tl.store(time, now + 1)
        for w in tl.static_range(WIDTH):
            tl.store(next + w, slot + WIDTH + w)
