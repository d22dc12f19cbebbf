#include "tests/support/sum_cases.h"

#include <stdlib.h>
#include <string.h>

#include "storage/key.h"

/* Element i of contribution `index`: numbers of very different sizes, zeros among them. */
static float element(int index, size_t i) {
    uint64_t at =
        (uint64_t)i * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)index * 0xD1B54A32D192ED03U;
    at = (at ^ at >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    at ^= at >> 32;
    uint32_t bits = ((uint32_t)at & 0x807FFFFFU) | (uint32_t)(107 + (at >> 32) % 41) << 23;
    float value = i % 61 == 0 ? -0.0F : 0.0F;
    if (i % 61 > 1)
        memcpy(&value, &bits, sizeof value);
    return value;
}

void sum_case_form(size_t n_elements, BlobTensor out_tensors[2]) {
    out_tensors[0] = (BlobTensor){DTYPE_F32, shape_1d((int64_t)(n_elements / 3))};
    out_tensors[1] = (BlobTensor){DTYPE_F32, shape_2d(1, (int64_t)(n_elements - n_elements / 3))};
}

SumCase sum_case_blob(const char *sealed_under, int first, int end, size_t n_elements) {
    BlobTensor tensors[2];
    size_t offsets[2];
    size_t at = 0;
    sum_case_form(n_elements, tensors);
    SumCase out = {NULL, (size_t)blob_layout(tensors, 2, offsets)};
    out.data = aligned_alloc(BLOB_ALIGN, (out.bytes + BLOB_ALIGN) / BLOB_ALIGN * BLOB_ALIGN);
    if (!out.data)
        abort();
    for (int t = 0; t < 2; t++) {
        float *to = (float *)(void *)(out.data + offsets[t]);
        int64_t n = shape_elements(&tensors[t].shape);
        for (int64_t i = 0; i < n; i++, at++) {
            to[i] = element(first, at);
            for (int c = first + 1; c < end; c++)
                to[i] = to[i] + element(c, at);
        }
    }
    blob_seal(out.data, sealed_under, tensors, 2);
    return out;
}

SumCase sum_case_part(const char *key, int index, size_t n_elements) {
    return sum_case_blob(key_part(key, index).text, index, index + 1, n_elements);
}

SumCase sum_case_sum(const char *key, int n, size_t n_elements) {
    return sum_case_blob(key, 0, n, n_elements);
}

bool sum_case_next_order(int *order, int n) {
    int i = n - 2;
    while (i >= 0 && order[i] > order[i + 1])
        i--;
    if (i < 0)
        return false;
    int j = n - 1;
    while (order[j] < order[i])
        j--;
    int kept = order[i];
    order[i] = order[j];
    order[j] = kept;
    for (int a = i + 1, b = n - 1; a < b; a++, b--) {
        kept = order[a];
        order[a] = order[b];
        order[b] = kept;
    }
    return true;
}
