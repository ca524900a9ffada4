// The specification is decoding/beams.py: Beams.advance for beam search and greedy search, on the
// same tensors.
#pragma once

#include "layers.h"

struct Beams {
    int64_t candidates, eos, room;  // room: the number of sentences in the records of a step
    int64_t move;  // whether a hypothesis can have a parent other than itself
    int64_t *tokens, *parents, *finished, *limits, *min_steps, *rows;  // [B, W] or [B]
    int64_t* time;  // [1]
    double *scores, *records;  // [B, W]; [steps, room, C, 4]
    uint8_t* done;  // [B]
    int64_t no_repeat, prefix, places, steps, top_k;  // places: of `sequences`; steps: of `noise`
    double temperature, top_p;  // temperature 0: beam search
    const double* noise;  // [B, W, steps], of sampling
    int64_t* sequences;  // [B, W, places], with no_repeat
};

constexpr long PIECE = 4096;  // logits that are scanned at once: the same for any batch

struct Best {
    double score;
    float value;
    int32_t token, parent;
};

// Keep the `capacity` best candidates, sorted; of equal ones the first comes first.
inline void insert(Best* best, long& count, long capacity, const Best& candidate) {
    if (count == capacity && !(candidate.score > best[capacity - 1].score)) return;
    long i = count < capacity ? count++ : capacity - 1;
    for (; i > 0 && candidate.score > best[i - 1].score; i--) best[i] = best[i - 1];
    best[i] = candidate;
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

// The normalisation of a row's logits, from its pieces.
struct LogNorm {
    float highest = -INFINITY, norm;

    LogNorm(const Piece* pieces, long count) {
        float sum = 0;
        for (long p = 0; p < count; p++) highest = std::max(highest, pieces[p].highest);
        for (long p = 0; p < count; p++)
            if (pieces[p].sum > 0) sum += pieces[p].sum * std::exp(pieces[p].highest - highest);
        norm = std::log(sum);
    }
    float logprob(float logit) const { return logit - highest - norm; }
};

// The best of logits[size], and the sum of their exponentials; forbidden tokens only count for the
// sum.
inline Piece scan_logits(const float* logits, long start, long size, const int32_t* forbidden,
                         long forbidden_count, long capacity, Best* best) {
    Piece piece = {-INFINITY, 0, 0};
    long count = 0;
    const int32_t* forbidden_end = forbidden + forbidden_count;
    Floats highest = Floats{} - INFINITY;
    for (long i = 0; i < size; i += WIDTH) {
        Floats part = load(logits + i, size - i);
        long valid = std::min(WIDTH, size - i);
        for (long j = valid; j < WIDTH; j++) part[j] = -INFINITY;
        highest = part > highest ? part : highest;
        if (count == capacity && (!capacity || !any_above(part, best[capacity - 1].value)))
            continue;
        for (long j = 0; j < valid; j++) {
            float value = logits[i + j];
            int32_t token = int32_t(start + i + j);
            if (value > -INFINITY && std::find(forbidden, forbidden_end, token) == forbidden_end)
                insert(best, count, capacity, {value, value, token, 0});
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

// Extends the hypotheses of one sentence by one token; pieces[W, count], best[W, count, C].
inline void extend_hypotheses(const Beams& beams, long b, long width, long count,
                              const Piece* pieces, const Best* best, Best* chosen) {
    long capacity = beams.candidates, filled = 0, time = *beams.time;
    for (long w = 0; w < width; w++) {
        double score = beams.scores[b * width + w];
        if (score == -INFINITY) continue;
        LogNorm norm(pieces + w * count, count);
        for (long p = 0; p < count; p++)
            for (long c = 0; c < pieces[w * count + p].count; c++) {
                const Best& candidate = best[(w * count + p) * capacity + c];
                float logprob = norm.logprob(candidate.value);
                insert(chosen, filled, capacity,
                       {score + logprob, logprob, candidate.token, int32_t(w)});
            }
    }
    for (; filled < capacity; filled++) chosen[filled] = {-INFINITY, -INFINITY, 0, 0};
    double* record = beams.records + (time * beams.room + beams.rows[b]) * capacity * 4;
    long live = 0;
    for (long c = 0; c < capacity; c++) {
        const Best& candidate = chosen[c];
        double line[4] = {double(candidate.token), double(candidate.parent), candidate.value,
                          candidate.score};
        memcpy(record + c * 4, line, sizeof line);
        if (candidate.token == beams.eos) {
            beams.finished[b] += c < width && candidate.score > -INFINITY;
        } else if (live < width) {
            long at = b * width + live++;
            beams.scores[at] = candidate.score;
            beams.tokens[at] = candidate.token;
            beams.parents[at] = candidate.parent;
        }
    }
    bool blocked = beams.scores[b * width] == -INFINITY;  // the best one comes first
    if (beams.finished[b] >= width || time + 1 >= beams.limits[b] || blocked)
        beams.done[b] = 1;
}
