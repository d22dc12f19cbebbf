/* Any bytes as a blob: no crash, what is accepted is exactly what the writer makes of the same
 * tensors, and all readers accept the same. An input whose checksum is wrong is tried again with
 * the right one, so that what lies behind the checksum is reached. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "storage/blob.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Of one element type, as contributions to sums are. */
static void check_all(const uint8_t *blob, size_t bytes, bool fine, const BlobTensor *tensors,
                      const size_t *offsets, int n) {
    size_t begin = 0;
    int n_all = -1;
    for (int i = 0; i < n; i++)
        fine = fine && tensors[i].dtype == DTYPE_F32;
    if ((blob_check_all(blob, bytes, NULL, DTYPE_F32, &n_all, &begin) >= 0) != fine)
        abort();
    if (fine && (n_all != n || begin != (n > 0 ? offsets[0] : bytes)))
        abort();
}

static void check_canonical(const uint8_t *blob, size_t bytes) {
    static BlobTensor tensors[BLOB_MAX_TENSORS];
    static size_t offsets[BLOB_MAX_TENSORS];
    int n = 0;
    bool fine = blob_parse(blob, bytes, NULL, tensors, offsets, BLOB_MAX_TENSORS, &n) >= 0;
    check_all(blob, bytes, fine, tensors, offsets, n);
    if (!fine)
        return;
    if (blob_check(blob, bytes, NULL, tensors, n) < 0 ||
        blob_layout(tensors, n, NULL) != (int64_t)bytes)
        abort();
    uint8_t *again = malloc(bytes);
    if (!again)
        return;
    memcpy(again, blob, bytes);
    if (blob_seal(again, "fuzz", tensors, n) != (int64_t)bytes)
        abort();
    if (memcmp(again, blob, 16) != 0 || memcmp(again + 24, blob + 24, bytes - 24) != 0)
        abort();
    if (blob_check(again, bytes, "fuzz", tensors, n) < 0)
        abort();
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    check_canonical(data, bytes);
    if (bytes < 64 || bytes > 1 << 20)
        return 0;
    uint8_t *fixed = malloc(bytes);
    if (!fixed)
        return 0;
    memcpy(fixed, data, bytes);
    memcpy(fixed, "FPB1\1", 5);
    fixed[5] = 0;
    for (int i = 0; i < 8; i++)
        fixed[8 + i] = (uint8_t)((uint64_t)bytes >> 8 * i);
    uint64_t hash = hash_bytes(fixed + 32, bytes - 32);
    for (int i = 0; i < 8; i++)
        fixed[24 + i] = (uint8_t)(hash >> 8 * i);
    check_canonical(fixed, bytes);
    free(fixed);
    return 0;
}
