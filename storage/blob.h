/* Blob: the wire form of one object: a header, then tensors in plain layout, each at a multiple of
 * 64 bytes. A blob is laid out in place in a staging buffer, so nothing is copied to send it:
 *
 *     offset 0   magic "FPB1"  u16 version (1)  u16 n_tensors  u64 total bytes
 *                u64 XXH3 of the key it belongs to    u64 XXH3 of all bytes from offset 32 on
 *            32  n_tensors descriptors of 72 bytes: u8 dtype, u8 n_dims, 6 zero bytes, i64 dims[6],
 *                u64 offset, u64 bytes
 *         then   zero padding to 64, tensors in order, zero padding between them
 *
 * All little-endian. A reader knows what it expects; anything else is ERR_CORRUPT naming key and
 * reason. */
#ifndef FUNCPIPE_STORAGE_BLOB_H
#define FUNCPIPE_STORAGE_BLOB_H

#include "core/dtype.h"

enum { BLOB_MAX_TENSORS = 4096, BLOB_ALIGN = 64 };

typedef struct BlobTensor {
    DType dtype;
    Shape shape; /* whole shape, the rows of the micro-batch in front */
} BlobTensor;

/* Total bytes of a blob of these tensors; offsets[i] = where tensor i lies (when not NULL).
 * ERR_LIMIT (negative) on absurd sizes. */
int64_t blob_layout(const BlobTensor *tensors, int n_tensors, size_t *offsets);
/* Write header, descriptors, padding and checksum around the tensors that lie in `blob` already.
 * Returns total bytes. */
int64_t blob_seal(void *blob, const char *key, const BlobTensor *tensors, int n_tensors);
/* Check everything: magic, version, size, key, checksum, and that it holds exactly `expected`. */
int blob_check(const void *blob, size_t bytes, const char *key, const BlobTensor *expected,
               int n_expected);
/* Check a blob of unknown content (key NULL: not checked) and list its tensors (at most max_n). */
int blob_parse(const void *blob, size_t bytes, const char *key, BlobTensor *tensors,
               size_t *offsets, int max_n, int *out_n);
/* Check a blob of unknown shapes whose tensors are all of one element type. *out_begin: where the
 * first tensor lies (the end when there is none); from there to the end are only elements, and
 * zeros between tensors. What lies between offset 32 and it describes them: equal bytes there mean
 * equal tensors. */
int blob_check_all(const void *blob, size_t bytes, const char *key, DType dtype, int *out_n,
                   size_t *out_begin);
/* Seal anew, under another key, a checked blob whose elements were changed in place. */
void blob_reseal(void *blob, size_t bytes, const char *key);

#endif
