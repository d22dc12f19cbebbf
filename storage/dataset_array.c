#include "storage/dataset_array.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/err.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "plain F32 data is copied as it lies");

/* ---- files ---- */

static DataMark mark_of(const struct stat *about) {
    return (DataMark){.bytes = (uint64_t)about->st_size,
                      .modified_ns = (uint64_t)about->st_mtim.tv_sec * UINT64_C(1000000000) +
                                     (uint64_t)about->st_mtim.tv_nsec,
                      .inode = (uint64_t)about->st_ino};
}

static int compare_marks(const char *path, const DataMark *expected, const DataMark *found) {
    if (expected->bytes == 0 ||
        (expected->bytes == found->bytes && expected->modified_ns == found->modified_ns &&
         expected->inode == found->inode))
        return 0;
    return err_set(ERR_FORMAT, "the data file '%s' changed since the job began", path);
}

static int map_file(const char *path, const DataMark *expected, DataFile *file) {
    struct stat about;
    if (fstat(file->fd, &about) < 0)
        return err_errno(ERR_IO, errno, "looking at '%s'", path);
    if (!S_ISREG(about.st_mode))
        return err_set(ERR_IO, "'%s' is not a plain file", path);
    file->mark = mark_of(&about);
    TRY(compare_marks(path, expected, &file->mark));
    if (about.st_size == 0)
        return err_set(ERR_FORMAT, "'%s' is empty", path);
    file->bytes = (size_t)about.st_size;
    void *map = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
    if (map == MAP_FAILED)
        return err_errno(ERR_IO, errno, "mapping '%s'", path);
    file->map = map;
    return 0;
}

int dataset_file_open(const char *path, const DataMark *expected, DataFile *out_file) {
    DataFile file = {0};
    /* Opening a pipe would otherwise wait for a writer. */
    file.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file.fd < 0)
        return err_errno(errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO, errno,
                         "opening the data file '%s'", path);
    int rc = map_file(path, expected, &file);
    if (rc < 0) {
        close(file.fd);
        return rc;
    }
    *out_file = file;
    return 0;
}

void dataset_file_done(DataFile *file) {
    if (!file->map)
        return;
    munmap(file->map, file->bytes);
    close(file->fd);
    file->map = NULL;
}

int dataset_file_check(const DataFile *file, const char *path) {
    struct stat about;
    if (!file->map)
        return 0;
    if (fstat(file->fd, &about) < 0)
        return err_errno(ERR_IO, errno, "looking at '%s'", path);
    DataMark now = mark_of(&about);
    return compare_marks(path, &file->mark, &now);
}

/* ---- arrays ---- */

void dataset_array_done(DataArray *array) {
    if (!array)
        return;
    dataset_file_done(&array->file);
    free(array->owned);
    *array = (DataArray){0};
}

int dataset_array_open(DataKind kind, const char *path, const DataMark *expected, bool header_only,
                       DataArray *out_array) {
    DataFile file;
    DataArray array = {0};
    TRY(dataset_file_open(path, expected, &file));
    int rc = kind == DATA_IDX ? dataset_idx_load(path, file.map, file.bytes, header_only, &array)
                              : dataset_npy_load(path, file.map, file.bytes, header_only, &array);
    if (rc >= 0)
        rc = dataset_file_check(&file, path); /* inflating takes a while */
    if (rc < 0 || array.owned || header_only)
        dataset_file_done(&file);
    array.file = file;
    if (rc < 0) {
        dataset_array_done(&array);
        return rc;
    }
    *out_array = array;
    return 0;
}

int dataset_array_check(const char *what, DataArray *array, uint64_t body_bytes) {
    char shape[160];
    shape_format(&array->shape, shape, sizeof shape);
    if (array->shape.n_dims < 1)
        return err_set(ERR_FORMAT, "'%s': the shape %s has no axis of samples", what, shape);
    int64_t elements = shape_elements(&array->shape);
    if (elements < 0)
        return err_context((int)elements, "'%s'", what);
    if (elements == 0)
        return err_set(ERR_FORMAT, "'%s': the shape %s holds no numbers", what, shape);
    uint64_t need = (uint64_t)elements * dtype_bytes(array->dtype);
    if (body_bytes < need)
        return err_set(ERR_FORMAT, "'%s' is cut short: %s %s needs %llu bytes, there are %llu",
                       what, dtype_name(array->dtype), shape, (unsigned long long)need,
                       (unsigned long long)body_bytes);
    if (body_bytes > need)
        return err_set(ERR_FORMAT, "'%s': %llu bytes follow the %s %s", what,
                       (unsigned long long)(body_bytes - need), dtype_name(array->dtype), shape);
    array->row_elements = elements / array->shape.dims[0];
    return 0;
}

