/* Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011, with the published constants and known-answer vectors). Nothing here has
 * state: the same key and counter give the same numbers on every machine, cut and restart. */
#ifndef FUNCPIPE_CORE_RNG_H
#define FUNCPIPE_CORE_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct RngBlock {
    uint32_t v[4];
} RngBlock;

RngBlock rng_philox(const uint32_t counter[4], const uint32_t key[2]);

/* Dropout stream: the block for elements [4*block, 4*block+4) of one sample. Key = seed (low, high
 * 32 bits); counter = (block, layer, row in the global batch, low 32 bits of step ^ 0x9E3779B9 *
 * high 32 bits of step). Element e keeps its value when word e%4 >= p * 2^32. Every device
 * implements exactly this. */
RngBlock rng_dropout(uint64_t seed, int64_t step, int64_t batch_row, int32_t layer, uint32_t block);
/* The threshold for keep probability 1-p: keep when word >= threshold. */
uint32_t rng_dropout_threshold(float p);

/* Initial weights: element i of the parameter named `name` depends on (seed, name, i) only.
 * uniform: U(-bound, bound); normal: N(0, std) by Box-Muller. */
void rng_fill_uniform(uint64_t seed, const char *name, float bound, float *out, size_t n);
void rng_fill_normal(uint64_t seed, const char *name, float std, float *out, size_t n);

/* Keyed permutation of [0, n) for (seed, epoch), 1 <= n <= 2^40: a four-round Feistel network on
 * the least even number of bits that holds n, cycle-walking; no table, O(1) a call. */
int64_t rng_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t index);

#endif
