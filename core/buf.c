#include "core/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/err.h"

enum { BUF_FIRST_BYTES = 64 };

void buf_init(Buf *buf, size_t max_bytes) {
    *buf = (Buf){.max_bytes = max_bytes};
}

void buf_done(Buf *buf) {
    if (!buf)
        return;
    free(buf->data);
    *buf = (Buf){.max_bytes = buf->max_bytes};
}

void buf_clear(Buf *buf) {
    buf->bytes = 0;
    if (buf->data)
        buf->data[0] = '\0';
}

int buf_reserve(Buf *buf, size_t more_bytes) {
    size_t limit =
        buf->max_bytes && buf->max_bytes < PTRDIFF_MAX ? buf->max_bytes : (size_t)PTRDIFF_MAX - 1;
    if (buf->bytes > limit || more_bytes > limit - buf->bytes)
        return err_set(ERR_LIMIT, "a buffer of %zu bytes may not grow by %zu (limit %zu)",
                       buf->bytes, more_bytes, limit);
    size_t need = buf->bytes + more_bytes + 1;
    if (need <= buf->capacity)
        return 0;
    size_t capacity = buf->capacity > BUF_FIRST_BYTES / 2 ? buf->capacity * 2 : BUF_FIRST_BYTES;
    if (capacity > limit + 1)
        capacity = limit + 1;
    if (capacity < need)
        capacity = need;
    char *data = realloc(buf->data, capacity);
    if (!data)
        return err_set(ERR_MEMORY, "a buffer of %zu bytes", capacity);
    data[buf->bytes] = '\0';
    buf->data = data;
    buf->capacity = capacity;
    return 0;
}

int buf_add(Buf *buf, const void *data, size_t bytes) {
    if (bytes == 0)
        return 0;
    TRY(buf_reserve(buf, bytes));
    memcpy(buf->data + buf->bytes, data, bytes);
    buf->bytes += bytes;
    buf->data[buf->bytes] = '\0';
    return 0;
}

int buf_text(Buf *buf, const char *text) {
    return buf_add(buf, text, strlen(text));
}

int buf_printf(Buf *buf, const char *format, ...) {
    TRY(buf_reserve(buf, 0));
    size_t room = buf->capacity - buf->bytes;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(buf->data + buf->bytes, room, format, args);
    va_end(args);
    buf->data[buf->bytes] = '\0'; /* until the text is known to fit */
    if (n < 0)
        return err_set(ERR_INTERNAL, "the format '%s' cannot be printed", format);
    size_t wanted = (size_t)n;
    TRY(buf_reserve(buf, wanted));
    va_start(args, format);
    vsnprintf(buf->data + buf->bytes, wanted + 1, format, args);
    va_end(args);
    buf->bytes += wanted;
    return 0;
}

const char *buf_string(const Buf *buf) {
    return buf->data ? buf->data : "";
}

char *buf_take(Buf *buf, size_t *out_bytes) {
    char *data = buf->data;
    if (out_bytes)
        *out_bytes = buf->bytes;
    *buf = (Buf){.max_bytes = buf->max_bytes};
    return data;
}

/* ---- files ---- */

/* Append what `fd` holds, at most max_bytes; the caller restores the length on error. */
static int read_all(Buf *buf, int fd, const char *path, size_t max_bytes) {
    size_t total = 0;
    for (;;) {
        size_t room = buf->capacity > buf->bytes + 1 ? buf->capacity - buf->bytes - 1 : 0;
        char probe[1]; /* when full, one more byte tells whether the end is reached */
        char *to = room ? buf->data + buf->bytes : probe;
        ssize_t n = read(fd, to, room ? room : sizeof probe);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(ERR_IO, errno, "reading '%s'", path);
        if (n == 0)
            return 0;
        total += (size_t)n;
        if (total > max_bytes)
            return err_set(ERR_LIMIT, "'%s' has more than the %zu bytes allowed", path, max_bytes);
        if (room)
            buf->bytes += (size_t)n;
        else
            TRY(buf_add(buf, probe, (size_t)n));
        buf->data[buf->bytes] = '\0';
    }
}

int buf_read_file(Buf *buf, const char *path, size_t max_bytes) {
    int rc = 0;
    size_t bytes_before = buf->bytes;
    /* Opening a pipe would otherwise wait for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_errno(errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO, errno,
                         "opening '%s'", path);
    struct stat about;
    if (fstat(fd, &about) < 0)
        rc = err_errno(ERR_IO, errno, "looking at '%s'", path);
    else if (!S_ISREG(about.st_mode))
        rc = err_set(ERR_IO, "'%s' is not a plain file", path);
    else if ((uint64_t)about.st_size > max_bytes)
        rc = err_set(ERR_LIMIT, "'%s' has %lld bytes (at most %zu are allowed)", path,
                     (long long)about.st_size, max_bytes);
    if (rc >= 0)
        rc = buf_reserve(buf, (size_t)about.st_size);
    if (rc >= 0)
        rc = read_all(buf, fd, path, max_bytes);
    if (rc < 0 && buf->data) {
        buf->bytes = bytes_before;
        buf->data[buf->bytes] = '\0';
    }
    close(fd);
    return rc;
}
