/* What differs between two checkpoints, tensor by tensor. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "coordinator/checkpoint_parts.h"
#include "core/err.h"

enum { MAX_FILES = 4096 };

typedef struct Tensor {
    const SafetensorsEntry *entry;
    int file;
} Tensor;

typedef struct Side {
    const char *path;
    int n_files;
    Safetensors *files[MAX_FILES];
    size_t n;
    Tensor *tensors; /* by name */
} Side;

static void side_close(Side *side) {
    if (!side)
        return;
    for (int i = 0; i < side->n_files; i++)
        safetensors_close(side->files[i]);
    free(side->tensors);
    free(side);
}

static int add_file(Side *side, const char *path) {
    if (side->n_files == MAX_FILES)
        return err_set(ERR_LIMIT, "'%s' has more than %d files", side->path, MAX_FILES);
    TRY(safetensors_open(path, &side->files[side->n_files]));
    side->n += (size_t)safetensors_count(side->files[side->n_files]);
    side->n_files++;
    return 0;
}

static int add_listed(Side *side, const Manifest *manifest) {
    char path[MANIFEST_PATH_BYTES];
    for (int32_t i = 0; i < manifest->n_files; i++) {
        TRY(manifest_join(path, side->path, manifest->files[i].name));
        TRY(add_file(side, path));
    }
    return 0;
}

static int add_found(Side *side) {
    static const char ending[] = ".safetensors";
    DIR *dir = opendir(side->path);
    if (!dir)
        return err_errno(ERR_IO, errno, "opening '%s'", side->path);
    int rc = 0;
    for (struct dirent *entry = readdir(dir); entry && rc >= 0; entry = readdir(dir)) {
        const char *name = entry->d_name;
        size_t length = strlen(name);
        char path[MANIFEST_PATH_BYTES];
        if (name[0] == '.' || length < sizeof ending ||
            strcmp(name + length - (sizeof ending - 1), ending) != 0)
            continue;
        rc = manifest_join(path, side->path, name);
        if (rc >= 0)
            rc = add_file(side, path);
    }
    closedir(dir);
    if (rc >= 0 && side->n_files == 0)
        rc = err_set(ERR_NOT_FOUND, "there is no .safetensors file in '%s'", side->path);
    return rc;
}

static int order_tensors(const void *left, const void *right) {
    return strcmp(((const Tensor *)left)->entry->name, ((const Tensor *)right)->entry->name);
}

static int index_side(Side *side) {
    side->tensors = calloc(side->n + 1, sizeof side->tensors[0]);
    if (!side->tensors)
        return err_set(ERR_MEMORY, "the tensors of '%s'", side->path);
    size_t n = 0;
    for (int f = 0; f < side->n_files; f++) {
        for (int i = 0; i < safetensors_count(side->files[f]); i++)
            side->tensors[n++] = (Tensor){safetensors_at(side->files[f], i), f};
    }
    qsort(side->tensors, n, sizeof side->tensors[0], order_tensors);
    for (size_t i = 1; i < n; i++) {
        if (order_tensors(&side->tensors[i - 1], &side->tensors[i]) == 0)
            return err_set(ERR_FORMAT, "'%s': tensor '%s' is in two files", side->path,
                           side->tensors[i].entry->name);
    }
    return 0;
}

static int side_open(const char *path, Side **out_side) {
    Side *side = calloc(1, sizeof *side);
    if (!side)
        return err_set(ERR_MEMORY, "comparing '%s'", path);
    side->path = path;
    int rc = 0;
    struct stat about;
    Manifest manifest = {0};
    if (stat(path, &about) < 0)
        TRY_DONE(err_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "opening '%s'", path));
    if (S_ISDIR(about.st_mode)) {
        rc = manifest_read(path, &manifest);
        if (rc < 0 && rc != ERR_NOT_FOUND)
            goto done;
        TRY_DONE(rc >= 0 ? add_listed(side, &manifest) : add_found(side));
    } else {
        TRY_DONE(add_file(side, path));
    }
    TRY_DONE(index_side(side));
    *out_side = side;
    side = NULL;
done:
    manifest_done(&manifest);
    side_close(side);
    return rc < 0 ? rc : 0;
}

/* ---- values ---- */

