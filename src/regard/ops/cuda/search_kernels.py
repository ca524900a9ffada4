"""The specification is decoding/beams.py: Triton kernels of beam search over the vocabulary.

The logits are read once, at the speed of memory; the candidates are in a few blocks of them. The
last kernel also advances the counters of time and writes to host memory which sentences are
done, because a separate copy would take longer.
"""

# Triton reads the annotations of its kernels: they must not be strings.
# mypy: ignore-errors

import triton
import triton.language as tl

from regard.ops.cuda.decoding_kernels import gdc_launch_dependents, wait

LOWEST = tl.constexpr(-(2**31))  # less than the integer of any logit
NONE = tl.constexpr(2**31 - 1)


@triton.jit
def to_ordered_int(x):
    """Integers in the same order as x: a GPU computes the maximum of integers faster."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def from_ordered_int(order):
    """The inverse of to_ordered_int."""
    return tl.where(order < 0, order ^ 0x7FFFFFFF, order).to(tl.float32, bitcast=True)


@triton.jit
def scan_kernel(
    logits, highest, mass, time, min_steps, eos,
    V: tl.constexpr, WIDTH: tl.constexpr, HAS_MIN_STEPS: tl.constexpr, PIECES: tl.constexpr,
    PIECE: tl.constexpr, ALL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """For some pieces of one row of logits: the maximum and the log-sum-exp of each. V is a
    constant, so that the compiler knows how rows are aligned."""
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
    if HAS_MIN_STEPS:
        early = tl.load(time) < tl.load(min_steps + row // WIDTH)
        if early & (eos // (PIECES * PIECE) == tl.program_id(1)):
            most = tl.max(tl.where(v == eos, -float("inf"), x), 1)
    tl.store(highest + row * ALL + piece, most)


@triton.jit
def narrow_kernel(
    logits, highest, mass, values, tokens, time, min_steps, eos,
    V: tl.constexpr, WIDTH: tl.constexpr, HAS_MIN_STEPS: tl.constexpr, PIECES: tl.constexpr,
    PIECE: tl.constexpr, ALL: tl.constexpr, CANDIDATES: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The best tokens of one row with their log-probabilities; of equal ones the first. The C best
    logits are in the C pieces with the largest maxima, so only these are scanned."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    row = tl.program_id(0)
    i = tl.arange(0, ALL)
    inside_range = i * PIECE < V
    masses = tl.load(mass + row * ALL + i, inside_range, -float("inf"))
    maxima = to_ordered_int(tl.load(highest + row * ALL + i, inside_range, -float("inf")))
    if HAS_MIN_STEPS:
        early = tl.load(time) < tl.load(min_steps + row // WIDTH)
    top = tl.max(masses, 0)
    normal = top + tl.log(tl.sum(tl.exp(masses - top), 0))
    rank = tl.arange(0, MAX_CANDIDATES)
    chosen = tl.full([MAX_CANDIDATES], 0, tl.int32)
    for c in tl.static_range(CANDIDATES):
        at = tl.min(tl.where(maxima == tl.max(maxima, 0), i, NONE), 0)
        chosen = tl.where(rank == c, at, chosen)
        maxima = tl.where(i == at, LOWEST, maxima)
    v = chosen[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    inside = (rank < CANDIDATES)[:, None] & (v < V)
    x = tl.load(logits + row.to(tl.int64) * V + v, inside, -float("inf")).to(tl.float32)
    if HAS_MIN_STEPS:
        x = tl.where((v == eos) & early, -float("inf"), x)
    x = tl.reshape(tl.where(inside, to_ordered_int(x), LOWEST), [MAX_CANDIDATES * PIECE])
    v = tl.reshape(v, [MAX_CANDIDATES * PIECE])
    for c in tl.static_range(CANDIDATES):
        best = tl.max(x, 0)
        token = tl.min(tl.where(x == best, v, NONE), 0)
        x = tl.where(v == token, LOWEST, x)
        some = best > LOWEST  # there may be fewer tokens than candidates
        value = tl.where(some, from_ordered_int(best) - normal, -float("inf"))
        tl.store(values + row * CANDIDATES + c, value)
        tl.store(tokens + row * CANDIDATES + c, tl.where(some, token, 0))


@triton.jit
def choose_kernel(
    values, tokens, scores, newest, parents, finished_counts, done, host_done, limits, records,
    time, next, positions, finished, rows, room, eos,
    WIDTH: tl.constexpr, CANDIDATES: tl.constexpr, ALL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Beams.advance for one sentence, and the counters of the sentence; the last program advances
    those of the batch. The rank of a candidate is the number of better ones, so that all ranks are
    computed in parallel."""
    if EARLY:
        gdc_launch_dependents()
    wait(EARLY)
    sentence = tl.program_id(0)
    i = tl.arange(0, ALL)
    inside_range = i < WIDTH * CANDIDATES
    parent = i // CANDIDATES
    place = sentence * WIDTH * CANDIDATES + i
    logprob = tl.load(values + place, inside_range, -float("inf"))
    token = tl.load(tokens + place, inside_range, 0)
    before = tl.load(scores + sentence * WIDTH + parent, inside_range, -float("inf"))
    now, limit = tl.load(time), tl.load(limits + sentence)
    total, is_done = tl.load(finished_counts + sentence), tl.load(done + sentence) != 0
    position, slot = tl.load(positions + sentence), tl.load(next)
    record = (now * room + tl.load(rows + sentence)) * CANDIDATES * 4
    score = before + logprob.to(tl.float64)
    own_score, other_score = score[:, None], score[None, :]
    first = (other_score > own_score) | ((other_score == own_score) & (i[None, :] < i[:, None]))
    rank = tl.sum((first & inside_range[None, :]).to(tl.int32), 1)
    ranked = inside_range & (rank < CANDIDATES)
    possible = score > -float("inf")
    ends = token == eos
    ended = tl.sum((ranked & ends & possible & (rank < WIDTH)).to(tl.int32), 0)
    going = (ranked & (ends == 0)).to(tl.int32)
    live = tl.sum(first.to(tl.int32) * going[None, :], 1)  # better candidates that continue
    survives = (going != 0) & (live < WIDTH)
    alive = tl.sum((survives & possible).to(tl.int32), 0)
    tl.debug_barrier()  # the scores are read before they are written
    at = records + record + rank * 4
    tl.store(at, token.to(tl.float64), ranked)
    tl.store(at + 1, parent.to(tl.float64), ranked)
    tl.store(at + 2, logprob.to(tl.float64), ranked)
    tl.store(at + 3, score, ranked)
    tl.store(newest + sentence * WIDTH + live, token.to(tl.int64), survives)
    tl.store(parents + sentence * WIDTH + live, parent.to(tl.int64), survives)
    tl.store(scores + sentence * WIDTH + live, score, survives)
    total += ended
    is_done = is_done | (total >= WIDTH) | (now + 1 >= limit) | (alive == 0)
    tl.store(finished_counts + sentence, total)
    tl.store(done + sentence, is_done)
    tl.store(host_done + sentence, is_done)
    tl.store(positions + sentence, position + 1)
    if (
        tl.atomic_add(finished, 1) == tl.num_programs(0) - 1
    ):  # all other programs have read the time
        tl.store(finished, 0)
        tl.store(time, now + 1)
        for w in tl.static_range(WIDTH):
            tl.store(next + w, slot + WIDTH + w)
