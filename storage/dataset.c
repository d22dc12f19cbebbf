#include "storage/dataset.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "storage/dataset_array.h"

enum { N_BYTE_VALUES = 256 };

struct Dataset {
    DataSpec spec;
    bool has_input, has_target;
    int64_t samples;
    DType input_dtype;
    Shape input_shape, target_shape; /* of one sample */
    int64_t input_elements, target_elements;
    DataArray input, target; /* idx, npy */
    DataTokens tokens;
    float *table; /* (channels, 256): U8 values normalised */
};

/* ---- opening ---- */

static Shape sample_shape(const DataArray *array) {
    Shape shape = {.n_dims = array->shape.n_dims - 1};
    memcpy(shape.dims, array->shape.dims + 1, (size_t)shape.n_dims * sizeof shape.dims[0]);
    return shape;
}

/* The shape asked for, where one is, in place of the file's `given`. */
static int adapt_shape(const DataSpec *spec, const char *what, const Shape *given, Shape *out) {
    char have[160];
    char want[160];
    int64_t n_given = shape_elements(given);
    int64_t n_asked = spec->shape.n_dims > 0 ? shape_elements(&spec->shape) : n_given;
    if (n_asked < 0)
        return err_context((int)n_asked, "the input shape for '%s'", what);
    if (n_given != n_asked)
        return err_set(ERR_FORMAT, "'%s': a sample has shape %s, the model's input has %s", what,
                       shape_format(given, have, sizeof have),
                       shape_format(&spec->shape, want, sizeof want));
    *out = spec->shape.n_dims > 0 ? spec->shape : *given;
    return 0;
}

static int check_normalization(const DataSpec *spec, const char *what, const Shape *given) {
    char shape[160];
    int32_t n = spec->n_channels;
    if (n < 0 || n > ORDER_MAX_CHANNELS)
        return err_set(ERR_ARGUMENT, "%d channels to normalise (at most %d)", n,
                       ORDER_MAX_CHANNELS);
    bool fits = (spec->shape.n_dims > 0 && spec->shape.dims[0] == n) ||
                (given->n_dims > 0 && given->dims[0] == n);
    if (n > 1 && !fits)
        return err_set(ERR_ARGUMENT, "'%s': mean and std have %d channels, a sample has shape %s",
                       what, n, shape_format(given, shape, sizeof shape));
    for (int32_t c = 0; c < n; c++) {
        if (!isfinite(spec->mean[c]) || !isfinite(spec->std[c]) || !(spec->std[c] > 0))
            return err_set(ERR_ARGUMENT,
                           "channel %d has mean %g and std %g (expected finite ones, std over 0)",
                           c, (double)spec->mean[c], (double)spec->std[c]);
    }
    return 0;
}

/* The same float operations in the same order as torchvision's ToTensor and Normalize. */
static int make_table(Dataset *dataset) {
    const DataSpec *spec = &dataset->spec;
    int32_t n_channels = spec->n_channels > 0 ? spec->n_channels : 1;
    dataset->table = malloc((size_t)n_channels * N_BYTE_VALUES * sizeof(float));
    if (!dataset->table)
        return err_set(ERR_MEMORY, "the table of byte values");
    for (int32_t c = 0; c < n_channels; c++) {
        for (int value = 0; value < N_BYTE_VALUES; value++) {
            float x = (float)value / 255.0F;
            dataset->table[c * N_BYTE_VALUES + value] =
                spec->n_channels > 0 ? (x - spec->mean[c]) / spec->std[c] : x;
        }
    }
    return 0;
}

/* One half of an idx or npy set; a half that is not wanted is only counted, and may be absent. */
static int open_half(const DataSpec *spec, int half, bool wanted, DataArray *out_array,
                     int64_t *out_n) {
    const char *path = half == 0 ? spec->input_path : spec->target_path;
    const char *role = half == 0 ? "inputs" : "targets";
    *out_n = -1;
    if (!path[0] && wanted)
        return err_set(ERR_ARGUMENT, "the data set names no file of %s", role);
    if (!path[0])
        return 0;
    int rc = dataset_array_open(spec->kind, path, &spec->marks[half], !wanted, out_array);
    if (rc == ERR_NOT_FOUND && !wanted)
        return 0;
    if (rc < 0)
        return err_context(rc, "the data set's %s", role);
    *out_n = out_array->shape.dims[0];
    return 0;
}

