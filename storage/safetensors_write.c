#include "storage/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/err.h"
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

static int write_error(const char *doing, const char *path) {
    int errnum = errno;
    bool full = errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG;
    return err_errno(full ? ERR_FULL : ERR_IO, errnum, "%s '%s'", doing, path);
}

static int write_all(int fd, const char *path, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = write(fd, from, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return write_error("writing", path);
        from += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int write_parts(int fd, const char *path, const Buf *header,
                       const SafetensorsTensor *const *sorted, int n_tensors) {
    TRY(write_all(fd, path, header->data, header->bytes));
    for (int i = 0; i < n_tensors; i++) {
        const SafetensorsTensor *tensor = sorted[i];
        size_t elements = (size_t)shape_elements(&tensor->shape);
        TRY(write_all(fd, path, tensor->data, elements * dtype_bytes(tensor->dtype)));
    }
    if (fsync(fd) < 0)
        return write_error("syncing", path);
    return 0;
}

/* A write beyond RLIMIT_FSIZE raises SIGXFSZ, which would end the process. It is kept from this
 * thread during the write, so that only EFBIG is left of it. */
static int write_guarded(int fd, const char *path, const Buf *header,
                         const SafetensorsTensor *const *sorted, int n_tensors) {
    sigset_t signals;
    sigset_t before;
    sigemptyset(&signals);
    sigaddset(&signals, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    int rc = write_parts(fd, path, header, sorted, n_tensors);
    if (!sigismember(&before, SIGXFSZ)) {
        struct timespec at_once = {0};
        while (sigtimedwait(&signals, NULL, &at_once) == SIGXFSZ) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static int sync_folder(const char *path, size_t folder_length) {
    char folder[PATH_MAX];
    memcpy(folder, path, folder_length);
    folder[folder_length] = '\0';
    int fd = open(folder_length ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return write_error("opening the folder of", path);
    int rc = 0;
    if (fsync(fd) < 0 && errno != EINVAL) /* EINVAL: this file system has no need of it */
        rc = write_error("syncing the folder of", path);
    close(fd);
    return rc;
}

static int write_file(const char *path, const Buf *header, const SafetensorsTensor *const *sorted,
                      int n_tensors) {
    const char *slash = strrchr(path, '/');
    size_t folder_length = slash ? (size_t)(slash - path) + 1 : 0;
    char temporary[PATH_MAX];
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return err_errno(ERR_IO, errno, "naming a temporary file for '%s'", path);
    if (strlen(path) >= PATH_MAX - 32)
        return err_set(ERR_LIMIT, "the path '%s' is too long", path);
    snprintf(temporary, sizeof temporary, "%.*s.tmp-%016llx", (int)folder_length, path,
             (unsigned long long)random);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return write_error("creating a file beside", path);
    int rc = write_guarded(fd, path, header, sorted, n_tensors);
    if (close(fd) < 0 && rc >= 0)
        rc = write_error("closing", path);
    if (rc >= 0 && rename(temporary, path) < 0)
        rc = write_error("renaming to", path);
    if (rc < 0) {
        unlink(temporary);
        return rc;
    }
    return sync_folder(path, folder_length);
}

int safetensors_write(const char *path, const SafetensorsTensor *tensors, int n_tensors,
                      const SafetensorsMeta *metadata, int n_metadata) {
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
    if (rc >= 0)
        rc = write_file(path, &header, sorted, n_tensors);
    buf_done(&header);
    free(sorted);
    return rc;
}
