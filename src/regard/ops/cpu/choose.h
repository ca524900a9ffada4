// The specification is decoding/beams.py: Beams.advance for beam search and greedy search, on the
// same tensors.
#pragma once

#include "layers.h"

struct Beams {
    int64_t candidates, eos, room;  // room: sentences in a step's records
    int64_t move;  // can a hypothesis have another parent than itself?
    int64_t *tokens, *parents, *finished, *limits, *min_steps, *rows, *time;  // [B, W] or [B]; time [1]
    double *scores, *records;  // [B, W]; [steps, room, C, 4]
    uint8_t* done;  // [B]
};

constexpr long PIECE = 4096;  // logits that are looked through at once: the same for any batch

struct Best {
    double score;
    float value;
    int32_t token, parent;
};

// Keep the `most` best, the first of equals in front.
inline void insert(Best* best, long& count, long most, const Best& one) {
    if (count == most && !(one.score > best[most - 1].score)) return;
    long i = count < most ? count++ : most - 1;
    for (; i > 0 && one.score > best[i - 1].score; i--) best[i] = best[i - 1];
    best[i] = one;
}

inline bool any_above(Floats x, float bound) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GT_OQ);
#else
    return largest_of(x) > bound;
#endif
}

struct Piece {  // of a row's logits
    float highest, sum;  // sum of e^(logit - highest)
    int64_t count;  // candidates
};

// The best of logits[size], and their sum; token `without` only counts for the sum.
inline Piece look_through(const float* logits, long start, long size, long without, long most,
                          Best* best) {
    Piece piece = {-INFINITY, 0, 0};
    long count = 0;
    Floats highest = Floats{} - INFINITY;
    for (long i = 0; i < size; i += WIDTH) {
        Floats part = load(logits + i, size - i);
        long here = std::min(WIDTH, size - i);
        for (long j = here; j < WIDTH; j++) part[j] = -INFINITY;
        highest = part > highest ? part : highest;
        if (count == most && !any_above(part, best[most - 1].value)) continue;
        for (long j = 0; j < here; j++) {
            float value = logits[i + j];
            if (start + i + j != without && value > -INFINITY)
                insert(best, count, most, {value, value, int32_t(start + i + j), 0});
        }
    }
    piece.highest = largest_of(highest), piece.count = count;
    if (piece.highest == -INFINITY) return piece;
    Floats total = {};
    long whole = size / WIDTH * WIDTH;
    for (long i = 0; i < whole; i += WIDTH)
        total += exponential(load(logits + i) - piece.highest);
    for (long i = whole; i < size; i++) piece.sum += std::exp(logits[i] - piece.highest);
    piece.sum += sum_across(total);
    return piece;
}

// One sentence's hypotheses grow by one token; pieces[W, count], best[W, count, C].
inline void grow(const Beams& beams, long b, long width, long count, const Piece* pieces,
                 const Best* best, Best* chosen) {
    long most = beams.candidates, found = 0, time = *beams.time;
    for (long w = 0; w < width; w++) {
        double score = beams.scores[b * width + w];
        if (score == -INFINITY) continue;
        float highest = -INFINITY, sum = 0;
        for (long p = 0; p < count; p++)
            highest = std::max(highest, pieces[w * count + p].highest);
        for (long p = 0; p < count; p++) {
            const Piece& piece = pieces[w * count + p];
            if (piece.sum > 0) sum += piece.sum * std::exp(piece.highest - highest);
        }
        float norm = std::log(sum);
        for (long p = 0; p < count; p++)
            for (long c = 0; c < pieces[w * count + p].count; c++) {
                const Best& one = best[(w * count + p) * most + c];
                float logprob = one.value - highest - norm;
                insert(chosen, found, most, {score + logprob, logprob, one.token, int32_t(w)});
            }
    }
    for (; found < most; found++) chosen[found] = {-INFINITY, -INFINITY, 0, 0};
    double* record = beams.records + (time * beams.room + beams.rows[b]) * most * 4;
    long live = 0;
    for (long c = 0; c < most; c++) {
        const Best& one = chosen[c];
        double line[4] = {double(one.token), double(one.parent), one.value, one.score};
        memcpy(record + c * 4, line, sizeof line);
        if (one.token == beams.eos) {
            beams.finished[b] += c < width && one.score > -INFINITY;
        } else if (live < width) {
            long at = b * width + live++;
            beams.scores[at] = one.score;
            beams.tokens[at] = one.token;
            beams.parents[at] = one.parent;
        }
    }
    bool nothing_left = beams.scores[b * width] == -INFINITY;  // the best of them comes first
    if (beams.finished[b] >= width || time + 1 >= beams.limits[b] || nothing_left)
        beams.done[b] = 1;
}
