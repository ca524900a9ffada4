// The specification is decoding/beams.py: Beams.advance for sampling, with temperature, top-k and
// top-p, and forbid_repeats, on the same tensors.
#pragma once

#include "choose.h"

// Writes the tokens that hypothesis `row` may not continue with: <eos> before the minimum length,
// and tokens that would repeat an n-gram. Returns their number; `forbidden` has room for one more
// than the tokens of the hypothesis. Without <eos>, `eos` is -1.
inline long forbid(const Beams& beams, long b, long row, int32_t* forbidden) {
    long count = 0, size = beams.no_repeat, length = beams.prefix + *beams.time;
    if (beams.eos >= 0 && *beams.time < beams.min_steps[b])
        forbidden[count++] = int32_t(beams.eos);
    if (!size || length < size) return count;
    const int64_t* tokens = beams.sequences + row * beams.places;
    const int64_t* newest = tokens + length - size + 1;
    for (long i = 0; i + size <= length; i++)
        if (tokens[i] >= 0 && std::equal(newest, newest + size - 1, tokens + i))
            forbidden[count++] = int32_t(tokens[i + size - 1]);
    return count;
}

// Memory of a thread for the numbers of one row.
struct SampleMemory {
    std::vector<float> weights;  // [V]
    std::vector<int32_t> order;  // tokens
    std::vector<double> cumulative;
};

// Probabilities of a row before they are normalised: e^((logit - largest) / temperature).
inline void compute_weights(const float* logits, long size, double temperature,
                            std::vector<float>& weights) {
    Floats highest = Floats{} - INFINITY;
    for (long i = 0; i < size; i += WIDTH) {
        Floats part = load(logits + i, size - i);
        for (long j = size - i; j < WIDTH; j++) part[j] = -INFINITY;
        highest = part > highest ? part : highest;
    }
    float largest = largest_of(highest), inverse = float(std::min(1 / temperature, 3e38));
    weights.resize(size);
    for (long i = 0; i < size; i += WIDTH)
        store(&weights[i], exponential((load(logits + i, size - i) - largest) * inverse), size - i);
}

// The first token whose cumulative weight is above `noise` times the total, and never one of
// weight zero. Sums of whole pieces come first, so that only one piece is summed token by token.
inline long invert(const std::vector<float>& weights, double noise, std::vector<double>& sums) {
    constexpr long LENGTH = 512, PARTS = 8;
    long size = weights.size(), token = 0;
    double total = 0, sum = 0;
    sums.clear();
    for (long start = 0; start < size; start += LENGTH) {
        double parts[PARTS] = {};
        for (long i = start; i < std::min(size, start + LENGTH); i++) parts[i % PARTS] += weights[i];
        sums.push_back(0);
        for (double part : parts) sums.back() += part;
        total += sums.back();
    }
    long piece = 0, last = sums.size() - 1;
    while (piece < last && !(sum + sums[piece] > noise * total)) sum += sums[piece++];
    while (piece > 0 && sums[piece] == 0) piece--;
    for (long i = piece * LENGTH; i < std::min(size, (piece + 1) * LENGTH); i++) {
        if (weights[i] > 0) token = i;
        if ((sum += weights[i]) > noise * total) break;
    }
    return token;
}

// A token from the most probable ones: `top_k` of them, and of those the smallest set with a
// probability of at least `top_p`. Tokens are sorted only as far as they are needed.
inline long draw_from_best(const Beams& beams, double noise, SampleMemory& memory) {
    const std::vector<float>& weights = memory.weights;
    std::vector<int32_t>& order = memory.order;
    auto better = [&](int32_t a, int32_t b) {
        return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
    };
    long size = weights.size(), kept = beams.top_k ? std::min<long>(beams.top_k, size) : size;
    double total = 0, sum = 0;
    for (float weight : weights) total += weight;
    if (!(total > 0)) return 0;  // NaN: the logits are NaN, or all tokens are forbidden
    // Without top-k, all tokens below this weight together have less than 1 - top_p.
    double lowest = kept < size ? 0 : (1 - beams.top_p) * total / size * 0.999;
    order.clear();
    for (long i = 0; i < size; i++)
        if (weights[i] >= lowest) order.push_back(int32_t(i));
    if (kept < size) {
        std::nth_element(order.begin(), order.begin() + kept, order.end(), better);
        total = 0;
        for (long i = 0; i < kept; i++) total += weights[order[i]];
    }
    kept = std::min<long>(kept, order.size());
    std::vector<double>& cumulative = memory.cumulative;
    cumulative.clear();
    for (long i = 0, sorted = 0; i < kept && (!i || sum < beams.top_p); i++) {
        if (i == sorted) {
            sorted = std::min(kept, 4 * sorted + 64);
            std::nth_element(order.begin() + i, order.begin() + sorted - 1, order.begin() + kept,
                             better);
            std::sort(order.begin() + i, order.begin() + sorted, better);
        }
        cumulative.push_back(sum += weights[order[i]] / total);
    }
    long n = std::upper_bound(cumulative.begin(), cumulative.end(), noise * sum) -
             cumulative.begin();
    n = std::min<long>(n, cumulative.size() - 1);
    while (n > 0 && !(weights[order[n]] > 0)) n--;
    return order[n];
}

// Draws a token for one hypothesis; changes the logits of forbidden tokens.
inline Best draw(const Beams& beams, float* logits, long size, const Piece* pieces, long count,
                 double noise, const int32_t* forbidden, long forbidden_count,
                 SampleMemory& memory) {
    LogNorm norm(pieces, count);
    for (long i = 0; i < forbidden_count; i++) logits[forbidden[i]] = -INFINITY;
    compute_weights(logits, size, beams.temperature, memory.weights);
    bool sort = beams.top_k || beams.top_p < 1;
    long token = sort ? draw_from_best(beams, noise, memory)
                      : invert(memory.weights, noise, memory.cumulative);
    float logprob = norm.logprob(logits[token]);
    return {logprob, logprob, int32_t(token), 0};
}

// Extends the samples of one sentence by the drawn tokens.
inline void extend_samples(const Beams& beams, long b, long width, const Best* drawn) {
    long time = *beams.time;
    double* record = beams.records + (time * beams.room + beams.rows[b]) * width * 4;
    bool live = false;
    for (long w = 0; w < width; w++) {
        long at = b * width + w;
        double score = beams.scores[at] + drawn[w].value;
        bool end = drawn[w].token == beams.eos;
        double line[4] = {double(drawn[w].token), double(w), drawn[w].value, score};
        memcpy(record + w * 4, line, sizeof line);
        beams.finished[b] += end && score > -INFINITY;
        beams.scores[at] = end ? -INFINITY : score;
        beams.tokens[at] = drawn[w].token;
        live |= beams.scores[at] != -INFINITY;
    }
    if (beams.finished[b] >= width || time + 1 >= beams.limits[b] || !live) beams.done[b] = 1;
}

// Replaces the sequence of each hypothesis by that of its parent with the new token.
inline void extend_sequences(const Beams& beams, long b, long width) {
    long length = beams.prefix + *beams.time;
    int64_t* sequences = beams.sequences + b * width * beams.places;
    std::vector<int64_t> old(sequences, sequences + width * beams.places);
    for (long w = 0; w < width; w++) {
        long parent = beams.move ? beams.parents[b * width + w] : w;
        std::copy_n(old.data() + parent * beams.places, length, sequences + w * beams.places);
        sequences[w * beams.places + length] = beams.tokens[b * width + w];
    }
}
