#include <stdlib.h>

#include "storage/dataset_array.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The header alone, then the whole file: what is accepted can be read to its last number. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    IdxHeader header;
    DataArray array;
    if (dataset_parse_idx("fuzz", data, bytes, &header) >= 0 && header.data_offset > bytes)
        abort();
    if (dataset_idx_load("fuzz", data, bytes, false, &array) < 0)
        return 0;
    size_t row = (size_t)array.row_elements;
    float *floats = malloc(row * sizeof *floats);
    int32_t *ints = malloc(row * sizeof *ints);
    if (!floats || !ints)
        abort();
    for (int64_t i = 0; i < array.shape.dims[0]; i++) {
        dataset_array_read_f32(&array, "fuzz", i, floats);
        dataset_array_read_i32(&array, "fuzz", i, ints);
    }
    free(floats);
    free(ints);
    dataset_array_done(&array);
    return 0;
}
