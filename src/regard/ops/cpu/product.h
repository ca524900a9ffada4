// The specification is ops/reference.py: `linear`, with weights in a blocked layout in float32,
// bfloat16 or int8 (model/quantise.py).
//
// All three types use the same scheme: a word of four bytes holds 1 float, 2 bfloat16 or 4 int8
// numbers, a register holds a word for each of several outputs, and one instruction multiplies them
// by a word of the row. So there is one micro-kernel for all types. Each output is summed over its
// inputs in the same order for any number of rows, so a row's result does not depend on the batch.
#pragma once

#include <algorithm>

#include "team.h"
#include "vectors.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum Kind : int64_t { FLOAT32, BFLOAT16, INT8 };
enum Activation : int64_t { NONE, RELU, GELU, SWIGLU, GELU_TANH, SILU };

constexpr long PANELS = 4;  // registers of outputs that are computed together
constexpr long WIDTH = LANES<float>;
constexpr long BLOCK = PANELS * WIDTH;
#if defined(__AVX512F__)
constexpr long TILE = 4;  // rows that are computed together: 16 of the 32 registers hold sums
#else
constexpr long TILE = 2;  // of 16 registers
#endif

constexpr long in_word(Kind kind) { return kind == FLOAT32 ? 1 : kind == BFLOAT16 ? 2 : 4; }
constexpr long words_of(Kind kind, long columns) {
    return (columns + in_word(kind) - 1) / in_word(kind);
}
inline long padded(long size) { return (size + BLOCK - 1) / BLOCK * BLOCK; }

// W[outputs, inputs], block after block of outputs: [outputs / BLOCK, words, BLOCK] words.
struct Matrix {
    const Ints* tiles;
    const float* scale;  // int8: the scale of each output's weights
    const int32_t* start;  // int8: corrects for the 128 that is added to the numbers of a row
    const float* bias;  // or null
    int64_t outputs, inputs;
};

// ---- the blocked layout ------------------------------------------------------------------

inline uint32_t word_at(Kind kind, const float* row, long inputs, long k) {
    uint32_t word = 0;
    long each = in_word(kind), bits = 32 / each;
    for (long j = 0; j < each && k * each + j < inputs; j++) {
        float x = row[k * each + j];
        uint32_t part;
        if (kind == FLOAT32) {
            memcpy(&part, &x, 4);
        } else if (kind == BFLOAT16) {
            BFloat16 rounded;
            put(&rounded, x);
            part = rounded.bits;
        } else {
            part = uint8_t(int8_t(x));
        }
        word |= part << (bits * j);
    }
    return word;
}

// weight[outputs, inputs] -> tiles, padded with zeros. int8: the weights are whole numbers from
// -127 to 127 already (model/quantise.py).
inline void to_blocks(Kind kind, const float* weight, int64_t outputs, int64_t inputs,
                      uint32_t* tiles, int32_t* start) {
    long words = words_of(kind, inputs);
#pragma omp parallel for
    for (long n = 0; n < padded(outputs); n++) {
        const float* row = weight + n * inputs;
        uint32_t* to = tiles + n / BLOCK * words * BLOCK + n % BLOCK;
        long total = 0;
        for (long k = 0; k < words; k++) {
            uint32_t word = n < outputs ? word_at(kind, row, inputs, k) : 0;
            to[k * BLOCK] = word;
            for (long j = 0; j < 4; j++) total += int8_t(word >> (8 * j));
        }
        if (kind == INT8) start[n] = int32_t(-128 * total);
    }
}

// Converts x[inputs] to words; returns the scale of int8 numbers, otherwise 1.
inline float to_words(Kind kind, const float* x, long inputs, void* words) {
    if (kind == FLOAT32) {
        memcpy(words, x, inputs * 4);
        return 1;
    }
    if (kind == BFLOAT16) {
        BFloat16* to = (BFloat16*)words;
        if (inputs % 2) to[inputs].bits = 0;
        for (long k = 0; k < inputs; k += WIDTH) store(to + k, load(x + k, inputs - k), inputs - k);
        return 1;
    }
    typedef uint8_t Bytes __attribute__((vector_size(WIDTH)));
    Floats maxima = {};
    for (long k = 0; k < inputs; k += WIDTH) {
        Floats part = load(x + k, inputs - k);
        part = part < 0 ? -part : part;
        maxima = part > maxima ? part : maxima;
    }
    float largest = largest_of(maxima), unit = largest > 0 ? 127 / largest : 0;
    uint8_t* to = (uint8_t*)words;
    for (long k = 0; k < inputs; k += WIDTH) {
        Floats part = load(x + k, inputs - k) * unit + 128.5f;  // positive: truncation rounds
        Bytes bytes = __builtin_convertvector(__builtin_convertvector(part, Ints), Bytes);
        memcpy(to + k, &bytes, std::min(WIDTH, words_of(INT8, inputs - k) * 4));
    }
    return largest / 127;
}

// ---- the micro-kernel --------------------------------------------------------------------

template <Kind kind> struct Dot {
    typedef Floats Sum;
    static Sum add(Sum sum, Ints weights, Ints word) {
        if (kind == FLOAT32) return sum + (Floats)weights * (Floats)word;
#if defined(__AVX512BF16__)
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)word);
#else
        const int32_t high = int32_t(0xffff0000);
        sum = sum + (Floats)(weights << 16) * (Floats)(word << 16);
        return sum + (Floats)(weights & high) * (Floats)(word & high);
#endif
    }
};
template <> struct Dot<INT8> {
    typedef Ints Sum;
    static Sum add(Sum sum, Ints weights, Ints word) {  // weights are signed, rows unsigned
#if defined(__AVX512VNNI__)
        return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)word, (__m512i)weights);
