/* Sixteen floats at a time: load, store, exponent, sums over lanes; for float or bfloat16 entries.

GCC's vector types are lowered to what the processor has: one register with AVX-512, two with AVX2,
four with NEON. Arithmetic is always in float32. Every function treats a lane as any other, so that
the same number comes out the same to the bit wherever it stands. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(32)));

INLINE floats spread(float x) { return x - (floats){}; }

INLINE floats pick(ints mask, floats yes, floats no) {
    return (floats)((mask & (ints)yes) | (~mask & (ints)no));
}

/* a * b + c with one rounding. An expression with two products leaves it to the compiler which of them
is fused, and compilers for other processors choose otherwise. */
INLINE floats fused(floats a, floats b, floats c) {
    float x[LANES], y[LANES], z[LANES];
    memcpy(x, &a, sizeof a);
    memcpy(y, &b, sizeof b);
    memcpy(z, &c, sizeof c);
    for (int lane = 0; lane < LANES; lane++) z[lane] = __builtin_fmaf(x[lane], y[lane], z[lane]);
    memcpy(&c, z, sizeof c);
    return c;
}

INLINE floats larger(floats a, floats b) { return pick(a > b, a, b); }

INLINE words widen_halves(halves narrow) {
#ifdef __AVX512F__
    return (words)_mm512_cvtepu16_epi32((__m256i)narrow);  /* GCC takes six instructions */
#else
    return __builtin_convertvector(narrow, words);
#endif
}

#ifdef BFLOAT16

typedef uint16_t entry;

INLINE float widen(entry x) {
    uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

INLINE floats load(const entry *from) {
    halves bits;
    memcpy(&bits, from, sizeof bits);
    return (floats)(widen_halves(bits) << 16);
}

/* To the nearest, ties to even; not-a-number stays one. */
INLINE void store(entry *to, floats x) {
    words bits = (words)x;
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    words is_nan = (words)(x != x);
    halves narrow = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0), halves);
    memcpy(to, &narrow, sizeof narrow);
}

/* As whoever reads it from memory will see it. */
INLINE floats rounded(floats x) {
    entry narrow[LANES];
    store(narrow, x);
    return load(narrow);
}

#else

typedef float entry;

INLINE floats load(const entry *from) {
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(entry *to, floats x) { memcpy(to, &x, sizeof x); }

INLINE floats rounded(floats x) { return x; }

#endif

/* The first `count` lanes; zeros behind them. */
INLINE floats load_part(const entry *from, long count) {
    entry padded[LANES] = {0};
    memcpy(padded, from, (size_t)count * sizeof(entry));
    return load(padded);
}

INLINE void store_part(entry *to, floats x, long count) {
    entry padded[LANES];
    store(padded, x);
    memcpy(to, padded, (size_t)count * sizeof(entry));
}

/* `count` lanes, at most all. */
INLINE floats load_some(const entry *from, long count) {
    return count >= LANES ? load(from) : load_part(from, count);
}

INLINE void store_some(entry *to, floats x, long count) {
    if (count >= LANES) store(to, x);
    else store_part(to, x, count);
}

/* `count` floats, at most all lanes; zeros behind them. */
INLINE floats load_floats(const float *from, long count) {
    floats some = {};
    if (count >= LANES) memcpy(&some, from, sizeof some);
    else memcpy(&some, from, (size_t)count * sizeof(float));
    return some;
}

/* e to the x: powers of two times a polynomial on half a power (Cephes' coefficients); 0 below -87,
and no more than e to the 88. Not-a-number stays one. */
INLINE floats exponent(floats x) {
    const float high = 0.693359375f, low = -2.12194440e-4f, shift = 12582912.0f;
    floats bounded = pick(x < 88.0f, x, spread(88.0f));
    ints is_seen = bounded > -87.0f;
    bounded = pick(is_seen, bounded, (floats){});
    floats power = (bounded * 1.44269504088896341f + shift) - shift;
    floats rest = bounded - power * high - power * low;
    floats sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    ints scale = (__builtin_convertvector(power, ints) + 127) << 23;
    return pick(x == x, (floats)((ints)(sum * (floats)scale) & is_seen), x);
}

/* An odd polynomial (Cephes' coefficients) near 0, 1 - 2 / (e^(2|x|) + 1) elsewhere. Not-a-number stays
one. */
INLINE floats hyperbolic_tangent(floats x) {
    floats size = larger(x, -x), square = x * x;
    floats sum = square * -5.70498872745e-3f + 2.06390887954e-2f;
    sum = sum * square - 5.37397155531e-2f;
    sum = sum * square + 1.33314422036e-1f;
    sum = sum * square - 3.33332819422e-1f;
    floats far = 1.0f - 2.0f / (exponent(size + size) + 1.0f);
    far = pick(x < (floats){}, -far, far);
    return pick(size < 0.625f, sum * square * x + x, far);
}

/* Adds the upper half of every group of lanes to its lower half; `a`'s groups, then those of `b`. */
INLINE floats fold_16(floats a, floats b) {
    const ints at = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
    return __builtin_shuffle(a, b, at) + __builtin_shuffle(a, b, at + 8);
}

INLINE floats fold_8(floats a, floats b) {
    const ints at = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
    return __builtin_shuffle(a, b, at) + __builtin_shuffle(a, b, at + 4);
}

INLINE floats fold_4(floats a, floats b) {
    const ints at = {0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29};
    return __builtin_shuffle(a, b, at) + __builtin_shuffle(a, b, at + 2);
}

INLINE floats fold_2(floats a, floats b) {
    const ints at = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    return __builtin_shuffle(a, b, at) + __builtin_shuffle(a, b, at + 1);
}

INLINE floats sums_of_4(const floats *x) { return fold_8(fold_16(x[0], x[1]), fold_16(x[2], x[3])); }

INLINE floats sums_of_8(const floats *x) { return fold_4(sums_of_4(x), sums_of_4(x + 4)); }

/* Lane i is the sum over the lanes of x[i], added in the same order for every i. */
INLINE floats sums_of_16(const floats *x) { return fold_2(sums_of_8(x), sums_of_8(x + 8)); }

/* The same sum of a single one. */
INLINE float sum_of(floats x) {
    floats by_eight = fold_16(x, x), by_four = fold_8(by_eight, by_eight);
    floats by_two = fold_4(by_four, by_four);
    return fold_2(by_two, by_two)[0];
}
