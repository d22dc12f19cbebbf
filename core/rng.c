#include "core/rng.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "core/hash.h"

/* Multipliers and Weyl increments of Philox 4x32 (Salmon et al., SC 2011, table 2). */
#define PHILOX_M0 UINT32_C(0xD2511F53)
#define PHILOX_M1 UINT32_C(0xCD9E8D57)
#define PHILOX_W0 UINT32_C(0x9E3779B9)
#define PHILOX_W1 UINT32_C(0xBB67AE85)

/* Streams of one seed are kept apart by a tag in the key (dropout has none, as published). */
#define TAG_INIT UINT64_C(0x696e697477656967)
#define TAG_ORDER UINT64_C(0x73616d706f726465)

static inline RngBlock philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key) {
    uint32_t k0 = (uint32_t)key;
    uint32_t k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    return (RngBlock){{c0, c1, c2, c3}};
}

RngBlock rng_philox(const uint32_t counter[4], const uint32_t key[2]) {
    return philox(counter[0], counter[1], counter[2], counter[3], (uint64_t)key[1] << 32 | key[0]);
}

RngBlock rng_dropout(uint64_t seed, int64_t step, int64_t batch_row, int32_t layer,
                     uint32_t block) {
    uint32_t step_low = (uint32_t)(uint64_t)step;
    uint32_t step_high = (uint32_t)((uint64_t)step >> 32);
    return philox(block, (uint32_t)layer, (uint32_t)(uint64_t)batch_row,
                  step_low ^ PHILOX_W0 * step_high, seed);
}

uint32_t rng_dropout_threshold(float p) {
    if (!(p > 0.0F))
        return 0;
    if (p >= 1.0F)
        return UINT32_MAX;
    return (uint32_t)((double)p * 4294967296.0);
}

/* The middle of the 2^32 equal parts of (0, 1): never 0, never 1. */
static inline double unit_of(uint32_t word) {
    return ((double)word + 0.5) * 0x1p-32;
}

static inline RngBlock init_block(uint64_t seed, uint64_t name_hash, uint64_t block) {
    return philox((uint32_t)block, (uint32_t)(block >> 32), (uint32_t)name_hash,
                  (uint32_t)(name_hash >> 32), seed ^ TAG_INIT);
}

void rng_fill_uniform(uint64_t seed, const char *name, float bound, float *out, size_t n) {
    uint64_t name_hash = hash_text(name);
    for (size_t first = 0; first < n; first += 4) {
        RngBlock block = init_block(seed, name_hash, first / 4);
        for (size_t i = first; i < n && i < first + 4; i++)
            out[i] = (float)((2.0 * unit_of(block.v[i - first]) - 1.0) * (double)bound);
    }
}

/* log, sin and cos of the C library may differ in the last bit between machines, which would give
 * a weight held by two stages two values. These use IEEE basic operations only, so their bits are
 * the same everywhere; the error is a few units of the last place of a double. */

/* Natural logarithm for u in (0, 1]: u = m 2^e with m in [1/sqrt2, sqrt2), and
 * log m = 2 atanh((m-1)/(m+1)). */
static double log_portable(double u) {
    int exponent;
    double m = frexp(u, &exponent);
    if (m < 0.70710678118654752440) {
        m *= 2.0;
        exponent--;
    }
    double s = (m - 1.0) / (m + 1.0);
    double s2 = s * s;
    double sum = 0.0;
    for (int k = 23; k >= 1; k -= 2)
        sum = sum * s2 + 1.0 / k;
    return 2.0 * s * sum + exponent * 0.69314718055994530942;
}

/* sin and cos of 2 pi t for t in [0, 1): Taylor series on an eighth of a turn around the nearest
 * quarter. */
static void sin_cos_turns(double t, double *out_sin, double *out_cos) {
    enum { N_TERMS = 9 };
    static const double sine[N_TERMS] = {1.0,
                                         -1.0 / 6,
                                         1.0 / 120,
                                         -1.0 / 5040,
                                         1.0 / 362880,
                                         -1.0 / 39916800,
                                         1.0 / 6227020800,
                                         -1.0 / 1307674368000,
                                         1.0 / 355687428096000};
    static const double cosine[N_TERMS] = {1.0,
                                           -1.0 / 2,
                                           1.0 / 24,
                                           -1.0 / 720,
                                           1.0 / 40320,
                                           -1.0 / 3628800,
                                           1.0 / 479001600,
                                           -1.0 / 87178291200,
                                           1.0 / 20922789888000};
    int quarter = (int)(4.0 * t + 0.5);
    double x = (t - 0.25 * quarter) * 6.28318530717958647693;
    double x2 = x * x;
    double s = sine[N_TERMS - 1];
    double c = cosine[N_TERMS - 1];
    for (int i = N_TERMS - 2; i >= 0; i--) {
        s = s * x2 + sine[i];
        c = c * x2 + cosine[i];
    }
    s *= x;
    /* A quarter turn on: the sine becomes the cosine, the cosine the negative sine. */
    static const double sign[2] = {1.0, -1.0};
    bool odd = quarter & 1;
    *out_sin = sign[quarter >> 1 & 1] * (odd ? c : s);
    *out_cos = sign[(quarter + 1) >> 1 & 1] * (odd ? s : c);
}

void rng_fill_normal(uint64_t seed, const char *name, float std, float *out, size_t n) {
    uint64_t name_hash = hash_text(name);
    for (size_t first = 0; first < n; first += 4) {
        RngBlock block = init_block(seed, name_hash, first / 4);
        double normal[4];
        for (int i = 0; i < 4; i += 2) {
            double radius = sqrt(-2.0 * log_portable(unit_of(block.v[i])));
            double sine;
            double cosine;
            sin_cos_turns(unit_of(block.v[i + 1]), &sine, &cosine);
            normal[i] = radius * cosine;
            normal[i + 1] = radius * sine;
        }
        for (size_t i = first; i < n && i < first + 4; i++)
            out[i] = (float)(normal[i - first] * (double)std);
    }
}

int64_t rng_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t index) {
    assert(n >= 1 && n <= INT64_C(1) << 40 && index >= 0 && index < n);
    int half_bits = 0;
    while (INT64_C(1) << (2 * half_bits) < n)
        half_bits++;
    uint32_t mask = (UINT32_C(1) << half_bits) - 1;
    uint64_t value = (uint64_t)index;
    do { /* a walk along the cycle of a permutation comes back into [0, n) at the latest at index */
        uint32_t left = (uint32_t)(value >> half_bits);
        uint32_t right = (uint32_t)value & mask;
        for (uint32_t round = 0; round < 4; round++) {
            RngBlock block = philox(right, round, (uint32_t)(uint64_t)epoch,
                                    (uint32_t)((uint64_t)epoch >> 32), seed ^ TAG_ORDER);
            uint32_t next = left ^ (block.v[0] & mask);
            left = right;
            right = next;
        }
        value = (uint64_t)left << half_bits | right;
    } while (value >= (uint64_t)n);
    return (int64_t)value;
}
