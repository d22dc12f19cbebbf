/* DataArray: a data file's numbers as they lie in memory (mapped, or inflated), with the sample
 * axis in front. Private to the data set readers. */
#ifndef FUNCPIPE_STORAGE_DATASET_ARRAY_H
#define FUNCPIPE_STORAGE_DATASET_ARRAY_H

#include "storage/dataset.h"

typedef struct DataArray {
    DType dtype;
    bool big_endian;
    Shape shape;          /* (samples, ...) */
    int64_t row_elements; /* elements of one sample */
    const uint8_t *data;  /* NULL: only the header was read */
    void *map;            /* munmap: the file */
    size_t map_bytes;
    void *owned; /* free: what was inflated */
} DataArray;

/* Map a plain file that is not empty. */
int dataset_array_map(const char *path, void **out_map, size_t *out_bytes);
void dataset_array_done(DataArray *array);
/* Open the IDX or NPY file `path`; header_only: no more than its form is looked at. */
int dataset_array_open(DataKind kind, const char *path, bool header_only, DataArray *out_array);

/* The form of a whole file in memory: data borrows from `file`, or owns what was inflated. */
int dataset_idx_load(const char *what, const void *file, size_t bytes, bool header_only,
                     DataArray *out_array);
int dataset_npy_load(const char *what, const void *file, size_t bytes, bool header_only,
                     DataArray *out_array);
/* Common end of the two: there is a sample axis, and `body_bytes` are what the shape needs. */
int dataset_array_check(const char *what, DataArray *array, uint64_t body_bytes);

/* One sample as F32, not normalised, and as whole numbers of 32 bits. ERR_FORMAT names file, sample
 * and position of a number that is not finite, not whole or too large. */
int dataset_array_read_f32(const DataArray *array, const char *path, int64_t sample, float *out);
int dataset_array_read_i32(const DataArray *array, const char *path, int64_t sample, int32_t *out);

/* ---- token files (dataset_tokens.c): targets are the ids one later (`shift` 1) ---- */
typedef struct DataTokens {
    DType dtype;
    int64_t n_tokens;
    const uint8_t *data;
    void *map;
    size_t map_bytes;
} DataTokens;
int dataset_tokens_open(const DataSpec *spec, DataTokens *out_tokens);
void dataset_tokens_done(DataTokens *tokens);
int dataset_tokens_read(const DataTokens *tokens, const DataSpec *spec, int64_t sample, int shift,
                        int32_t *out);

/* ---- the generated set (dataset_generated.c) ---- */

/* Clusters: the class of a sample is random; element e of a sample is the class's mean plus noise.
 * Means depend on (class, element) only, so that sets of different seeds are samples of one
 * distribution, as a training and an evaluation set should be. */
int32_t dataset_generated_class(const DataSpec *spec, int64_t sample);
void dataset_generated_cluster(const DataSpec *spec, int64_t sample, int64_t n_elements,
                               float *out);
/* Tokens: the first is random; the next is (5 t + 3) mod vocab, or random once in 16. */
void dataset_generated_tokens(const DataSpec *spec, int64_t sample, int64_t context, int shift,
                              int32_t *out);

#endif
