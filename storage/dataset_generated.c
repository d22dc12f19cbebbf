#include "core/rng.h"
#include "storage/dataset_array.h"

/* What a number is drawn for: the fourth word of the counter. */
enum { DRAW_CLASS, DRAW_NOISE, DRAW_MEAN, DRAW_TOKEN };
enum { TOKEN_FACTOR = 5, TOKEN_STEP = 3 };

static RngBlock draw(uint64_t seed, int64_t sample, int64_t block, uint32_t what) {
    uint64_t index = (uint64_t)sample;
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)index, (uint32_t)(index >> 32),
                           what | (uint32_t)(block >> 32) << 8};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    return rng_philox(counter, key);
}

/* A word scaled to [0, n), 1 <= n <= 2^31. */
static int32_t below(uint32_t word, int64_t n) {
    return (int32_t)((uint64_t)word * (uint64_t)n >> 32);
}

int32_t dataset_generated_class(const DataSpec *spec, int64_t sample) {
    return below(draw(spec->seed, sample, 0, DRAW_CLASS).v[0], spec->classes);
}

/* Integer arithmetic and exact products only: the same bits on every machine. */
void dataset_generated_cluster(const DataSpec *spec, int64_t sample, int64_t n_elements,
                               float *out) {
    int32_t class = dataset_generated_class(spec, sample);
    for (int64_t first = 0; first < n_elements; first += 4) {
        RngBlock mean = draw(0, class, first / 4, DRAW_MEAN);
        RngBlock noise = draw(spec->seed, sample, first / 4, DRAW_NOISE);
        for (int64_t i = first; i < n_elements && i < first + 4; i++) {
            /* mean: uniform in [-1, 1); noise: the sum of two uniform halves, triangular (-1, 1) */
            int32_t centre = (int32_t)(mean.v[i - first] >> 15) - (1 << 16);
            uint32_t word = noise.v[i - first];
            int32_t shift = (int32_t)(word >> 16) + (int32_t)(word & 0xFFFF) - 0xFFFF;
            out[i] = (float)(centre + shift) * 0x1p-16F;
        }
    }
}

void dataset_generated_tokens(const DataSpec *spec, int64_t sample, int64_t context, int shift,
                              int32_t *out) {
    int64_t token = below(draw(spec->seed, sample, 0, DRAW_CLASS).v[0], spec->vocab);
    RngBlock noise = {{0}};
    if (!shift)
        out[0] = (int32_t)token;
    for (int64_t i = 1; i < context + shift; i++) {
        if ((i - 1) % 2 == 0)
            noise = draw(spec->seed, sample, (i - 1) / 2, DRAW_TOKEN);
        const uint32_t *pair = &noise.v[(i - 1) % 2 * 2];
        token = pair[0] >> 28 == 0 ? below(pair[1], spec->vocab)
                                   : (TOKEN_FACTOR * token + TOKEN_STEP) % spec->vocab;
        out[i - shift] = (int32_t)token;
    }
}
