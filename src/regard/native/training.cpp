// What a training step does between its products: dropout, add & norm, the loss and its slope.
//
// Each is one pass over memory that PyTorch would take several for. Storage may be bfloat16,
// arithmetic and sums are in float. Rows are shared out among the threads in pieces of a fixed
// size, and what is dropped is a function of a key and the place: the number of threads changes
// no bit.

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace {

constexpr long PIECE = 64;  // rows whose sums are taken together

// Which numbers are dropped: those whose 32 random bits are below `least`; the others times factor.
struct Dropout {
    uint32_t key[2];
    uint32_t least;
    float factor;

    // What numbers place, place + 1, ... are multiplied with.
    Floats factors(long place) const {
        if (least == 0) return Floats{} + 1.0f;
        Words bits;
        for (unsigned i = 0; i < LANES<float>; i++) bits[i] = i;
        bits = (bits + uint32_t(place)) * 0x9e3779b9u ^ key[0];
        bits = (bits ^ bits >> 16) * 0x21f0aaadu ^ key[1];
        bits = (bits ^ bits >> 15) * 0x735a2d97u;
        bits ^= bits >> 15;
        return bits >= least ? Floats{} + factor : Floats{};
    }
};

// Layer norm, or RMS norm, which has neither mean nor bias.
struct Norm {
    const float *weight, *bias;
    float epsilon;
    long centred;
};

// output = x + dropout(y); x may be missing.
template <class X, class Y>
void add(const Dropout& dropout, const X* x, const Y* y, X* output, long size) {
#pragma omp parallel for
    for (long start = 0; start < size; start += 4096)
        for (long i = start; i < std::min(start + 4096, size); i += LANES<float>) {
            Floats sum = load(y + i, size - i) * dropout.factors(i);
            if (x) sum += load(x + i, size - i);
            store(output + i, sum, size - i);
        }
}

// output[N, D] = norm(x + dropout(y)); statistics[N, 2]: mean, and 1 / standard deviation.
template <class X, class Y>
void add_and_norm(const Dropout& dropout, const Norm& norm, const X* x, const Y* y, Y* output,
                  float* statistics, long rows, long width) {
#pragma omp parallel
    {
        std::vector<float> sums(rounded_up<float>(width));
#pragma omp for
        for (long n = 0; n < rows; n++) {
            const long row = n * width;
            Floats total = {}, squares = {};
            for (long i = 0; i < width; i += LANES<float>) {
                Floats sum = load(x + row + i, width - i) +
                             load(y + row + i, width - i) * dropout.factors(row + i);
                store(sums.data() + i, sum);
                total += sum;
            }
            const float mean = norm.centred ? sum_of(total) / width : 0.0f;
            std::fill(sums.begin() + width, sums.end(), mean);
            for (long i = 0; i < width; i += LANES<float>) {
                Floats centred = load(sums.data() + i) - mean;
                squares += centred * centred;
            }
            const float scale = 1 / std::sqrt(sum_of(squares) / width + norm.epsilon);
            for (long i = 0; i < width; i += LANES<float>) {
                Floats normed = (load(sums.data() + i) - mean) * scale;
                normed *= load(norm.weight + i, width - i);
                if (norm.bias) normed += load(norm.bias + i, width - i);
                store(output + row + i, normed, width - i);
            }
            statistics[2 * n] = mean;
            statistics[2 * n + 1] = scale;
        }
    }
}

// The slopes of x, y, weight and bias (the last two [2, D]) from that of the output.
template <class X, class Y>
void add_and_norm_backward(const Dropout& dropout, const Norm& norm, const X* x, const Y* y,
                           const float* statistics, const Y* slope, X* x_slope, Y* y_slope,
                           float* norm_slope, long rows, long width) {
    const long pieces = (rows + PIECE - 1) / PIECE, padded = rounded_up<float>(width);
    std::vector<float> parts(pieces * 2 * padded);
#pragma omp parallel
    {
        std::vector<float> memory(3 * padded);
        float *normed = memory.data(), *slopes = normed + padded, *factors = slopes + padded;
#pragma omp for
        for (long piece = 0; piece < pieces; piece++) {
            float *weight_sum = parts.data() + piece * 2 * padded, *bias_sum = weight_sum + padded;
            for (long n = piece * PIECE; n < std::min((piece + 1) * PIECE, rows); n++) {
                const long row = n * width;
                const float mean = statistics[2 * n], scale = statistics[2 * n + 1];
                Floats total = {}, product = {};
                for (long i = 0; i < width; i += LANES<float>) {
                    const long rest = width - i;
                    Floats factor = dropout.factors(row + i), upstream = load(slope + row + i, rest);
                    Floats sum = load(x + row + i, rest) + load(y + row + i, rest) * factor;
                    Floats value = (sum - mean) * scale;
                    store(weight_sum + i, load(weight_sum + i) + upstream * value);
                    store(bias_sum + i, load(bias_sum + i) + upstream);
                    upstream *= load(norm.weight + i, rest);
                    total += upstream;
                    product += upstream * value;
                    store(normed + i, value);
                    store(slopes + i, upstream);
                    store(factors + i, factor);
                }
                const float constant = norm.centred ? sum_of(total) / width : 0.0f;
                const float linear = sum_of(product) / width;
                for (long i = 0; i < width; i += LANES<float>) {
                    Floats change = load(slopes + i) - constant - load(normed + i) * linear;
                    store(x_slope + row + i, change * scale, width - i);
                    store(y_slope + row + i, change * scale * load(factors + i), width - i);
                }
            }
        }
    }
    std::fill(norm_slope, norm_slope + 2 * width, 0.0f);
    for (long piece = 0; piece < pieces; piece++)
        for (long which = 0; which < 2; which++)
            for (long i = 0; i < width; i++)
                norm_slope[which * width + i] += parts[(piece * 2 + which) * padded + i];
}

// For each row of logits[N, V]: -log p(label), and the same averaged over all labels. Where the
// logits were comes their slope: p - (1 - smoothing) [label] - smoothing / V.
template <class T>
void losses(T* logits, const int64_t* labels, float smoothing, long needed, float* likelihood,
            float* uniform, long rows, long vocabulary) {
#pragma omp parallel
    {
        std::vector<float> powers(rounded_up<float>(vocabulary));
#pragma omp for
        for (long n = 0; n < rows; n++) {
            T* row = logits + n * vocabulary;
            Floats most = Floats{} - INFINITY, total = {}, sum = {};
            for (long i = 0; i < vocabulary; i += LANES<float>) {
                Floats x = load(row + i, vocabulary - i);
                total += x;
                if (vocabulary - i < LANES<float>)
                    for (long rest = vocabulary - i; rest < LANES<float>; rest++) x[rest] = -INFINITY;
                store(powers.data() + i, x);
                most = x > most ? x : most;
            }
            const float largest = largest_of(most);
            for (long i = 0; i < vocabulary; i += LANES<float>) {
                Floats power = exponential(load(powers.data() + i) - largest);
                store(powers.data() + i, power);
                sum += power;
            }
            const float whole = sum_of(sum), level = largest + std::log(whole);
            likelihood[n] = level - number(row[labels[n]]);
            uniform[n] = level - sum_of(total) / vocabulary;
            if (!needed) continue;
            const float share = 1 / whole, rest = smoothing / vocabulary;
            const float label = powers[labels[n]] * share - rest - (1 - smoothing);
            for (long i = 0; i < vocabulary; i += LANES<float>)
                store(row + i, load(powers.data() + i) * share - rest, vocabulary - i);
            put(row + labels[n], label);
        }
    }
}

}  // namespace