#elif defined(__AVX2__)
        __m256i w = (__m256i)weights, x = (__m256i)word;
        __m256i even = _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8),
                                         _mm256_and_si256(x, _mm256_set1_epi16(255)));
        __m256i odd = _mm256_madd_epi16(_mm256_srai_epi16(w, 8), _mm256_srli_epi16(x, 8));
        return sum + (Ints)_mm256_add_epi32(even, odd);
#else
        for (int j = 0; j < 4; j++)
            sum += (weights << (24 - 8 * j) >> 24) * (word >> (8 * j) & 255);
        return sum;
#endif
    }
};

// x / (1 + e^-y)
inline Floats times_sigmoid(Floats x, Floats y) {
    return x / (1.0f + exponential(y < -80 ? Floats{} + 80 : -y));
}

inline Floats activate(Floats x, Activation activation) {
    if (activation == RELU) return x > 0 ? x : Floats{};
    if (activation == SILU) return times_sigmoid(x, x);
    if (activation == GELU_TANH)  // (1 + tanh(z)) / 2 = sigmoid(2 z)
        return times_sigmoid(x, 1.5957691216f * x * (1.0f + 0.044715f * x * x));
    if (activation != GELU) return x;
    // x Φ(x), with erf as Abramowitz and Stegun 7.1.26: an error of at most 1.5e-7.
    Floats z = (x < 0 ? -x : x) * 0.70710678f;
    Floats t = 1.0f / (1.0f + 0.3275911f * z);
    Floats p = 1.061405429f * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    Floats tail = 0.5f * p * t * exponential(-z * z);  // 1 - Φ(|x|)
    return x * (x < 0 ? tail : 1.0f - tail);
}

// Multiplies ROWS rows by a block of outputs.
template <Kind kind, long ROWS>
inline void multiply_block(const Matrix& matrix, long block, const int32_t* words, long count,
                           const float* units, float* out, long stride, Activation activation) {
    typename Dot<kind>::Sum sums[ROWS][PANELS];
    for (long p = 0; p < PANELS; p++) {
        typename Dot<kind>::Sum start = {};
        if (kind == INT8) memcpy(&start, matrix.start + block * BLOCK + p * WIDTH, sizeof start);
        for (long r = 0; r < ROWS; r++) sums[r][p] = start;
    }
    const Ints* line = matrix.tiles + block * count * PANELS;
    for (long k = 0; k < count; k++, line += PANELS) {
        Ints weights[PANELS];
#pragma GCC unroll 4
        for (long p = 0; p < PANELS; p++) weights[p] = line[p];
#pragma GCC unroll 4
        for (long r = 0; r < ROWS; r++) {
            Ints word = Ints{} + words[r * count + k];
#pragma GCC unroll 4
            for (long p = 0; p < PANELS; p++)
                sums[r][p] = Dot<kind>::add(sums[r][p], weights[p], word);
        }
    }
    for (long p = 0; p < PANELS; p++) {
        long n = block * BLOCK + p * WIDTH;
        Floats bias = {}, scale = {};
        if (matrix.bias && n < matrix.outputs) bias = load(matrix.bias + n, matrix.outputs - n);
        if (kind == INT8) scale = load(matrix.scale + n);
        for (long r = 0; r < ROWS; r++) {
            Floats sum;
            if (kind == INT8)
                sum = __builtin_convertvector((Ints)sums[r][p], Floats) * (scale * units[r]);
            else
                sum = (Floats)sums[r][p];
            store(out + r * stride + n, activate(sum + bias, activation));
        }
    }
}

// The rows of a product as words; each thread has its own memory for a few rows.
struct Prepared {
    int32_t* words;
    float* units;
};

template <Kind kind, long ROWS = TILE>
inline void multiply_rows(long rows, const Matrix& matrix, long block, const int32_t* words,
                          long count, const float* units, float* out, long stride,
                          Activation activation) {
    if (rows == ROWS)
        multiply_block<kind, ROWS>(matrix, block, words, count, units, out, stride, activation);
    else if constexpr (ROWS > 1)
        multiply_rows<kind, ROWS - 1>(rows, matrix, block, words, count, units, out, stride,
                                      activation);
}

template <Kind kind>
inline void blocks_of(Team& team, const Matrix& matrix, const Prepared& x, long rows, float* out,
                      long stride, Activation activation) {
    long count = words_of(kind, matrix.inputs);
    team.each(padded(matrix.outputs) / BLOCK, [&](long block) {
        for (long r = 0; r < rows; r += TILE)
            multiply_rows<kind>(std::min(TILE, rows - r), matrix, block, x.words + r * count, count,
                                x.units + r, out + r * stride, stride, activation);
    });
}

// x[rows, inputs] -> f(x Wᵀ + b), in rows that are `stride` apart and can hold whole blocks.
inline void product(Team& team, Kind kind, const Matrix& matrix, const float* x, long x_stride,
                    long rows, const Prepared& own, const Prepared& shared, float* out, long stride,
                    Activation activation = NONE) {
    long count = words_of(kind, matrix.inputs);
    bool few = rows <= TILE;  // each thread prepares all rows, which is faster than waiting
    const Prepared& to = few ? own : shared;
    auto prepare = [&](long r) {
        to.units[r] = to_words(kind, x + r * x_stride, matrix.inputs, to.words + r * count);
    };
    if (few)
        for (long r = 0; r < rows; r++) prepare(r);
    else
        team.each(rows, prepare);
    if (kind == FLOAT32)
        blocks_of<FLOAT32>(team, matrix, to, rows, out, stride, activation);
    else if (kind == BFLOAT16)
        blocks_of<BFLOAT16>(team, matrix, to, rows, out, stride, activation);
    else
        blocks_of<INT8>(team, matrix, to, rows, out, stride, activation);
}
