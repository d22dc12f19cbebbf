#include <stdlib.h>
#include <zlib.h>

#include "core/err.h"
#include "storage/dataset_array.h"

enum {
    MAGIC_BYTES = 4,
    DIM_BYTES = 4,
    HEADER_MAX_BYTES = MAGIC_BYTES + DIM_BYTES * SHAPE_MAX_DIMS
};
/* Deflate cannot make more than 1032 bytes of one (zlib's "Maximum Compression Factor"). */
#define INFLATE_MAX_RATIO UINT64_C(1032)

static uint32_t load_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static DType idx_dtype(uint8_t type) {
    switch (type) {
    case 0x08:
        return DTYPE_U8;
    case 0x09:
        return DTYPE_I8;
    case 0x0B:
        return DTYPE_I16;
    case 0x0C:
        return DTYPE_I32;
    case 0x0D:
        return DTYPE_F32;
    case 0x0E:
        return DTYPE_F64;
    default:
        return DTYPE_NONE;
    }
}

static bool is_gzip(const uint8_t *at, size_t bytes) {
    return bytes >= 2 && at[0] == 0x1F && at[1] == 0x8B;
}

int dataset_parse_idx(const char *what, const void *data, size_t bytes, IdxHeader *out_header) {
    const uint8_t *at = data;
    if (bytes < MAGIC_BYTES)
        return err_set(ERR_FORMAT, "'%s' is cut in its IDX header: it has only %zu bytes", what,
                       bytes);
    IdxHeader header = {.dtype = idx_dtype(at[2]), .shape = {.n_dims = at[3]}};
    uint32_t magic = load_u32(at);
    if (at[0] || at[1] || header.dtype == DTYPE_NONE)
        return err_set(ERR_FORMAT,
                       "'%s' is no IDX file: its magic is 0x%08x (expected 0000TTNN: a type 08 to "
                       "0e and a number of dims)%s",
                       what, magic, is_gzip(at, bytes) ? "; it is compressed with gzip" : "");
    if (header.shape.n_dims < 1 || header.shape.n_dims > SHAPE_MAX_DIMS)
        return err_set(ERR_FORMAT, "'%s': the IDX magic 0x%08x says %d dims (expected 1 to %d)",
                       what, magic, header.shape.n_dims, SHAPE_MAX_DIMS);
    header.data_offset = MAGIC_BYTES + (size_t)header.shape.n_dims * DIM_BYTES;
    if (bytes < header.data_offset)
        return err_set(ERR_FORMAT,
                       "'%s' is cut in its IDX header: %zu bytes, the magic 0x%08x needs %zu", what,
                       bytes, magic, header.data_offset);
    for (int i = 0; i < header.shape.n_dims; i++)
        header.shape.dims[i] = load_u32(at + MAGIC_BYTES + (size_t)i * DIM_BYTES);
    int64_t elements = shape_elements(&header.shape);
    if (elements < 0)
        return err_context((int)elements, "'%s'", what);
    *out_header = header;
    return 0;
}

/* ---- gzip ---- */

typedef struct Inflation {
    const char *what;
    z_stream stream;
    const uint8_t *next; /* input not yet given to the stream */
    size_t rest;
    bool ended; /* the stream's end and checksum were seen */
} Inflation;

static int inflation_open(Inflation *inflation, const char *what, const void *file, size_t bytes) {
    *inflation = (Inflation){.what = what, .next = file, .rest = bytes};
    if (inflateInit2(&inflation->stream, 15 + 16) != Z_OK) /* gzip form only */
        return err_set(ERR_MEMORY, "inflating '%s'", what);
    return 0;
}

