/* Element types and shapes: the vocabulary every other part shares. */
#ifndef FUNCPIPE_CORE_DTYPE_H
#define FUNCPIPE_CORE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*        enum, value on the wire, bytes, safetensors name */
#define DTYPE_TABLE(X)                                                                             \
    X(DTYPE_F32, 1, 4, "F32")                                                                      \
    X(DTYPE_F64, 2, 8, "F64")                                                                      \
    X(DTYPE_F16, 3, 2, "F16")                                                                      \
    X(DTYPE_BF16, 4, 2, "BF16")                                                                    \
    X(DTYPE_I8, 5, 1, "I8")                                                                        \
    X(DTYPE_U8, 6, 1, "U8")                                                                        \
    X(DTYPE_I16, 7, 2, "I16")                                                                      \
    X(DTYPE_U16, 8, 2, "U16")                                                                      \
    X(DTYPE_I32, 9, 4, "I32")                                                                      \
    X(DTYPE_U32, 10, 4, "U32")                                                                     \
    X(DTYPE_I64, 11, 8, "I64")                                                                     \
    X(DTYPE_U64, 12, 8, "U64")                                                                     \
    X(DTYPE_BOOL, 13, 1, "BOOL")

typedef enum DType {
    DTYPE_NONE = 0,
#define DTYPE_ENUM(name, value, bytes, text) name = value,
    DTYPE_TABLE(DTYPE_ENUM)
#undef DTYPE_ENUM
} DType;

enum { SHAPE_MAX_DIMS = 6 };
typedef struct Shape {
    int32_t n_dims; /* 0: a scalar */
    int64_t dims[SHAPE_MAX_DIMS];
} Shape;

size_t dtype_bytes(DType dtype);                     /* 0 for an unknown one */
const char *dtype_name(DType dtype);                 /* safetensors name; "?" for an unknown one */
int dtype_parse(const char *name, DType *out_dtype); /* ERR_FORMAT */

/* Product of the dims; ERR_LIMIT (negative) if a dim is negative or the product exceeds 2^48. */
int64_t shape_elements(const Shape *shape);
bool shape_equal(const Shape *a, const Shape *b);
/* "(32, 14, 14)" into buf; returns buf. */
const char *shape_format(const Shape *shape, char *buf, size_t buf_bytes);
Shape shape_1d(int64_t a);
Shape shape_2d(int64_t a, int64_t b);
Shape shape_3d(int64_t a, int64_t b, int64_t c);
Shape shape_4d(int64_t a, int64_t b, int64_t c, int64_t d);

#endif
