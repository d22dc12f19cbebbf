/* Data sets: samples by index, the input as the model's dtype and shape, the target as I32.
 * Readers: IDX (plain or gzip), NPY (v1-3), raw token files, and a generated set. A reader checks
 * the whole file's form at open (named errors with what was found) and each sample's values when it
 * is read. Only the asked half is loaded (input or target): a stage needs at most one of them. */
#ifndef FUNCPIPE_STORAGE_DATASET_H
#define FUNCPIPE_STORAGE_DATASET_H

#include "core/order.h"

typedef struct Dataset Dataset;

/* `spec` is copied. ERR_NOT_FOUND, ERR_FORMAT, ERR_LIMIT name the file and what was expected; a
 * file other than that of its mark is refused. */
int dataset_open(const DataSpec *spec, bool want_input, bool want_target, Dataset **out_dataset);
void dataset_close(Dataset *dataset);
/* The marks of the files that were opened; without bytes where there is none. */
void dataset_marks(const Dataset *dataset, DataMark out_marks[DATA_MAX_FILES]);
/* ERR_FORMAT, naming the file, when one that is read from was written to since it was opened. A
 * call takes about a microsecond. */
int dataset_check_files(const Dataset *dataset);
int64_t dataset_samples(const Dataset *dataset);
/* dtype and per-sample shape of input and target (target: I32). */
int dataset_input_form(const Dataset *dataset, DType *out_dtype, Shape *out_shape);
int dataset_target_form(const Dataset *dataset, Shape *out_shape);
/* Fill one sample: F32 input after normalisation, or I32 token ids (0 <= id < spec.vocab, else
 * ERR_FORMAT naming file, sample and id). */
int dataset_read_input(const Dataset *dataset, int64_t sample, void *out);
/* Targets in [0, spec.classes), or spec.ignore_index where that is set; else ERR_FORMAT naming it.
 */
int dataset_read_target(const Dataset *dataset, int64_t sample, int32_t *out);

/* NPY header, public for its tests: shape, dtype, big-endian flag, offset of the data.
 * fortran_order True is read right for 0-D and 1-D, and refused for more. */
typedef struct NpyHeader {
    DType dtype;
    bool big_endian;
    Shape shape;
    size_t data_offset;
} NpyHeader;
int dataset_parse_npy(const char *what, const void *data, size_t bytes, NpyHeader *out_header);
/* IDX header: magic 00 00 TYPE NDIMS, big-endian u32 dims. */
typedef struct IdxHeader {
    DType dtype;
    Shape shape;
    size_t data_offset;
} IdxHeader;
int dataset_parse_idx(const char *what, const void *data, size_t bytes, IdxHeader *out_header);

#endif