/* Inflate until `bytes` are out or the stream ends; returns how many, or an error. */
static int64_t inflation_read(Inflation *inflation, uint8_t *out, size_t bytes) {
    z_stream *stream = &inflation->stream;
    size_t done = 0;
    while (!inflation->ended) {
        size_t room = bytes - done < UINT32_MAX ? bytes - done : UINT32_MAX;
        size_t give = inflation->rest < UINT32_MAX ? inflation->rest : UINT32_MAX;
        stream->next_in = (z_const Bytef *)inflation->next;
        stream->avail_in = (uInt)give;
        stream->next_out = out + done;
        stream->avail_out = (uInt)room;
        int state = inflate(stream, Z_NO_FLUSH);
        size_t taken = give - stream->avail_in;
        size_t made = room - stream->avail_out;
        inflation->next += taken;
        inflation->rest -= taken;
        done += made;
        if (state == Z_STREAM_END)
            inflation->ended = true;
        else if (state == Z_MEM_ERROR)
            return err_set(ERR_MEMORY, "inflating '%s'", inflation->what);
        else if (state != Z_OK && state != Z_BUF_ERROR)
            return err_set(ERR_FORMAT,
                           "'%s': the gzip data is damaged after %zu inflated bytes: %s",
                           inflation->what, (size_t)stream->total_out,
                           stream->msg ? stream->msg : "no reason is known");
        else if (taken == 0 && made == 0)
            break; /* no room left, or the input ends */
    }
    return (int64_t)done;
}

/* The stream must end here, and the file with it. */
static int inflation_end(Inflation *inflation) {
    uint8_t more[1];
    int64_t n = inflation_read(inflation, more, sizeof more);
    if (n < 0)
        return (int)n;
    if (n > 0)
        return err_set(ERR_FORMAT, "'%s' inflates to more than its IDX header declares",
                       inflation->what);
    if (!inflation->ended)
        return err_set(ERR_FORMAT, "'%s' is cut short: the gzip stream does not end",
                       inflation->what);
    if (inflation->rest > 0)
        return err_set(ERR_FORMAT, "'%s': %zu bytes follow the gzip stream", inflation->what,
                       inflation->rest);
    return 0;
}

static int inflate_body(Inflation *inflation, size_t file_bytes, DataArray *array) {
    uint64_t body = (uint64_t)shape_elements(&array->shape) * dtype_bytes(array->dtype);
    if (body / INFLATE_MAX_RATIO > file_bytes)
        return err_set(
            ERR_FORMAT,
            "'%s' declares %llu bytes of data, its %zu compressed bytes cannot hold them",
            inflation->what, (unsigned long long)body, file_bytes);
    array->owned = malloc((size_t)body + 1);
    if (!array->owned)
        return err_set(ERR_MEMORY, "the %llu bytes of '%s'", (unsigned long long)body,
                       inflation->what);
    array->data = array->owned;
    int64_t n = inflation_read(inflation, array->owned, (size_t)body);
    if (n < 0)
        return (int)n;
    TRY(dataset_array_check(inflation->what, array, (uint64_t)n));
    return inflation_end(inflation);
}

static int load_gzip(const char *what, const void *file, size_t bytes, bool header_only,
                     DataArray *array) {
    Inflation inflation;
    TRY(inflation_open(&inflation, what, file, bytes));
    uint8_t head[HEADER_MAX_BYTES];
    IdxHeader header;
    int rc = 0;
    int64_t n = inflation_read(&inflation, head, MAGIC_BYTES);
    /* The magic tells how long the header is: no byte of the body may be taken with it. */
    size_t n_dims = n == MAGIC_BYTES && head[3] <= SHAPE_MAX_DIMS ? head[3] : 0;
    int64_t more = n < 0 ? n : inflation_read(&inflation, head + MAGIC_BYTES, n_dims * DIM_BYTES);
    rc = more < 0 ? (int)more : dataset_parse_idx(what, head, (size_t)(n + more), &header);
    if (rc >= 0) {
        array->dtype = header.dtype;
        array->shape = header.shape;
        rc = header_only ? 0 : inflate_body(&inflation, bytes, array);
    }
    inflateEnd(&inflation.stream);
    return rc;
}

int dataset_idx_load(const char *what, const void *file, size_t bytes, bool header_only,
                     DataArray *out_array) {
    DataArray array = {.big_endian = true};
    int rc;
    if (is_gzip(file, bytes)) {
        rc = load_gzip(what, file, bytes, header_only, &array);
    } else {
        IdxHeader header;
        TRY(dataset_parse_idx(what, file, bytes, &header));
        array.dtype = header.dtype;
        array.shape = header.shape;
        array.data = header_only ? NULL : (const uint8_t *)file + header.data_offset;
        rc = dataset_array_check(what, &array, bytes - header.data_offset);
    }
    if (rc < 0) {
        dataset_array_done(&array);
        return rc;
    }
    *out_array = array;
    return 0;
}
