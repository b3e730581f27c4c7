/* Vectors of sixteen numbers, and what all kernels do with them.
 *
 * They are the compiler's own (`vector_size`), so that no instruction set in particular is needed;
 * where the processor multiplies bfloat16 itself, `add_products` has it do so.
 */
#pragma once
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16
typedef uint16_t bf16;
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));

static inline vf load(const bf16 *from) {
    vh half;
    memcpy(&half, from, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
}

/* Round to nearest, ties to even; what is not a number stays so. The instruction takes numbers too
 * small for a full mantissa as 0. */
static inline vh narrow(vf x) {
#ifdef __AVX512BF16__
    return (vh)_mm512_cvtneps_pbh((__m512)x);
#endif
    vu bits = (vu)x;
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu is_nan = (vu)(x != x);
    rounded = (rounded & ~is_nan) | (is_nan & 0x7fc0);
    return __builtin_convertvector(rounded, vh);
}

static inline void store(bf16 *to, vf x) {
    vh half = narrow(x);
    memcpy(to, &half, sizeof half);
}

static inline vf round_to_bf16(vf x) {
    return (vf)(__builtin_convertvector(narrow(x), vu) << 16);
}

typedef float v4 __attribute__((vector_size(16)));

/* Sixteen lanes to four, whose sum is the same. */
static inline v4 fold(vf x) {
    v4 part[4];
    memcpy(part, &x, sizeof x);
    return (part[0] + part[2]) + (part[1] + part[3]);
}

static inline float sum(vf x) {
    v4 part = fold(x);
    return (part[0] + part[2]) + (part[1] + part[3]);
}

/* The sums of four vectors at once. */
static inline v4 sum4(vf a, vf b, vf c, vf d) {
    v4 w = fold(a), x = fold(b), y = fold(c), z = fold(d);
    v4 left = __builtin_shufflevector(w, x, 0, 4, 1, 5) + __builtin_shufflevector(w, x, 2, 6, 3, 7);
    v4 right =
        __builtin_shufflevector(y, z, 0, 4, 1, 5) + __builtin_shufflevector(y, z, 2, 6, 3, 7);
    return __builtin_shufflevector(left, right, 0, 1, 4, 5) +
           __builtin_shufflevector(left, right, 2, 3, 6, 7);
}

static inline vf broadcast(float x) { return x - (vf){0}; }

static inline vf choose(vi mask, vf yes, vf no) {
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

/* The larger or the smaller one of each lane's two, and `x` where either is not a number. */
static inline vf larger(vf limit, vf x) {
#ifdef __AVX512F__
    return (vf)_mm512_max_ps((__m512)limit, (__m512)x);
#else
    return choose(limit > x, limit, x);
#endif
}

static inline vf smaller(vf limit, vf x) {
#ifdef __AVX512F__
    return (vf)_mm512_min_ps((__m512)limit, (__m512)x);
#else
    return choose(limit < x, limit, x);
#endif
}

/* e^x by range reduction and a polynomial, relative error below 3e-7, for x of [-87, 88] and as at
 * its ends for what lies outside; what is not a number stays so. */
static inline vf exponential(vf x) {
    const vf magic = broadcast(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    x = smaller(broadcast(88.0f), larger(broadcast(-87.0f), x));
    vf n = (x * 1.44269504088896341f + magic) - magic;
    vf r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vf p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vf)((__builtin_convertvector(n, vi) + 127) << 23);
}

static inline vf capped(vf score, float cap) {
    vf e = exponential(score * (2.0f / cap));
    return cap * (1.0f - 2.0f / (e + 1.0f));
}

/* `total` plus the products of the two bfloat16 numbers in each lane of `a` and `b`. */
static inline vf add_products(vf total, vu a, vu b) {
#ifdef __AVX512BF16__
    return (vf)_mm512_dpbf16_ps((__m512)total, (__m512bh)a, (__m512bh)b);
#else
    total += (vf)(a << 16) * (vf)(b << 16);
    return total + (vf)(a & 0xffff0000) * (vf)(b & 0xffff0000);
#endif
}

#define UNROLLED _Pragma("GCC unroll 16") for
