// Vectors of numbers as wide as the processor's registers, through the compiler's vector
// types: one source for every variant. Storage may be float, double or bfloat16; arithmetic is in
// float (in double for double).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define REGISTER_BYTES 64
#elif defined(__AVX2__)
#define REGISTER_BYTES 32
#else
#define REGISTER_BYTES 16
#endif

struct BFloat16 {
    uint16_t bits;
};

typedef float Floats __attribute__((vector_size(REGISTER_BYTES)));
typedef int32_t Ints __attribute__((vector_size(REGISTER_BYTES)));
typedef uint32_t Words __attribute__((vector_size(REGISTER_BYTES)));
typedef uint16_t HalfWords __attribute__((vector_size(REGISTER_BYTES / 2)));
typedef double Doubles __attribute__((vector_size(REGISTER_BYTES)));

// The type in which a stored type is computed: one number, and a register.
template <class T> struct Computed {
    typedef float Number;
    typedef Floats Vector;
};
template <> struct Computed<double> {
    typedef double Number;
    typedef Doubles Vector;
};
template <class T> using NumberOf = typename Computed<T>::Number;
template <class T> using VectorOf = typename Computed<T>::Vector;
template <class T> constexpr long LANES = REGISTER_BYTES / sizeof(NumberOf<T>);

template <class T> constexpr long rounded_up(long size) {
    return (size + LANES<T> - 1) / LANES<T> * LANES<T>;
}

// ---- one number --------------------------------------------------------------------------

inline float number(BFloat16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}
inline float number(float x) { return x; }
inline double number(double x) { return x; }

inline void put(float* to, float x) { *to = x; }
inline void put(double* to, double x) { *to = x; }
inline void put(BFloat16* to, float x) {  // to the nearest, ties to even; NaN stays NaN
    uint32_t bits;
    memcpy(&bits, &x, 4);
    to->bits = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// ---- one register ------------------------------------------------------------------------

inline Floats load(const float* from) {
    Floats x;
    memcpy(&x, from, sizeof x);
    return x;
}
inline Doubles load(const double* from) {
    Doubles x;
    memcpy(&x, from, sizeof x);
    return x;
}
inline Floats load(const BFloat16* from) {
    HalfWords bits;
    memcpy(&bits, from, sizeof bits);
    return (Floats)(__builtin_convertvector(bits, Words) << 16);
}

inline void store(float* to, Floats x) { memcpy(to, &x, sizeof x); }
inline void store(double* to, Doubles x) { memcpy(to, &x, sizeof x); }
inline void store(BFloat16* to, Floats x) {
#if defined(__AVX512BF16__)
    __m256bh rounded = _mm512_cvtneps_pbh((__m512)x);
    memcpy(to, &rounded, sizeof rounded);
#else
    Words bits = (Words)x;
    Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    rounded = (Words)(x != x) & 0x7fc0 | ~(Words)(x != x) & rounded;
    HalfWords narrow = __builtin_convertvector(rounded, HalfWords);
    memcpy(to, &narrow, sizeof narrow);
#endif
}

// The first `count` numbers of a register; a load sets the others to zero, a store skips them.
template <class T> inline VectorOf<T> load(const T* from, long count) {
    if (count >= LANES<T>) return load(from);
    T part[LANES<T>] = {};
    memcpy(part, from, count * sizeof(T));
    return load(part);
}
template <class T> inline void store(T* to, VectorOf<T> x, long count) {
    if (count >= LANES<T>) return store(to, x);
    T part[LANES<T>];
    store(part, x);
    memcpy(to, part, count * sizeof(T));
}

template <class V> inline auto sum_of(V x) {
    auto total = x[0];
    for (unsigned i = 1; i < sizeof(V) / sizeof x[0]; i++) total += x[i];
    return total;
}
template <class V> inline auto largest_of(V x) {
    auto largest = x[0];
    for (unsigned i = 1; i < sizeof(V) / sizeof x[0]; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

// e^x for x up to 88: 2^n e^r with |r| <= ln 2 / 2; two units in the last place. Below -87: 0.
inline Floats exponential(Floats x) {
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    Floats bounded = x < -87.0f ? Floats{} - 87.0f : x;
    Floats shifted = bounded * 1.44269504f + shift;
    Floats n = shifted - shift;
    Floats r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
    Floats p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Floats power = (Floats)(((Ints)shifted - (Ints)(Floats{} + shift) + 127) << 23);
    return x < -87.0f ? Floats{} : p * power;
}
inline Doubles exponential(Doubles x) {
    for (unsigned i = 0; i < sizeof x / sizeof x[0]; i++) x[i] = std::exp(x[i]);
    return x;
}
