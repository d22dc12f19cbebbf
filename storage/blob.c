#include "storage/blob.h"

#include <string.h>

#include "core/err.h"
#include "core/hash.h"
#include "storage/relay.h"

/* Offsets of the header's fields, and of a descriptor's. */
enum {
    AT_VERSION = 4,
    AT_N_TENSORS = 6,
    AT_TOTAL = 8,
    AT_KEY = 16,
    AT_CHECKSUM = 24,
    HEADER_BYTES = 32,
    AT_N_DIMS = 1,
    AT_ZERO = 2,
    AT_DIMS = 8,
    AT_OFFSET = 56,
    AT_BYTES = 64,
    DESCRIPTOR_BYTES = 72,
    VERSION = 1
};
static const char magic[4] = {'F', 'P', 'B', '1'};

static uint64_t load(const unsigned char *at, int n_bytes) {
    uint64_t value = 0;
    for (int i = n_bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

static void store(unsigned char *at, int n_bytes, uint64_t value) {
    for (int i = 0; i < n_bytes; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

static size_t aligned(size_t bytes) {
    return (bytes + BLOB_ALIGN - 1) / BLOB_ALIGN * BLOB_ALIGN;
}

static size_t data_begin(int n_tensors) {
    return aligned(HEADER_BYTES + (size_t)n_tensors * DESCRIPTOR_BYTES);
}

static int64_t tensor_bytes(const BlobTensor *tensor) {
    size_t element = dtype_bytes(tensor->dtype);
    if (element == 0)
        return err_set(ERR_ARGUMENT, "element type %d is unknown", (int)tensor->dtype);
    int64_t elements = shape_elements(&tensor->shape);
    if (elements < 0)
        return elements;
    if (elements > (int64_t)(RELAY_MAX_OBJECT_BYTES / element))
        return err_set(ERR_LIMIT, "%lld elements of %zu bytes are more than %zu bytes",
                       (long long)elements, element, RELAY_MAX_OBJECT_BYTES);
    return elements * (int64_t)element;
}

/* Place a tensor at or after *at, which becomes its end. Returns its offset. */
static int64_t place_tensor(const BlobTensor *tensor, size_t *at, size_t *out_bytes) {
    int64_t bytes = tensor_bytes(tensor);
    if (bytes < 0)
        return bytes;
    size_t offset = aligned(*at);
    if (offset + (size_t)bytes > RELAY_MAX_OBJECT_BYTES)
        return err_set(ERR_LIMIT, "the tensors are more than %zu bytes", RELAY_MAX_OBJECT_BYTES);
    *at = offset + (size_t)bytes;
    *out_bytes = (size_t)bytes;
    return (int64_t)offset;
}

int64_t blob_layout(const BlobTensor *tensors, int n_tensors, size_t *offsets) {
    if (n_tensors < 0 || n_tensors > BLOB_MAX_TENSORS)
        return err_set(ERR_LIMIT, "a blob of %d tensors (at most %d)", n_tensors, BLOB_MAX_TENSORS);
    size_t at = data_begin(n_tensors);
    for (int i = 0; i < n_tensors; i++) {
        size_t bytes = 0;
        int64_t offset = place_tensor(&tensors[i], &at, &bytes);
        if (offset < 0)
            return err_context((int)offset, "tensor %d of a blob", i);
        if (offsets)
            offsets[i] = (size_t)offset;
    }
    return (int64_t)at;
}

/* ---- writing ---- */

static void store_descriptor(unsigned char *at, const BlobTensor *tensor, size_t offset,
                             size_t bytes) {
    memset(at, 0, DESCRIPTOR_BYTES);
    at[0] = (unsigned char)tensor->dtype;
    at[AT_N_DIMS] = (unsigned char)tensor->shape.n_dims;
    for (int i = 0; i < tensor->shape.n_dims; i++)
        store(at + AT_DIMS + 8 * i, 8, (uint64_t)tensor->shape.dims[i]);
    store(at + AT_OFFSET, 8, offset);
    store(at + AT_BYTES, 8, bytes);
}

int64_t blob_seal(void *blob, const char *key, const BlobTensor *tensors, int n_tensors) {
    unsigned char *out = blob;
    int64_t total = blob_layout(tensors, n_tensors, NULL);
    if (total < 0)
        return total;
    size_t end = HEADER_BYTES + (size_t)n_tensors * DESCRIPTOR_BYTES;
    for (int i = 0; i < n_tensors; i++) {
        size_t before = end;
        size_t bytes = 0;
        if (i == 0)
            end = data_begin(n_tensors);
        size_t offset = (size_t)place_tensor(&tensors[i], &end, &bytes);
        memset(out + before, 0, offset - before);
        store_descriptor(out + HEADER_BYTES + (size_t)i * DESCRIPTOR_BYTES, &tensors[i], offset,
                         bytes);
    }
    if ((size_t)total > end)
        memset(out + end, 0, (size_t)total - end);
    memcpy(out, magic, sizeof magic);
    store(out + AT_VERSION, 2, VERSION);
    store(out + AT_N_TENSORS, 2, (uint64_t)n_tensors);
    store(out + AT_TOTAL, 8, (uint64_t)total);
    store(out + AT_KEY, 8, hash_text(key));
    store(out + AT_CHECKSUM, 8, hash_bytes(out + HEADER_BYTES, (size_t)total - HEADER_BYTES));
    return total;
}

void blob_reseal(void *blob, size_t bytes, const char *key) {
    unsigned char *out = blob;
    store(out + AT_KEY, 8, hash_text(key));
    store(out + AT_CHECKSUM, 8, hash_bytes(out + HEADER_BYTES, bytes - HEADER_BYTES));
}

/* ---- reading ---- */

static int check_header(const unsigned char *in, size_t bytes, const char *key, int *out_n) {
    const char *name = key ? key : "(no key)";
    if (bytes < HEADER_BYTES)
        return err_set(ERR_CORRUPT, "blob '%s': %zu bytes are less than a header", name, bytes);
    if (memcmp(in, magic, sizeof magic) != 0)
        return err_set(ERR_CORRUPT, "blob '%s': it begins with %02x %02x %02x %02x, not with FPB1",
                       name, in[0], in[1], in[2], in[3]);
    unsigned version = (unsigned)load(in + AT_VERSION, 2);
    if (version != VERSION)
        return err_set(ERR_CORRUPT, "blob '%s': version %u, expected %d", name, version, VERSION);
    uint64_t total = load(in + AT_TOTAL, 8);
    if (total != bytes)
        return err_set(ERR_CORRUPT, "blob '%s': %zu bytes, its header says %llu", name, bytes,
                       (unsigned long long)total);
    int n = (int)load(in + AT_N_TENSORS, 2);
    if (n > BLOB_MAX_TENSORS || data_begin(n) > bytes)
        return err_set(ERR_CORRUPT, "blob '%s': %d tensors do not fit %zu bytes", name, n, bytes);
    uint64_t hash = load(in + AT_KEY, 8);
    if (key && hash != hash_text(key))
        return err_set(ERR_CORRUPT, "blob '%s': it was made for another key (hash %016llx)", name,
                       (unsigned long long)hash);
    uint64_t checksum = hash_bytes(in + HEADER_BYTES, bytes - HEADER_BYTES);
    uint64_t expected = load(in + AT_CHECKSUM, 8);
    if (checksum != expected)
        return err_set(ERR_CORRUPT, "blob '%s': checksum %016llx, expected %016llx", name,
                       (unsigned long long)checksum, (unsigned long long)expected);
    *out_n = n;
    return 0;
}

static bool all_zero(const unsigned char *data, size_t bytes) {
    unsigned char any = 0;
    for (size_t i = 0; i < bytes; i++)
        any |= data[i];
    return any == 0;
}

static int load_descriptor(const unsigned char *in, const char *key, int index,
                           BlobTensor *out_tensor) {
    const unsigned char *at = in + HEADER_BYTES + (size_t)index * DESCRIPTOR_BYTES;
    int n_dims = at[AT_N_DIMS];
    if (dtype_bytes((DType)at[0]) == 0)
        return err_set(ERR_CORRUPT, "blob '%s': tensor %d has the unknown element type %d", key,
                       index, at[0]);
    if (n_dims > SHAPE_MAX_DIMS)
        return err_set(ERR_CORRUPT, "blob '%s': tensor %d has %d dims", key, index, n_dims);
    if (!all_zero(at + AT_ZERO, AT_DIMS - AT_ZERO) ||
        !all_zero(at + AT_DIMS + 8 * n_dims, 8 * (size_t)(SHAPE_MAX_DIMS - n_dims)))
        return err_set(ERR_CORRUPT, "blob '%s': tensor %d: reserved bytes are not zero", key,
                       index);
    *out_tensor = (BlobTensor){.dtype = (DType)at[0], .shape = {.n_dims = n_dims}};
    for (int i = 0; i < n_dims; i++)
        out_tensor->shape.dims[i] = (int64_t)load(at + AT_DIMS + 8 * i, 8);
    return 0;
}

/* Check tensor `index`, which must lie next after *end, and move *end behind it. */
static int check_tensor(const unsigned char *in, const char *key, int index, int n_tensors,
                        size_t *end, BlobTensor *out_tensor, size_t *out_offset) {
    const unsigned char *at = in + HEADER_BYTES + (size_t)index * DESCRIPTOR_BYTES;
    BlobTensor tensor;
    TRY(load_descriptor(in, key, index, &tensor));
    size_t before = *end;
    size_t bytes = 0;
    if (index == 0)
        *end = data_begin(n_tensors);
    int64_t offset = place_tensor(&tensor, end, &bytes);
    if (offset < 0)
        return err_context(ERR_CORRUPT, "blob '%s': tensor %d", key, index);
    if (load(at + AT_OFFSET, 8) != (uint64_t)offset || load(at + AT_BYTES, 8) != bytes)
        return err_set(ERR_CORRUPT,
                       "blob '%s': tensor %d lies at %llu with %llu bytes, expected %lld and %zu",
                       key, index, (unsigned long long)load(at + AT_OFFSET, 8),
                       (unsigned long long)load(at + AT_BYTES, 8), (long long)offset, bytes);
    uint64_t total = load(in + AT_TOTAL, 8);
    if (*end > total)
        return err_set(ERR_CORRUPT, "blob '%s': tensor %d ends at %zu of %llu bytes", key, index,
                       *end, (unsigned long long)total);
    if (!all_zero(in + before, (size_t)offset - before))
        return err_set(ERR_CORRUPT, "blob '%s': padding before tensor %d is not zero", key, index);
    *out_tensor = tensor;
    *out_offset = (size_t)offset;
    return 0;
}

/* Nothing but the padding of an empty blob may follow the last tensor. */
static int check_end(const unsigned char *in, size_t bytes, const char *key, int n_tensors,
                     size_t end) {
    size_t expected = n_tensors ? end : data_begin(0);
    if (bytes != expected || !all_zero(in + end, bytes - end))
        return err_set(ERR_CORRUPT, "blob '%s': %zu bytes, its tensors end at %zu", key, bytes,
                       expected);
    return 0;
}

static int differs(const char *key, int index, const BlobTensor *got, const BlobTensor *expected) {
    char got_shape[160];
    char expected_shape[160];
    return err_set(ERR_CORRUPT, "blob '%s': tensor %d is %s %s, expected %s %s", key, index,
                   dtype_name(got->dtype), shape_format(&got->shape, got_shape, sizeof got_shape),
                   dtype_name(expected->dtype),
                   shape_format(&expected->shape, expected_shape, sizeof expected_shape));
}

int blob_check(const void *blob, size_t bytes, const char *key, const BlobTensor *expected,
               int n_expected) {
    const unsigned char *in = blob;
    const char *name = key ? key : "(no key)";
    int n = 0;
    TRY(check_header(in, bytes, key, &n));
    if (n != n_expected)
        return err_set(ERR_CORRUPT, "blob '%s': %d tensors, expected %d", name, n, n_expected);
    size_t end = HEADER_BYTES + (size_t)n * DESCRIPTOR_BYTES;
    for (int i = 0; i < n; i++) {
        BlobTensor tensor;
        size_t offset = 0;
        TRY(check_tensor(in, name, i, n, &end, &tensor, &offset));
        if (tensor.dtype != expected[i].dtype || !shape_equal(&tensor.shape, &expected[i].shape))
            return differs(name, i, &tensor, &expected[i]);
    }
    return check_end(in, bytes, name, n, end);
}

int blob_parse(const void *blob, size_t bytes, const char *key, BlobTensor *tensors,
               size_t *offsets, int max_n, int *out_n) {
    const unsigned char *in = blob;
    const char *name = key ? key : "(no key)";
    int n = 0;
    TRY(check_header(in, bytes, key, &n));
    if (n > max_n)
        return err_set(ERR_LIMIT, "blob '%s': %d tensors, room for %d", name, n, max_n);
    size_t end = HEADER_BYTES + (size_t)n * DESCRIPTOR_BYTES;
    for (int i = 0; i < n; i++) {
        size_t offset = 0;
        TRY(check_tensor(in, name, i, n, &end, &tensors[i], &offset));
        if (offsets)
            offsets[i] = offset;
    }
    TRY(check_end(in, bytes, name, n, end));
    *out_n = n;
    return 0;
}

int blob_check_all(const void *blob, size_t bytes, const char *key, DType dtype, int *out_n,
                   size_t *out_begin) {
    const unsigned char *in = blob;
    const char *name = key ? key : "(no key)";
    int n = 0;
    TRY(check_header(in, bytes, key, &n));
    size_t begin = bytes;
    size_t end = HEADER_BYTES + (size_t)n * DESCRIPTOR_BYTES;
    for (int i = 0; i < n; i++) {
        BlobTensor tensor;
        size_t offset = 0;
        TRY(check_tensor(in, name, i, n, &end, &tensor, &offset));
        if (tensor.dtype != dtype)
            return err_set(ERR_CORRUPT, "blob '%s': tensor %d is %s, expected %s", name, i,
                           dtype_name(tensor.dtype), dtype_name(dtype));
        begin = i == 0 ? offset : begin;
    }
    TRY(check_end(in, bytes, name, n, end));
    *out_n = n;
    *out_begin = begin;
    return 0;
}
