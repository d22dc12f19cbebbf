#include "core/dtype.h"

#include <stdio.h>
#include <string.h>

#include "core/err.h"

#define SHAPE_MAX_ELEMENTS (INT64_C(1) << 48)

typedef struct DTypeRow {
    size_t bytes;
    const char *name;
} DTypeRow;

static const DTypeRow rows[] = {
#define DTYPE_ROW(name, value, bytes, text) [value] = {bytes, text},
    DTYPE_TABLE(DTYPE_ROW)
#undef DTYPE_ROW
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static const DTypeRow *row_of(DType dtype) {
    static const DTypeRow unknown = {0, "?"};
    unsigned i = (unsigned)dtype;
    return i < N_ROWS && rows[i].name ? &rows[i] : &unknown;
}

size_t dtype_bytes(DType dtype) {
    return row_of(dtype)->bytes;
}

const char *dtype_name(DType dtype) {
    return row_of(dtype)->name;
}

int dtype_parse(const char *name, DType *out_dtype) {
    for (int i = 0; i < N_ROWS; i++) {
        if (rows[i].name && strcmp(rows[i].name, name) == 0) {
            *out_dtype = (DType)i;
            return 0;
        }
    }
    return err_set(ERR_FORMAT, "'%s' is not an element type (expected one such as F32, I64, U8)",
                   name);
}

int64_t shape_elements(const Shape *shape) {
    if (shape->n_dims < 0 || shape->n_dims > SHAPE_MAX_DIMS)
        return err_set(ERR_LIMIT, "a shape of %d dims (at most %d)", shape->n_dims, SHAPE_MAX_DIMS);
    char text[160];
    int64_t total = 1;
    bool empty = false;
    for (int i = 0; i < shape->n_dims; i++) {
        int64_t dim = shape->dims[i];
        if (dim < 0)
            return err_set(ERR_LIMIT, "shape %s has a negative dim",
                           shape_format(shape, text, sizeof text));
        empty = empty || dim == 0;
    }
    if (empty)
        return 0;
    for (int i = 0; i < shape->n_dims; i++) {
        if (shape->dims[i] > SHAPE_MAX_ELEMENTS / total)
            return err_set(ERR_LIMIT, "shape %s has more than 2^48 elements",
                           shape_format(shape, text, sizeof text));
        total *= shape->dims[i];
    }
    return total;
}

bool shape_equal(const Shape *a, const Shape *b) {
    if (a->n_dims != b->n_dims)
        return false;
    for (int i = 0; i < a->n_dims; i++) {
        if (a->dims[i] != b->dims[i])
            return false;
    }
    return true;
}

const char *shape_format(const Shape *shape, char *buf, size_t buf_bytes) {
    size_t at = 0;
    int n_dims = shape->n_dims < SHAPE_MAX_DIMS ? shape->n_dims : SHAPE_MAX_DIMS;
    if (buf_bytes == 0)
        return buf;
    buf[0] = '\0';
    for (int i = -1; i <= n_dims && at < buf_bytes; i++) {
        int n;
        if (i < 0)
            n = snprintf(buf + at, buf_bytes - at, "(");
        else if (i >= n_dims)
            n = snprintf(buf + at, buf_bytes - at, ")");
        else
            n = snprintf(buf + at, buf_bytes - at, "%s%lld", i ? ", " : "",
                         (long long)shape->dims[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    return buf;
}

Shape shape_1d(int64_t a) {
    return (Shape){.n_dims = 1, .dims = {a}};
}

Shape shape_2d(int64_t a, int64_t b) {
    return (Shape){.n_dims = 2, .dims = {a, b}};
}

Shape shape_3d(int64_t a, int64_t b, int64_t c) {
    return (Shape){.n_dims = 3, .dims = {a, b, c}};
}

Shape shape_4d(int64_t a, int64_t b, int64_t c, int64_t d) {
    return (Shape){.n_dims = 4, .dims = {a, b, c, d}};
}
