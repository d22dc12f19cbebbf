/* Buf: a growing byte buffer that also builds text. Always NUL-terminated behind its length, so
 * buf.data is a C string as long as no NUL byte was added. Growth is limited by max_bytes.
 * Slice: borrowed bytes. */
#ifndef FUNCPIPE_CORE_BUF_H
#define FUNCPIPE_CORE_BUF_H

#include <stddef.h>
#include <stdint.h>

typedef struct Slice {
    const void *data;
    size_t bytes;
} Slice;

typedef struct Buf {
    char *data; /* NULL while empty */
    size_t bytes;
    size_t capacity;
    size_t max_bytes; /* 0: no limit but memory */
} Buf;

void buf_init(Buf *buf, size_t max_bytes);
void buf_done(Buf *buf);
void buf_clear(Buf *buf);                     /* keeps the memory */
int buf_reserve(Buf *buf, size_t more_bytes); /* ERR_LIMIT, ERR_MEMORY */
int buf_add(Buf *buf, const void *data, size_t bytes);
int buf_text(Buf *buf, const char *text);
int buf_printf(Buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *buf_string(const Buf *buf); /* "" while empty */
/* Hand the bytes to the caller (free them with free); the buffer is empty afterwards. */
char *buf_take(Buf *buf, size_t *out_bytes);

/* Read a whole file of at most max_bytes (plain file, not a device). ERR_NOT_FOUND, ERR_LIMIT,
 * ERR_IO name the path. */
int buf_read_file(Buf *buf, const char *path, size_t max_bytes);

#endif