static double half_value(uint16_t bits) {
    int exponent = bits >> 10 & 0x1F;
    double fraction = bits & 0x3FF;
    double value = exponent == 0x1F ? (fraction > 0 ? (double)NAN : (double)INFINITY)
                   : exponent == 0  ? ldexp(fraction, -24)
                                    : ldexp(fraction + 1024.0, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

#define LOAD_AS(type)                                                                              \
    do {                                                                                           \
        type value_;                                                                               \
        memcpy(&value_, at, sizeof value_);                                                        \
        return (double)value_;                                                                     \
    } while (0)

static double load_value(DType dtype, const uint8_t *at) {
    uint16_t half;
    uint32_t word;
    float value;
    switch (dtype) {
    case DTYPE_F32:
        LOAD_AS(float);
    case DTYPE_F64:
        LOAD_AS(double);
    case DTYPE_F16:
        memcpy(&half, at, sizeof half);
        return half_value(half);
    case DTYPE_BF16:
        memcpy(&half, at, sizeof half);
        word = (uint32_t)half << 16;
        memcpy(&value, &word, sizeof value);
        return (double)value;
    case DTYPE_I8:
        LOAD_AS(int8_t);
    case DTYPE_I16:
        LOAD_AS(int16_t);
    case DTYPE_I32:
        LOAD_AS(int32_t);
    case DTYPE_I64:
        LOAD_AS(int64_t);
    case DTYPE_U16:
        LOAD_AS(uint16_t);
    case DTYPE_U32:
        LOAD_AS(uint32_t);
    case DTYPE_U64:
        LOAD_AS(uint64_t);
    case DTYPE_U8:
    case DTYPE_BOOL:
    case DTYPE_NONE:
        break;
    }
    return *at;
}

static void compare_values(const SafetensorsEntry *entry, const uint8_t *a, const uint8_t *b,
                           CheckpointDiffRow *row) {
    size_t step = dtype_bytes(entry->dtype);
    double squares = 0;
    double squares_a = 0;
    double squares_b = 0;
    for (uint64_t at = 0; at < entry->bytes; at += step) {
        if (memcmp(a + at, b + at, step) == 0) {
            double both = load_value(entry->dtype, a + at);
            squares_a += isfinite(both) ? both * both : 0;
            squares_b += isfinite(both) ? both * both : 0;
            continue;
        }
        double x = load_value(entry->dtype, a + at);
        double y = load_value(entry->dtype, b + at);
        double apart = fabs(x - y);
        double larger = fmax(fabs(x), fabs(y));
        if (isnan(x) && isnan(y)) /* other bits, the same nothing */
            continue;
        if (!isfinite(apart)) {
            row->max_abs = row->max_rel = row->l2_rel = (double)INFINITY;
            return;
        }
        row->max_abs = fmax(row->max_abs, apart);
        row->max_rel = fmax(row->max_rel, larger > 0 ? apart / larger : 0);
        squares += apart * apart;
        squares_a += x * x;
        squares_b += y * y;
    }
    double larger = sqrt(fmax(squares_a, squares_b));
    row->l2_rel = larger > 0 ? sqrt(squares) / larger : 0;
}

static int compare_tensors(const Side *a, const Tensor *in_a, const Side *b, const Tensor *in_b,
                           CheckpointDiffRow *row) {
    const SafetensorsEntry *entry = in_a->entry;
    if (entry->dtype != in_b->entry->dtype || !shape_equal(&entry->shape, &in_b->entry->shape)) {
        row->state = CHECKPOINT_FORM;
        return 0;
    }
    int rc = 0;
    size_t bytes = (size_t)entry->bytes;
    uint8_t *data_a = malloc(bytes + 1);
    uint8_t *data_b = malloc(bytes + 1);
    if (!data_a || !data_b)
        TRY_DONE(err_set(ERR_MEMORY, "comparing tensor '%s'", entry->name));
    TRY_DONE(safetensors_read(a->files[in_a->file], entry, data_a, bytes));
    TRY_DONE(safetensors_read(b->files[in_b->file], in_b->entry, data_b, bytes));
    row->state = memcmp(data_a, data_b, bytes) == 0 ? CHECKPOINT_EQUAL : CHECKPOINT_VALUES;
    if (row->state == CHECKPOINT_VALUES)
        compare_values(entry, data_a, data_b, row);
done:
    free(data_a);
    free(data_b);
    return rc < 0 ? rc : 0;
}

/* ---- the whole ---- */

static void note_worst(CheckpointDiff *diff, int64_t at) {
    const CheckpointDiffRow *row = &diff->rows[at];
    if (row->state != CHECKPOINT_VALUES)
        return;
    if (diff->worst_abs < 0 || row->max_abs > diff->rows[diff->worst_abs].max_abs)
        diff->worst_abs = at;
    if (diff->worst_rel < 0 || row->max_rel > diff->rows[diff->worst_rel].max_rel)
        diff->worst_rel = at;
    if (diff->worst_l2 < 0 || row->l2_rel > diff->rows[diff->worst_l2].l2_rel)
        diff->worst_l2 = at;
}

static int merge(const Side *a, const Side *b, CheckpointDiff *diff) {
    size_t i = 0;
    size_t j = 0;
    while (i < a->n || j < b->n) {
        const Tensor *in_a = i < a->n ? &a->tensors[i] : NULL;
        const Tensor *in_b = j < b->n ? &b->tensors[j] : NULL;
        int order = !in_a ? 1 : !in_b ? -1 : order_tensors(in_a, in_b);
        CheckpointDiffRow *row = &diff->rows[diff->n_rows];
        memcpy(row->name, order <= 0 ? in_a->entry->name : in_b->entry->name, sizeof row->name);
        if (order == 0)
            TRY(compare_tensors(a, in_a, b, in_b, row));
        else
            row->state = order < 0 ? CHECKPOINT_ONLY_A : CHECKPOINT_ONLY_B;
        i += order <= 0;
        j += order >= 0;
        diff->n_states[row->state]++;
        note_worst(diff, diff->n_rows++);
    }
    return 0;
}

int checkpoint_diff(const char *path_a, const char *path_b, CheckpointDiff *out_diff) {
    Side *a = NULL;
    Side *b = NULL;
    CheckpointDiff diff = {.worst_abs = -1, .worst_rel = -1, .worst_l2 = -1};
    int rc = 0;
    TRY_DONE(side_open(path_a, &a));
    TRY_DONE(side_open(path_b, &b));
    diff.rows = calloc(a->n + b->n + 1, sizeof diff.rows[0]);
    if (!diff.rows)
        TRY_DONE(err_set(ERR_MEMORY, "comparing '%s' and '%s'", path_a, path_b));
    TRY_DONE(merge(a, b, &diff));
    *out_diff = diff;
    diff.rows = NULL;
done:
    side_close(a);
    side_close(b);
    checkpoint_diff_done(&diff);
    return rc < 0 ? rc : 0;
}

void checkpoint_diff_done(CheckpointDiff *diff) {
    if (!diff)
        return;
    free(diff->rows);
    *diff = (CheckpointDiff){0};
}

bool checkpoint_diff_equal(const CheckpointDiff *diff) {
    return diff->n_states[CHECKPOINT_EQUAL] == diff->n_rows;
}