#define FOR_TYPES(NAME, X, Y)                                                                      \
    extern "C" void add_##NAME(const Dropout* dropout, const X* x, const Y* y, X* output,          \
                               long size) {                                                        \
        add(*dropout, x, y, output, size);                                                         \
    }                                                                                              \
    extern "C" void add_and_norm_##NAME(const Dropout* dropout, const Norm* norm, const X* x,      \
                                        const Y* y, Y* output, float* statistics, long rows,       \
                                        long width) {                                              \
        add_and_norm(*dropout, *norm, x, y, output, statistics, rows, width);                      \
    }                                                                                              \
    extern "C" void add_and_norm_backward_##NAME(                                                  \
        const Dropout* dropout, const Norm* norm, const X* x, const Y* y, const float* statistics, \
        const Y* slope, X* x_slope, Y* y_slope, float* norm_slope, long rows, long width) {        \
        add_and_norm_backward(*dropout, *norm, x, y, statistics, slope, x_slope, y_slope,          \
                              norm_slope, rows, width);                                            \
    }
FOR_TYPES(float32_float32, float, float)
FOR_TYPES(float32_bfloat16, float, BFloat16)
FOR_TYPES(bfloat16_bfloat16, BFloat16, BFloat16)

#define FOR_TYPE(NAME, T)                                                                          \
    extern "C" void losses_##NAME(T* logits, const int64_t* labels, float smoothing, long needed,  \
                                  float* likelihood, float* uniform, long rows, long vocabulary) { \
        losses(logits, labels, smoothing, needed, likelihood, uniform, rows, vocabulary);          \
    }
FOR_TYPE(float32, float)
FOR_TYPE(bfloat16, BFloat16)