/* ---- numbers ---- */

static uint64_t load_bits(const uint8_t *at, size_t bytes, bool big_endian) {
    uint64_t bits = 0;
    for (size_t i = 0; i < bytes; i++)
        bits |= (uint64_t)at[big_endian ? bytes - 1 - i : i] << (8 * i);
    return bits;
}

static double half_value(uint64_t bits) {
    int exponent = (int)(bits >> 10 & 0x1F);
    double fraction = (double)(bits & 0x3FF);
    double value = exponent == 0x1F ? (bits & 0x3FF ? (double)NAN : (double)INFINITY)
                   : exponent == 0  ? ldexp(fraction, -24)
                                    : ldexp(fraction + 1024.0, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

static double float_value(DType dtype, uint64_t bits) {
    if (dtype == DTYPE_F16)
        return half_value(bits);
    if (dtype == DTYPE_F32) {
        uint32_t word = (uint32_t)bits;
        float value;
        memcpy(&value, &word, sizeof value);
        return (double)value;
    }
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool is_float(DType dtype) {
    return dtype == DTYPE_F16 || dtype == DTYPE_F32 || dtype == DTYPE_F64;
}

static bool is_signed(DType dtype) {
    return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
}

/* Whole numbers; a U64 beyond the signed range becomes INT64_MAX, which no reader accepts. */
static int64_t whole_value(DType dtype, uint64_t bits) {
    if (is_signed(dtype)) {
        int unused = 64 - 8 * (int)dtype_bytes(dtype);
        return (int64_t)(bits << unused) >> unused;
    }
    return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
}

static const uint8_t *sample_at(const DataArray *array, int64_t sample) {
    return array->data + (size_t)(sample * array->row_elements) * dtype_bytes(array->dtype);
}

static int not_finite(const DataArray *array, const char *path, int64_t sample, const float *row) {
    int64_t i = 0;
    while (isfinite(row[i]) && i + 1 < array->row_elements)
        i++;
    return err_set(ERR_FORMAT, "'%s': sample %lld, position %lld: the value is not finite as F32",
                   path, (long long)sample, (long long)i);
}

int dataset_array_read_f32(const DataArray *array, const char *path, int64_t sample, float *out) {
    const uint8_t *at = sample_at(array, sample);
    size_t bytes = dtype_bytes(array->dtype);
    int64_t n = array->row_elements;
    if (array->dtype == DTYPE_F32 && !array->big_endian) {
        memcpy(out, at, (size_t)n * sizeof *out);
    } else {
        bool floating = is_float(array->dtype);
        for (int64_t i = 0; i < n; i++) {
            uint64_t bits = load_bits(at + (size_t)i * bytes, bytes, array->big_endian);
            out[i] = floating                    ? (float)float_value(array->dtype, bits)
                     : array->dtype == DTYPE_U64 ? (float)bits
                                                 : (float)whole_value(array->dtype, bits);
        }
    }
    if (!is_float(array->dtype))
        return 0;
    bool finite = true;
    for (int64_t i = 0; i < n; i++)
        finite &= fabsf(out[i]) <= 3.402823466e38F;
    return finite ? 0 : not_finite(array, path, sample, out);
}

int dataset_array_read_i32(const DataArray *array, const char *path, int64_t sample, int32_t *out) {
    const uint8_t *at = sample_at(array, sample);
    size_t bytes = dtype_bytes(array->dtype);
    for (int64_t i = 0; i < array->row_elements; i++) {
        uint64_t bits = load_bits(at + (size_t)i * bytes, bytes, array->big_endian);
        if (is_float(array->dtype)) {
            double value = float_value(array->dtype, bits);
            if (!(value >= INT32_MIN && value <= INT32_MAX && value == rint(value)))
                return err_set(ERR_FORMAT,
                               "'%s': sample %lld, position %lld: %g is not a whole number of "
                               "32 bits",
                               path, (long long)sample, (long long)i, value);
            out[i] = (int32_t)value;
        } else {
            int64_t value = whole_value(array->dtype, bits);
            if (value < INT32_MIN || value > INT32_MAX)
                return err_set(ERR_FORMAT,
                               "'%s': sample %lld, position %lld: %lld does not fit 32 bits", path,
                               (long long)sample, (long long)i, (long long)value);
            out[i] = (int32_t)value;
        }
    }
    return 0;
}
