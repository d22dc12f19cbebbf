#include "storage/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/file.h"
#include "core/text.h"

enum { DATA_ALIGN = 64, PREFIX_BYTES = 8 };
#define MAX_HEADER_BYTES ((size_t)100000000)
#define MAX_DATA_BYTES (UINT64_C(1) << 53)

/* ---- the header ---- */

static int add_quoted(Buf *header, const char *text) {
    TRY(buf_text(header, "\""));
    for (const char *at = text; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\')
            TRY(buf_printf(header, "\\%c", c));
        else if (c < 0x20)
            TRY(buf_printf(header, "\\u%04x", c));
        else
            TRY(buf_add(header, at, 1));
    }
    return buf_text(header, "\"");
}

static int order_tensors(const void *left, const void *right) {
    const SafetensorsTensor *const *a = left;
    const SafetensorsTensor *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

static int order_metadata(const void *left, const void *right) {
    const SafetensorsMeta *const *a = left;
    const SafetensorsMeta *const *b = right;
    return strcmp((*a)->key, (*b)->key);
}

static int add_metadata(Buf *header, const char *path, const SafetensorsMeta *metadata, int n) {
    if (n <= 0)
        return 0;
    const SafetensorsMeta **sorted = malloc((size_t)n * sizeof(SafetensorsMeta *));
    if (!sorted)
        return err_set(ERR_MEMORY, "the metadata of '%s'", path);
    int rc = 0;
    for (int i = 0; i < n; i++)
        sorted[i] = &metadata[i];
    qsort(sorted, (size_t)n, sizeof(SafetensorsMeta *), order_metadata);
    TRY_DONE(buf_text(header, "\"__metadata__\":{"));
    for (int i = 0; i < n; i++) {
        const SafetensorsMeta *meta = sorted[i];
        if (i && strcmp(meta->key, sorted[i - 1]->key) == 0)
            TRY_DONE(err_set(ERR_ARGUMENT, "writing '%s': duplicate metadata key '%s'", path,
                             meta->key));
        if (!text_is_utf8(meta->key, strlen(meta->key)) ||
            !text_is_utf8(meta->value, strlen(meta->value)))
            TRY_DONE(
                err_set(ERR_ARGUMENT, "writing '%s': metadata '%s' is not UTF-8", path, meta->key));
        TRY_DONE(buf_text(header, i ? "," : ""));
        TRY_DONE(add_quoted(header, meta->key));
        TRY_DONE(buf_text(header, ":"));
        TRY_DONE(add_quoted(header, meta->value));
    }
    rc = buf_text(header, "}");
done:
    free(sorted);
    return rc;
}

/* Bytes of a tensor after its name and form are checked; negative: an error. */
static int64_t check_tensor(const char *path, const SafetensorsTensor *tensor) {
    size_t length = strlen(tensor->name);
    if (length >= SAFETENSORS_NAME_BYTES)
        return err_set(ERR_LIMIT,
                       "writing '%s': the tensor name '%.80s...' is longer than %d bytes", path,
                       tensor->name, SAFETENSORS_NAME_BYTES - 1);
    if (strcmp(tensor->name, "__metadata__") == 0 || !text_is_utf8(tensor->name, length))
        return err_set(ERR_ARGUMENT, "writing '%s': '%s' cannot be a tensor's name", path,
                       tensor->name);
    int64_t elements = shape_elements(&tensor->shape);
    if (elements < 0)
        return err_context((int)elements, "writing '%s': tensor '%s'", path, tensor->name);
    if (dtype_bytes(tensor->dtype) == 0)
        return err_set(ERR_ARGUMENT, "writing '%s': tensor '%s' has no element type", path,
                       tensor->name);
    return elements * (int64_t)dtype_bytes(tensor->dtype);
}

static int add_tensor(Buf *header, const SafetensorsTensor *tensor, uint64_t begin, uint64_t end) {
    TRY(add_quoted(header, tensor->name));
    TRY(buf_printf(header, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(tensor->dtype)));
    for (int i = 0; i < tensor->shape.n_dims; i++)
        TRY(buf_printf(header, "%s%lld", i ? "," : "", (long long)tensor->shape.dims[i]));
    return buf_printf(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                      (unsigned long long)end);
}

/* The prefix and the padded header of tensors in name order. */
static int build_header(Buf *header, const char *path, const SafetensorsTensor *const *sorted,
                        int n_tensors, const SafetensorsMeta *metadata, int n_metadata) {
    uint64_t length = 0;
    TRY(buf_add(header, &length, PREFIX_BYTES));
    TRY(buf_text(header, "{"));
    TRY(add_metadata(header, path, metadata, n_metadata));
    uint64_t offset = 0;
    for (int i = 0; i < n_tensors; i++) {
        if (i && strcmp(sorted[i]->name, sorted[i - 1]->name) == 0)
            return err_set(ERR_ARGUMENT, "writing '%s': duplicate tensor '%s'", path,
                           sorted[i]->name);
        int64_t bytes = check_tensor(path, sorted[i]);
        if (bytes < 0)
            return (int)bytes;
        if ((uint64_t)bytes > MAX_DATA_BYTES - offset)
            return err_set(ERR_LIMIT, "writing '%s': more than 2^53 bytes of tensors", path);
        TRY(buf_text(header, i || n_metadata > 0 ? "," : ""));
        TRY(add_tensor(header, sorted[i], offset, offset + (uint64_t)bytes));
        offset += (uint64_t)bytes;
    }
    TRY(buf_text(header, "}"));
    while (header->bytes % DATA_ALIGN != 0)
        TRY(buf_text(header, " "));
    length = header->bytes - PREFIX_BYTES;
    memcpy(header->data, &length, PREFIX_BYTES);
    return 0;
}

/* ---- the file ---- */

static int write_file(FileWriter *file, const char *path, const Buf *header,
                      const SafetensorsTensor *const *sorted, int n_tensors) {
    TRY(file_create(file, path));
    TRY(file_add(file, header->data, header->bytes));
    for (int i = 0; i < n_tensors; i++) {
        const SafetensorsTensor *tensor = sorted[i];
        size_t elements = (size_t)shape_elements(&tensor->shape);
        TRY(file_add(file, tensor->data, elements * dtype_bytes(tensor->dtype)));
    }
    return file_commit(file);
}

int safetensors_write(const char *path, const SafetensorsTensor *tensors, int n_tensors,
                      const SafetensorsMeta *metadata, int n_metadata,
                      SafetensorsWritten *out_written) {
    size_t n = n_tensors > 0 ? (size_t)n_tensors : 0;
    const SafetensorsTensor **sorted = malloc((n + 1) * sizeof(SafetensorsTensor *));
    if (!sorted)
        return err_set(ERR_MEMORY, "the tensor list of '%s'", path);
    for (size_t i = 0; i < n; i++)
        sorted[i] = &tensors[i];
    qsort(sorted, n, sizeof(SafetensorsTensor *), order_tensors);
    Buf header;
    buf_init(&header, MAX_HEADER_BYTES);
    int rc = build_header(&header, path, sorted, n_tensors, metadata, n_metadata);
    if (rc >= 0) {
        FileWriter file;
        rc = write_file(&file, path, &header, sorted, n_tensors);
        if (rc >= 0 && out_written)
            *out_written = (SafetensorsWritten){file.bytes, hash_value(file.hash)};
        file_done(&file);
    }
    buf_done(&header);
    free(sorted);
    return rc;
}
