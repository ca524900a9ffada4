// The specification is ops/reference.py: `attention` of one sentence and head, over the slots that
// a row sees.
#pragma once

#include "product.h"

constexpr long MANY = 32;  // from so many rows on, keys and values are copied to blocks

// Keys and values of one layer: the number at [sentence, head, slot, k].
struct Slots {
    float *keys, *values;
    int64_t sentence_stride, head_stride, slot_stride;

    long at(long sentence, long head) const {
        return sentence * sentence_stride + head * head_stride;
    }
};

struct Seen {
    const int32_t* slots;
    long count;
};

inline float sum_across(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#else
    return sum_of(x);
#endif
}

// Replaces scores[count] by their exponentials, padded to whole registers; returns 1 / their sum.
inline float exponentiate(float* scores, long count) {
    Floats highest = Floats{} - INFINITY, total = {};
    for (long i = count; i % WIDTH; i++) scores[i] = -INFINITY;
    for (long i = 0; i < count; i += WIDTH) {
        Floats part = load(scores + i);
        highest = part > highest ? part : highest;
    }
    float largest = largest_of(highest);
    for (long i = 0; i < count; i += WIDTH) {
        Floats powers = exponential(load(scores + i) - largest);
        store(scores + i, powers);
        total += powers;
    }
    return 1 / sum_across(total);
}

