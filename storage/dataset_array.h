/* DataArray: a data file's numbers as they lie in memory (mapped, or inflated), with the sample
 * axis in front. Private to the data set readers. */
#ifndef FUNCPIPE_STORAGE_DATASET_ARRAY_H
#define FUNCPIPE_STORAGE_DATASET_ARRAY_H

#include "storage/dataset.h"

/* A plain file, mapped whole, and its descriptor, which tells later whether it was written to. */
typedef struct DataFile {
    void *map; /* NULL: not open */
    size_t bytes;
    int fd;        /* of no meaning where map is NULL */
    DataMark mark; /* as it was opened; stays when the file is closed */
} DataFile;

/* ERR_FORMAT when the file is empty, or is not the one of `expected` (one without bytes fits all).
 */
int dataset_file_open(const char *path, const DataMark *expected, DataFile *out_file);
void dataset_file_done(DataFile *file);
/* ERR_FORMAT when an open file was written to since it was opened. One that another file has taken
 * the name of is still what it was. */
int dataset_file_check(const DataFile *file, const char *path);

typedef struct DataArray {
    DType dtype;
    bool big_endian;
    Shape shape;          /* (samples, ...) */
    int64_t row_elements; /* elements of one sample */
    const uint8_t *data;  /* NULL: only the header was read */
    DataFile file;
    void *owned; /* free: what was inflated */
} DataArray;

void dataset_array_done(DataArray *array);
/* Open the IDX or NPY file `path`; header_only: no more than its form is looked at. */
int dataset_array_open(DataKind kind, const char *path, const DataMark *expected, bool header_only,
                       DataArray *out_array);

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
    DataFile file;
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
