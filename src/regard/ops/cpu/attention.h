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

// Attention of one query.
inline void attend(const float* query, const Slots& slots, long at, const Seen& seen, long size,
                   float* scores, float* out) {
    float scale = 1 / std::sqrt(float(size));
    for (long i = 0; i < seen.count; i++) {
        const float* key = slots.keys + at + seen.slots[i] * slots.slot_stride;
        Floats sum = {};
        for (long k = 0; k < size; k += WIDTH)
            sum += load(query + k, size - k) * load(key + k, size - k);
        scores[i] = sum_across(sum) * scale;
    }
    float inverse = exponentiate(scores, seen.count);
    for (long k = 0; k < size; k += 4 * WIDTH) {
        Floats sums[4] = {};
        for (long i = 0; i < seen.count; i++) {
            const float* value = slots.values + at + seen.slots[i] * slots.slot_stride + k;
            for (long j = 0; j < 4 && k + j * WIDTH < size; j++)
                sums[j] += scores[i] * load(value + j * WIDTH, size - k - j * WIDTH);
        }
        for (long j = 0; j < 4 && k + j * WIDTH < size; j++)
            store(out + k + j * WIDTH, sums[j] * inverse, size - k - j * WIDTH);
    }
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

// Attention of all rows of a sentence, each of which sees a run of slots. Both products use the
// micro-kernel of product.h.
inline void attend_all(const float* queries, long stride, long rows, const Slots& slots, long at,
                       const Seen* seen, long size, float* memory, float* out, long out_stride) {
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
    Matrix keys = {(const Ints*)s.keys, nullptr, nullptr, nullptr, count, size};
    Matrix values = {(const Ints*)s.values, nullptr, nullptr, nullptr, wide, count};
    float scale = 1 / std::sqrt(float(size)), shares[TILE];
    for (long r = 0; r < rows; r += TILE) {
        long tile_rows = std::min(TILE, rows - r);
        for (long i = 0; i < tile_rows * size; i++)
            s.queries[i] = queries[(r + i / size) * stride + i % size] * scale;
        for (long block = 0; block < count / BLOCK; block++)
            multiply_rows<FLOAT32>(tile_rows, keys, block, (const int32_t*)s.queries, size, nullptr,
                                   s.scores, count, NONE);
        for (long i = 0; i < tile_rows; i++) {
            float* scores = s.scores + i * count;
            long first = seen[r + i].slots[0], last = first + seen[r + i].count;
            std::fill(scores, scores + first, -INFINITY);
            std::fill(scores + last, scores + count, -INFINITY);
            shares[i] = exponentiate(scores, count);
        }
        for (long block = 0; block < wide / BLOCK; block++)
            multiply_rows<FLOAT32>(tile_rows, values, block, (const int32_t*)s.scores, count,
                                   nullptr, s.outputs, wide, NONE);
        for (long i = 0; i < tile_rows; i++)
            for (long k = 0; k < size; k++)
                out[(r + i) * out_stride + k] = s.outputs[i * wide + k] * shares[i];
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