// The sums of the numbers in each of WIDTH registers, added in the order of `sum_across`.
inline Floats sums_across(const Floats* x) {
    Floats sums;
#if defined(__AVX512F__)
    __m512 part[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {  // quarters of 8 registers: x[i], x[i], x[i + 8], x[i + 8]
        __m512 a = (__m512)x[i], b = (__m512)x[i + 8];
        part[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {  // of 4: x[i], x[i + 8], x[i + 4], x[i + 12]
        __m512 a = part[i], b = part[i + 4];
        part[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m512 a = part[i], b = part[i + 2];
        part[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    __m512 all = _mm512_add_ps(_mm512_unpacklo_ps(part[0], part[1]),
                               _mm512_unpackhi_ps(part[0], part[1]));
    sums = (Floats)_mm512_shuffle_f32x4(all, all, 0xd8);
#else
    for (long i = 0; i < WIDTH; i++) sums[i] = sum_across(x[i]);
#endif
    return sums;
}

constexpr long QUERIES = 4;  // queries that read a key together
constexpr long SLICE = 4;  // registers of a key that are multiplied together

// Attention of COUNT queries that attend to the same slots of one head. A query's result does not
// depend on the others. scores: [COUNT, rounded number of slots].
template <long COUNT>
inline void attend_queries(const float* const* queries, const Slots& slots, long at,
                           const Seen& seen, long size, float* scores, float* const* outs) {
    float scale = 1 / std::sqrt(float(size)), inverse[COUNT];
    long stride = rounded_up<float>(seen.count);
    const long whole = SLICE * WIDTH;
    for (long i = 0; i < seen.count; i += WIDTH) {
        Floats sums[COUNT][WIDTH];
        for (long j = 0; j < WIDTH; j++) {  // repeat the last key beyond the end
            long slot = seen.slots[std::min(i + j, seen.count - 1)];
            const float* key = slots.keys + at + slot * slots.slot_stride;
            Floats products[COUNT] = {};
            long k = 0;
            for (; k + WIDTH <= size; k += WIDTH) {
                Floats part = load(key + k);
#pragma GCC unroll 4
                for (long q = 0; q < COUNT; q++) products[q] += load(queries[q] + k) * part;
            }
            if (k < size)
                for (long q = 0; q < COUNT; q++)
                    products[q] += load(queries[q] + k, size - k) * load(key + k, size - k);
#pragma GCC unroll 4
            for (long q = 0; q < COUNT; q++) sums[q][j] = products[q];
        }
        for (long q = 0; q < COUNT; q++) store(scores + q * stride + i, sums_across(sums[q]) * scale);
    }
    for (long q = 0; q < COUNT; q++) inverse[q] = exponentiate(scores + q * stride, seen.count);
    for (long k = 0; k < size; k += whole) {
        Floats sums[COUNT][SLICE] = {};
        if (size - k >= whole) {
            for (long i = 0; i < seen.count; i++) {
                const float* value = slots.values + at + seen.slots[i] * slots.slot_stride + k;
#pragma GCC unroll 4
                for (long part = 0; part < SLICE; part++) {
                    Floats loaded = load(value + part * WIDTH);
#pragma GCC unroll 4
                    for (long q = 0; q < COUNT; q++)
                        sums[q][part] += scores[q * stride + i] * loaded;
                }
            }
        } else {
            for (long i = 0; i < seen.count; i++) {
                const float* value = slots.values + at + seen.slots[i] * slots.slot_stride + k;
                for (long part = 0; k + part * WIDTH < size; part++)
                    for (long q = 0; q < COUNT; q++)
                        sums[q][part] += scores[q * stride + i] *
                                         load(value + part * WIDTH, size - k - part * WIDTH);
            }
        }
        for (long q = 0; q < COUNT; q++)
            for (long part = 0; part < SLICE && k + part * WIDTH < size; part++)
                store(outs[q] + k + part * WIDTH, sums[q][part] * inverse[q],
                      size - k - part * WIDTH);
    }
}

// Attention of any number of queries that attend to the same slots of one head. scores: memory for
// QUERIES times the rounded number of slots.
template <long COUNT = QUERIES>
inline void attend(long count, const float* const* queries, const Slots& slots, long at,
                   const Seen& seen, long size, float* scores, float* const* outs) {
    for (; count >= COUNT; count -= COUNT, queries += COUNT, outs += COUNT)
        attend_queries<COUNT>(queries, slots, at, seen, size, scores, outs);
    if constexpr (COUNT > 1)
        if (count) attend<COUNT - 1>(count, queries, slots, at, seen, size, scores, outs);
}

// Memory for the keys and values of a sentence as matrices, and for TILE rows.
struct Sequence {
    float *keys, *values, *queries, *scores, *outputs;

    static long floats(long longest, long size) {
        return padded(longest) * (size + padded(size) + TILE) + TILE * (size + padded(size));
    }
    Sequence(float* memory, long count, long size) {
        keys = memory;
        values = keys + padded(count) * size;
        scores = values + padded(count) * padded(size);
        outputs = scores + TILE * padded(count);
        queries = outputs + TILE * padded(size);
    }
};

// Attention of all rows of a sentence, each of which sees a run of slots; each row has
// `group / size` queries that share these keys. Both products use the micro-kernel of
// product.h. A run needs only the blocks that it touches.
inline void attend_all(const float* queries, long stride, long rows, long group, const Slots& slots,
                       long at, const Seen* seen, long size, float* memory, float* out,
                       long out_stride) {
    Sequence s(memory, rows, size);
    long count = padded(rows), wide = padded(size);
    for (long slot = 0; slot < count; slot++) {
        const float* key = slots.keys + at + slot * slots.slot_stride;
        const float* value = slots.values + at + slot * slots.slot_stride;
        bool real = slot < rows;
        float* to = s.keys + slot / BLOCK * size * BLOCK + slot % BLOCK;
        for (long k = 0; k < size; k++) to[k * BLOCK] = real ? key[k] : 0;
        for (long k = 0; k < wide; k++)
            s.values[(k / BLOCK * count + slot) * BLOCK + k % BLOCK] =
                real && k < size ? value[k] : 0;
    }
    const Ints *keys = (const Ints*)s.keys, *values = (const Ints*)s.values;
    const int32_t *words = (const int32_t*)s.queries, *weights = (const int32_t*)s.scores;
    float scale = 1 / std::sqrt(float(size)), shares[TILE];
    for (long r = 0; r < rows; r += TILE) {
        long tile_rows = std::min(TILE, rows - r), begin = rows, end = 0;
        for (long i = r; i < r + tile_rows; i++) {
            begin = std::min<long>(begin, seen[i].slots[0] / BLOCK * BLOCK);
            end = std::max(end, padded(seen[i].slots[0] + seen[i].count));
        }
        long span = end - begin;
        Matrix block_keys = {keys + begin / BLOCK * size * PANELS, nullptr, nullptr, nullptr,
                             span, size};
        for (long head = 0; head < group; head += size) {
            for (long i = 0; i < tile_rows; i++)
                for (long k = 0; k < size; k++)
                    s.queries[i * size + k] = queries[(r + i) * stride + head + k] * scale;
            for (long block = 0; block < span / BLOCK; block++)
                multiply_rows<FLOAT32>(tile_rows, block_keys, block, words, size, nullptr, s.scores,
                                       span, NONE);
            for (long i = 0; i < tile_rows; i++) {
                float* scores = s.scores + i * span;
                long first = seen[r + i].slots[0] - begin, last = first + seen[r + i].count;
                std::fill(scores, scores + first, -INFINITY);
                std::fill(scores + last, scores + span, -INFINITY);
                shares[i] = exponentiate(scores, span);
            }
            for (long block = 0; block < wide / BLOCK; block++) {
                Matrix block_values = {values + (block * count + begin) * PANELS, nullptr, nullptr,
                                       nullptr, BLOCK, span};
                multiply_rows<FLOAT32>(tile_rows, block_values, 0, weights, span, nullptr,
                                       s.outputs + block * BLOCK, wide, NONE);
            }
            for (long i = 0; i < tile_rows; i++)
                for (long k = 0; k < size; k++)
                    out[(r + i) * out_stride + head + k] = s.outputs[i * wide + k] * shares[i];
        }
    }
}

// Rotate each pair of features by the angle of its position (Rotation in model/positions.py).
inline void rotate(const float* rotation, float* x, long size) {
    for (long k = 0; k < size; k += 2) {
        float even = x[k], odd = x[k + 1];
        x[k] = even * rotation[k] - odd * rotation[k + 1];
        x[k + 1] = even * rotation[k + 1] + odd * rotation[k];
    }
}