static int open_arrays(Dataset *dataset) {
    const DataSpec *spec = &dataset->spec;
    int64_t n_inputs;
    int64_t n_targets;
    TRY(open_half(spec, 0, dataset->has_input, &dataset->input, &n_inputs));
    TRY(open_half(spec, 1, dataset->has_target, &dataset->target, &n_targets));
    if (n_inputs < 0 && n_targets < 0)
        return err_set(ERR_NOT_FOUND, "neither '%s' nor '%s' is there", spec->input_path,
                       spec->target_path);
    if (n_inputs >= 0 && n_targets >= 0 && n_inputs != n_targets)
        return err_set(ERR_FORMAT, "'%s' holds %lld samples, but '%s' holds %lld targets",
                       spec->input_path, (long long)n_inputs, spec->target_path,
                       (long long)n_targets);
    dataset->samples = n_inputs >= 0 ? n_inputs : n_targets;
    if (dataset->has_input) {
        Shape given = sample_shape(&dataset->input);
        dataset->input_dtype = DTYPE_F32;
        TRY(adapt_shape(spec, spec->input_path, &given, &dataset->input_shape));
        TRY(check_normalization(spec, spec->input_path, &given));
        if (dataset->input.dtype == DTYPE_U8)
            TRY(make_table(dataset));
    }
    if (dataset->has_target) {
        dataset->target_shape = sample_shape(&dataset->target);
        if (spec->classes < 1)
            return err_set(ERR_ARGUMENT, "the targets '%s' need a number of classes",
                           spec->target_path);
    }
    return 0;
}

static int check_vocab(const Dataset *dataset, const char *what) {
    const DataSpec *spec = &dataset->spec;
    int64_t bound = dataset->has_target && spec->classes > 0 ? spec->classes : spec->vocab;
    if ((dataset->has_input && spec->vocab < 1) || (dataset->has_target && bound < 1))
        return err_set(ERR_ARGUMENT, "the tokens of '%s' need a vocabulary size", what);
    if (spec->vocab > INT32_MAX || bound > INT32_MAX)
        return err_set(ERR_ARGUMENT, "'%s': a vocabulary is at most 2^31-1", what);
    return 0;
}

static int open_tokens(Dataset *dataset) {
    const DataSpec *spec = &dataset->spec;
    if (spec->context < 1)
        return err_set(ERR_ARGUMENT, "the tokens of '%s' need a context of at least 1",
                       spec->input_path);
    Shape given = shape_1d(spec->context);
    dataset->input_dtype = DTYPE_I32;
    dataset->target_shape = given;
    TRY(check_vocab(dataset, spec->input_path));
    TRY(adapt_shape(spec, spec->input_path, &given, &dataset->input_shape));
    TRY(dataset_tokens_open(spec, &dataset->tokens));
    dataset->samples = (dataset->tokens.n_tokens - 1) / spec->context;
    return 0;
}

