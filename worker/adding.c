#include "worker/adding.h"

#include <math.h>
#include <stdbool.h>

#include "core/reduction.h"

enum { LOOP = 16 }; /* what a compiler turns into vectors */

void adding_floats(float *restrict sum, const float *restrict from, int64_t n) {
    int64_t i = 0;
    for (; i + LOOP <= n; i += LOOP) {
        for (int k = 0; k < LOOP; k++) {
            sum[i + k] += from[i + k];
        }
    }
    for (; i < n; i++) {
        sum[i] += from[i];
    }
}

void adding_halves(float *restrict sum, const uint16_t *restrict from, int64_t n, bool first) {
    for (int64_t i = 0; i < n; i++) {
        float value = reduction_from_bf16(from[i]);
        sum[i] = first ? value : sum[i] + value;
    }
}

void adding_round(uint16_t *restrict to, const float *restrict exact, float *restrict residual,
                  int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float value = exact[i] + residual[i];
        to[i] = reduction_to_bf16(value);
        float lost = value - reduction_from_bf16(to[i]);
        residual[i] = isfinite(lost) ? lost : 0.0F;
    }
}
