// The specification is ops/reference.py: embedding, add & norm with dropout, gradients of bias and
// ReLU, the loss and its gradient.
//
// Each function is one pass over memory, where PyTorch needs several. Storage may be bfloat16;
// arithmetic and sums are in float. Threads process rows in pieces of a fixed size, and a dropout
// mask is a function of a key and the index of a number, so the result is bit-identical for any
// number of threads.

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace {

constexpr long PIECE = 64;  // rows that are summed together

// Drops the numbers whose 32 random bits are below `threshold`; multiplies the others by `factor`.
struct Dropout {
    uint32_t key[2];
    uint32_t threshold;
    float factor;

    // The factors of the numbers with index place, place + 1, ...
    Floats factors(long place) const {
        if (threshold == 0) return Floats{} + 1.0f;
        Words bits;
        for (unsigned i = 0; i < LANES<float>; i++) bits[i] = i;
        bits = (bits + uint32_t(place)) * 0x9e3779b9u ^ key[0];
        bits = (bits ^ bits >> 16) * 0x21f0aaadu ^ key[1];
        bits = (bits ^ bits >> 15) * 0x735a2d97u;
        bits ^= bits >> 15;
        return bits >= threshold ? Floats{} + factor : Floats{};
    }
};

// Layer norm, or RMS norm, which has neither mean nor bias.
struct Norm {
    const float *weight, *bias;
    float epsilon;
    long centred;
};

// The sums over the pieces of parts[pieces, count], always in the same order.
void sum_pieces(const std::vector<float>& parts, float* sums, long count) {
    std::fill(sums, sums + count, 0.0f);
    for (size_t start = 0; start < parts.size(); start += count)
        for (long i = 0; i < count; i++) sums[i] += parts[start + i];
}

// output = x + dropout(y); x may be null.
template <class T>
void add(const Dropout& dropout, const T* x, const T* y, T* output, long size) {
#pragma omp parallel for
    for (long start = 0; start < size; start += 4096)
        for (long i = start; i < std::min(start + 4096, size); i += LANES<float>) {
            Floats sum = load(y + i, size - i) * dropout.factors(i);
            if (x) sum += load(x + i, size - i);
            store(output + i, sum, size - i);
        }
}

// output[N, D] = norm(x + dropout(y)); statistics[N, 2]: mean, and 1 / standard deviation. y may
// be null.
template <class T>
void add_and_norm(const Dropout& dropout, const Norm& norm, const T* x, const T* y, T* output,
                  float* statistics, long rows, long width) {
#pragma omp parallel
    {
        std::vector<float> sums(rounded_up<float>(width));
#pragma omp for
        for (long n = 0; n < rows; n++) {
            const long row = n * width;
            Floats total = {}, squares = {};
            for (long i = 0; i < width; i += LANES<float>) {
                Floats sum = load(x + row + i, width - i);
                if (y) sum += load(y + row + i, width - i) * dropout.factors(row + i);
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

// The gradients of x, y, and of weight and bias ([2, D]) from the gradient of the output.
template <class T>
void add_and_norm_backward(const Dropout& dropout, const Norm& norm, const T* x, const T* y,
                           const float* statistics, const T* grad, T* x_grad, T* y_grad,
                           float* norm_grad, long rows, long width) {
    const long pieces = (rows + PIECE - 1) / PIECE, padded = rounded_up<float>(width);
    std::vector<float> parts(pieces * 2 * width);
#pragma omp parallel
    {
        std::vector<float> memory(5 * padded);
        float *normed = memory.data(), *grads = normed + padded, *factors = grads + padded;
        float *weight_sum = factors + padded, *bias_sum = weight_sum + padded;
#pragma omp for
        for (long piece = 0; piece < pieces; piece++) {
            std::fill(weight_sum, weight_sum + 2 * padded, 0.0f);
            for (long n = piece * PIECE; n < std::min((piece + 1) * PIECE, rows); n++) {
                const long row = n * width;
                const float mean = statistics[2 * n], scale = statistics[2 * n + 1];
                Floats total = {}, product = {};
                for (long i = 0; i < width; i += LANES<float>) {
                    const long rest = width - i;
                    Floats sum = load(x + row + i, rest), upstream = load(grad + row + i, rest);
                    if (y) {
                        Floats factor = dropout.factors(row + i);
                        sum += load(y + row + i, rest) * factor;
                        store(factors + i, factor);
                    }
                    Floats value = (sum - mean) * scale;
                    store(weight_sum + i, load(weight_sum + i) + upstream * value);
                    store(bias_sum + i, load(bias_sum + i) + upstream);
                    upstream *= load(norm.weight + i, rest);
                    total += upstream;
                    product += upstream * value;
                    store(normed + i, value);
                    store(grads + i, upstream);
                }
                const float constant = norm.centred ? sum_of(total) / width : 0.0f;
                const float linear = sum_of(product) / width;
                for (long i = 0; i < width; i += LANES<float>) {
                    Floats change = load(grads + i) - constant - load(normed + i) * linear;
                    store(x_grad + row + i, change * scale, width - i);
                    if (y) store(y_grad + row + i, change * scale * load(factors + i), width - i);
                }
            }
            std::copy(weight_sum, weight_sum + width, parts.data() + piece * 2 * width);
            std::copy(bias_sum, bias_sum + width, parts.data() + (piece * 2 + 1) * width);
        }
    }
    sum_pieces(parts, norm_grad, 2 * width);
}

// The backward pass of ReLU (if `output` is not null) and of the bias: result[N, F] is the gradient
// where the output is not 0; bias_grad[F] is the sum of its rows.
template <class T>
void bias_backward(const T* grad, const T* output, T* result, float* bias_grad, long rows,
                   long width) {
    const long pieces = (rows + PIECE - 1) / PIECE, padded = rounded_up<float>(width);
    std::vector<float> parts(pieces * width);
#pragma omp parallel
    {
        std::vector<float> sums(padded);
#pragma omp for
        for (long piece = 0; piece < pieces; piece++) {
            std::fill(sums.begin(), sums.end(), 0.0f);
            for (long n = piece * PIECE; n < std::min((piece + 1) * PIECE, rows); n++)
                for (long i = 0; i < width; i += LANES<float>) {
                    const long at = n * width + i, rest = width - i;
                    Floats x = load(grad + at, rest);
                    if (output) {
                        x = load(output + at, rest) > 0.0f ? x : Floats{};
                        store(result + at, x, rest);
                    }
                    store(sums.data() + i, load(sums.data() + i) + x);
                }
            std::copy(sums.begin(), sums.begin() + width, parts.begin() + piece * width);
        }
    }
    sum_pieces(parts, bias_grad, width);
}

// output[N, D] = dropout(table[tokens] * scale + position_rows[positions]), where position_rows may
// be null.
template <class T>
void embed(const Dropout& dropout, const float* table, const int64_t* tokens, float scale,
           const float* position_rows, const int64_t* positions, T* output, long rows, long width) {
#pragma omp parallel for
    for (long n = 0; n < rows; n++)
        for (long i = 0; i < width; i += LANES<float>) {
            const long rest = width - i;
            Floats x = load(table + tokens[n] * width + i, rest) * scale;
            if (position_rows) x += load(position_rows + positions[n] * width + i, rest);
            store(output + n * width + i, x * dropout.factors(n * width + i), rest);
        }
}

// table_grad[V, D]: for each token the sum of dropout(grad) * scale over the rows that contain it.
template <class T>
void embed_backward(const Dropout& dropout, const T* grad, const int64_t* tokens, float scale,
                    float* table_grad, long rows, long width, long vocabulary) {
#pragma omp parallel
    {
#pragma omp for
        for (long v = 0; v < vocabulary; v++)
            std::fill(table_grad + v * width, table_grad + (v + 1) * width, 0.0f);
        // Each thread processes different columns, so that no two threads add to the same number.
#pragma omp for
        for (long i = 0; i < width; i += LANES<float>)
            for (long n = 0; n < rows; n++) {
                float* to = table_grad + tokens[n] * width + i;
                Floats x = load(grad + n * width + i, width - i);
                x *= dropout.factors(n * width + i) * scale;
                store(to, load(to, width - i) + x, width - i);
            }
    }
}

// For each row of logits[N, V]: -log p(label), and its mean over all labels. The gradient of the
// loss overwrites the logits: p - (1 - smoothing) [label] - smoothing / V.
template <class T>
void losses(T* logits, const int64_t* labels, float smoothing, long needs_gradient,
            float* likelihood, float* uniform, long rows, long vocabulary) {
#pragma omp parallel
    {
        std::vector<float> powers(rounded_up<float>(vocabulary));
#pragma omp for
        for (long n = 0; n < rows; n++) {
            T* row = logits + n * vocabulary;
            Floats maxima = Floats{} - INFINITY, total = {}, sum = {};
            for (long i = 0; i < vocabulary; i += LANES<float>) {
                Floats x = load(row + i, vocabulary - i);
                total += x;
                if (vocabulary - i < LANES<float>)
                    for (long j = vocabulary - i; j < LANES<float>; j++) x[j] = -INFINITY;
                store(powers.data() + i, x);
                maxima = x > maxima ? x : maxima;
            }
            const float largest = largest_of(maxima);
            for (long i = 0; i < vocabulary; i += LANES<float>) {
                Floats power = exponential(load(powers.data() + i) - largest);
                store(powers.data() + i, power);
                sum += power;
            }
            const float normaliser = sum_of(sum), log_sum = largest + std::log(normaliser);
            likelihood[n] = log_sum - number(row[labels[n]]);
            uniform[n] = log_sum - sum_of(total) / vocabulary;
            if (!needs_gradient) continue;
            const float inverse = 1 / normaliser, rest = smoothing / vocabulary;
            const float label = powers[labels[n]] * inverse - rest - (1 - smoothing);
            for (long i = 0; i < vocabulary; i += LANES<float>)
                store(row + i, load(powers.data() + i) * inverse - rest, vocabulary - i);
            put(row + labels[n], label);
        }
    }
}

}  // namespace

#define FOR_TYPE(NAME, T)                                                                          \
    extern "C" void add_##NAME(const Dropout* dropout, const T* x, const T* y, T* output,          \
                               long size) {                                                        \
        add(*dropout, x, y, output, size);                                                         \
    }                                                                                              \
    extern "C" void add_and_norm_##NAME(const Dropout* dropout, const Norm* norm, const T* x,      \
                                        const T* y, T* output, float* statistics, long rows,       \
                                        long width) {                                              \
        add_and_norm(*dropout, *norm, x, y, output, statistics, rows, width);                      \
    }                                                                                              \
    extern "C" void add_and_norm_backward_##NAME(                                                  \
        const Dropout* dropout, const Norm* norm, const T* x, const T* y, const float* statistics, \
        const T* grad, T* x_grad, T* y_grad, float* norm_grad, long rows, long width) {            \
        add_and_norm_backward(*dropout, *norm, x, y, statistics, grad, x_grad, y_grad,             \
                              norm_grad, rows, width);                                             \
    }                                                                                              \
    extern "C" void bias_backward_##NAME(const T* grad, const T* output, T* result,                \
                                         float* bias_grad, long rows, long width) {                \
        bias_backward(grad, output, result, bias_grad, rows, width);                               \
    }                                                                                              \
    extern "C" void embed_##NAME(const Dropout* dropout, const float* table,                       \
                                 const int64_t* tokens, float scale, const float* position_rows,   \
                                 const int64_t* positions, T* output, long rows, long width) {     \
        embed(*dropout, table, tokens, scale, position_rows, positions, output, rows, width);      \
    }                                                                                              \
    extern "C" void embed_backward_##NAME(const Dropout* dropout, const T* grad,                   \
                                          const int64_t* tokens, float scale, float* table_grad,   \
                                          long rows, long width, long vocabulary) {                \
        embed_backward(*dropout, grad, tokens, scale, table_grad, rows, width, vocabulary);        \
    }                                                                                              \
    extern "C" void losses_##NAME(T* logits, const int64_t* labels, float smoothing,               \
                                  long needs_gradient, float* likelihood, float* uniform,          \
                                  long rows, long vocabulary) {                                    \
        losses(logits, labels, smoothing, needs_gradient, likelihood, uniform, rows, vocabulary);  \
    }
FOR_TYPE(float32, float)
FOR_TYPE(bfloat16, BFloat16)