static int open_generated(Dataset *dataset) {
    DataSpec *spec = &dataset->spec;
    if (spec->samples < 1)
        return err_set(ERR_ARGUMENT, "a generated data set needs a number of samples");
    dataset->samples = spec->samples;
    if (spec->generated_tokens) {
        Shape given = spec->context > 0 ? shape_1d(spec->context) : spec->shape;
        if (given.n_dims < 1 || shape_elements(&given) < 1)
            return err_set(ERR_ARGUMENT, "generated tokens need an input shape or a context");
        if (spec->vocab < 1 || spec->vocab > INT32_MAX)
            return err_set(ERR_ARGUMENT, "generated tokens need a vocabulary from 1 to 2^31-1");
        if (dataset->has_target && spec->classes > 0 && spec->classes < spec->vocab)
            return err_set(ERR_ARGUMENT, "generated tokens below %lld do not fit %lld classes",
                           (long long)spec->vocab, (long long)spec->classes);
        TRY(adapt_shape(spec, "generated", &given, &dataset->input_shape));
        spec->context = shape_elements(&given);
        dataset->input_dtype = DTYPE_I32;
        dataset->target_shape = shape_1d(spec->context);
        return 0;
    }
    if (spec->classes < 1 || spec->classes > INT32_MAX)
        return err_set(ERR_ARGUMENT, "generated clusters need a number of classes, 1 to 2^31-1");
    dataset->input_dtype = DTYPE_F32;
    if (!dataset->has_input)
        return 0;
    if (spec->shape.n_dims < 1 || shape_elements(&spec->shape) < 1)
        return err_set(ERR_ARGUMENT, "generated clusters need an input shape");
    dataset->input_shape = spec->shape;
    return check_normalization(spec, "generated", &spec->shape);
}

static int open_kind(Dataset *dataset) {
    switch (dataset->spec.kind) {
    case DATA_IDX:
    case DATA_NPY:
        return open_arrays(dataset);
    case DATA_TOKENS:
        return open_tokens(dataset);
    case DATA_GENERATED:
        return open_generated(dataset);
    }
    return err_set(ERR_ARGUMENT, "%d is no kind of data set", (int)dataset->spec.kind);
}

static int finish_open(Dataset *dataset) {
    const DataSpec *spec = &dataset->spec;
    if (spec->samples < 0 || spec->samples > dataset->samples)
        return err_set(ERR_ARGUMENT, "%lld samples are asked of '%s', which has %lld",
                       (long long)spec->samples, spec->input_path, (long long)dataset->samples);
    if (spec->samples > 0)
        dataset->samples = spec->samples;
    dataset->input_elements = shape_elements(&dataset->input_shape);
    dataset->target_elements = shape_elements(&dataset->target_shape);
    return 0;
}

int dataset_open(const DataSpec *spec, bool want_input, bool want_target, Dataset **out_dataset) {
    Dataset *dataset = calloc(1, sizeof *dataset);
    if (!dataset)
        return err_set(ERR_MEMORY, "a data set");
    dataset->spec = *spec;
    dataset->has_input = want_input;
    dataset->has_target = want_target;
    int rc = open_kind(dataset);
    if (rc >= 0)
        rc = finish_open(dataset);
    if (rc < 0) {
        dataset_close(dataset);
        return rc;
    }
    *out_dataset = dataset;
    return 0;
}

void dataset_close(Dataset *dataset) {
    if (!dataset)
        return;
    dataset_array_done(&dataset->input);
    dataset_array_done(&dataset->target);
    dataset_tokens_done(&dataset->tokens);
    free(dataset->table);
    free(dataset);
}

/* ---- marks ---- */

void dataset_marks(const Dataset *dataset, DataMark out_marks[DATA_MAX_FILES]) {
    bool tokens = dataset->spec.kind == DATA_TOKENS;
    out_marks[0] = tokens ? dataset->tokens.file.mark : dataset->input.file.mark;
    out_marks[1] = dataset->target.file.mark;
}

int dataset_check_files(const Dataset *dataset) {
    const DataSpec *spec = &dataset->spec;
    TRY(dataset_file_check(&dataset->tokens.file, spec->input_path));
    TRY(dataset_file_check(&dataset->input.file, spec->input_path));
    return dataset_file_check(&dataset->target.file, spec->target_path);
}

/* ---- forms ---- */

int64_t dataset_samples(const Dataset *dataset) {
    return dataset->samples;
}

int dataset_input_form(const Dataset *dataset, DType *out_dtype, Shape *out_shape) {
    if (!dataset->has_input)
        return err_set(ERR_ARGUMENT, "the data set was opened without its input");
    *out_dtype = dataset->input_dtype;
    *out_shape = dataset->input_shape;
    return 0;
}

int dataset_target_form(const Dataset *dataset, Shape *out_shape) {
    if (!dataset->has_target)
        return err_set(ERR_ARGUMENT, "the data set was opened without its target");
    *out_shape = dataset->target_shape;
    return 0;
}

/* ---- reading ---- */

static int check_sample(const Dataset *dataset, bool has_half, const char *half, int64_t sample) {
    if (!has_half)
        return err_set(ERR_ARGUMENT, "the data set was opened without its %s", half);
    if (sample < 0 || sample >= dataset->samples)
        return err_set(ERR_ARGUMENT, "sample %lld is asked of %lld", (long long)sample,
                       (long long)dataset->samples);
    return 0;
}

/* Channels lie one after the other, each an equal part of the sample. */
static void read_bytes(const Dataset *dataset, int64_t sample, float *out) {
    int64_t n_channels = dataset->spec.n_channels > 0 ? dataset->spec.n_channels : 1;
    int64_t plane = dataset->input_elements / n_channels;
    const uint8_t *from = dataset->input.data + sample * dataset->input_elements;
    for (int64_t c = 0; c < n_channels; c++) {
        const float *table = dataset->table + c * N_BYTE_VALUES;
        for (int64_t i = c * plane; i < (c + 1) * plane; i++)
            out[i] = table[from[i]];
    }
}

static void normalize(const Dataset *dataset, float *out) {
    const DataSpec *spec = &dataset->spec;
    int64_t plane = spec->n_channels > 0 ? dataset->input_elements / spec->n_channels : 0;
    for (int32_t c = 0; c < spec->n_channels; c++) {
        for (int64_t i = c * plane; i < (c + 1) * plane; i++)
            out[i] = (out[i] - spec->mean[c]) / spec->std[c];
    }
}

int dataset_read_input(const Dataset *dataset, int64_t sample, void *out) {
    const DataSpec *spec = &dataset->spec;
    TRY(check_sample(dataset, dataset->has_input, "input", sample));
    if (spec->kind == DATA_TOKENS)
        return dataset_tokens_read(&dataset->tokens, spec, sample, 0, out);
    if (spec->kind == DATA_GENERATED && spec->generated_tokens) {
        dataset_generated_tokens(spec, sample, spec->context, 0, out);
        return 0;
    }
    if (dataset->table) {
        read_bytes(dataset, sample, out);
        return 0;
    }
    if (spec->kind == DATA_GENERATED)
        dataset_generated_cluster(spec, sample, dataset->input_elements, out);
    else
        TRY(dataset_array_read_f32(&dataset->input, spec->input_path, sample, out));
    normalize(dataset, out);
    return 0;
}

static int read_labels(const Dataset *dataset, int64_t sample, int32_t *out) {
    const DataSpec *spec = &dataset->spec;
    TRY(dataset_array_read_i32(&dataset->target, spec->target_path, sample, out));
    for (int64_t i = 0; i < dataset->target_elements; i++) {
        bool ignored = spec->has_ignore && out[i] == spec->ignore_index;
        if ((out[i] < 0 || out[i] >= spec->classes) && !ignored)
            return err_set(ERR_FORMAT,
                           "'%s': sample %lld, position %lld: target %d is not in [0, %lld)",
                           spec->target_path, (long long)sample, (long long)i, out[i],
                           (long long)spec->classes);
    }
    return 0;
}

int dataset_read_target(const Dataset *dataset, int64_t sample, int32_t *out) {
    const DataSpec *spec = &dataset->spec;
    TRY(check_sample(dataset, dataset->has_target, "target", sample));
    if (spec->kind == DATA_TOKENS)
        return dataset_tokens_read(&dataset->tokens, spec, sample, 1, out);
    if (spec->kind == DATA_GENERATED && spec->generated_tokens)
        dataset_generated_tokens(spec, sample, spec->context, 1, out);
    else if (spec->kind == DATA_GENERATED)
        out[0] = dataset_generated_class(spec, sample);
    else
        return read_labels(dataset, sample, out);
    return 0;
}
