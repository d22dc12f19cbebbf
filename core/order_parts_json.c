/* The parts of a Stage order that the job file and the resolved job have too: data, update, plan.
 * Writers leave out what a kind does not know, so what is written reads back strictly. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/order.h"
#include "core/order_json.h"
#include "core/program.h"
#include "core/text.h"

#define N_OF(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Writing is sticky: when memory runs out the tree is freed, and everything after does nothing. */
void order_put(cJSON **object, const char *key, cJSON *take_value) {
    if (*object && take_value && cJSON_AddItemToObject(*object, key, take_value))
        return;
    cJSON_Delete(take_value);
    cJSON_Delete(*object);
    *object = NULL;
}

void order_put_number(cJSON **object, const char *key, double value) {
    order_put(object, key, cJSON_CreateNumber(value));
}

void order_put_text(cJSON **object, const char *key, const char *text) {
    order_put(object, key, cJSON_CreateString(text));
}

void order_put_bool(cJSON **object, const char *key, bool value) {
    order_put(object, key, cJSON_CreateBool(value));
}

/* A seed has 64 bits; JSON numbers are exact to 2^53 only, so larger ones are text. */
void order_put_seed(cJSON **object, const char *key, uint64_t seed) {
    char digits[24];
    if (seed <= (uint64_t)ORDER_MAX_EXACT) {
        order_put_number(object, key, (double)seed);
        return;
    }
    char *at = digits + sizeof digits;
    *--at = '\0';
    for (; seed > 0; seed /= 10)
        *--at = (char)('0' + (int)(seed % 10));
    order_put_text(object, key, at);
}

static bool seed_of_text(const char *text, uint64_t *out_seed) {
    uint64_t seed = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(seed, 10u, &seed) ||
            __builtin_add_overflow(seed, (unsigned)(*text - '0'), &seed))
            return false;
    }
    *out_seed = seed;
    return true;
}

int order_opt_seed(JsonObject *object, const char *key, uint64_t *out_seed) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    int present = json_opt(object, key, &value, path);
    if (present <= 0)
        return present;
    double number = cJSON_IsNumber(value) ? value->valuedouble : -1.0;
    if (number >= 0 && number <= (double)ORDER_MAX_EXACT && floor(number) == number) {
        *out_seed = (uint64_t)number;
        return 1;
    }
    if (cJSON_IsString(value) && seed_of_text(value->valuestring, out_seed))
        return 1;
    return err_set(ERR_FORMAT,
                   "%s: expected a whole number from 0 to 2^53 - 1, or one below 2^64 as text",
                   path);
}

int order_copy_string(JsonObject *object, const char *key, bool required, char *out_text,
                      size_t text_bytes) {
    const char *text = NULL;
    int present = json_opt_string(object, key, &text);
    if (present == 0 && required)
        present = json_get_string(object, key, &text); /* the error of a missing key */
    if (present < 0 || !text)
        return present;
    if (strlen(text) >= text_bytes)
        return err_set(ERR_LIMIT, "%s.%s: %zu characters, at most %zu are allowed", object->path,
                       key, strlen(text), text_bytes - 1);
    memcpy(out_text, text, strlen(text) + 1);
    return 0;
}

/* ---- update ---- */

static const char *const update_names[] = {"sgd", "adamw"};
static const char *const lr_names[] = {"constant", "cosine", "linear", "step"};
static const char *const nonfinite_names[] = {"skip", "stop"};

enum { FOR_SGD = 1 << UPDATE_SGD, FOR_ADAMW = 1 << UPDATE_ADAMW, FOR_BOTH = FOR_SGD | FOR_ADAMW };

typedef struct UpdateField {
    const char *key;
    size_t offset; /* of a double in UpdateSpec */
    int kinds;     /* bits: which kinds know it */
    double min, max, value;
    bool open; /* max itself is not allowed */
} UpdateField;

static const UpdateField update_fields[] = {
    {"momentum", offsetof(UpdateSpec, momentum), FOR_SGD, 0, 1, 0, true},
    {"beta1", offsetof(UpdateSpec, beta1), FOR_ADAMW, 0, 1, 0.9, true},
    {"beta2", offsetof(UpdateSpec, beta2), FOR_ADAMW, 0, 1, 0.999, true},
    {"eps", offsetof(UpdateSpec, eps), FOR_ADAMW, 0, 1, 1e-8, true},
    {"weight_decay", offsetof(UpdateSpec, weight_decay), FOR_SGD, 0, 1e6, 0, false},
    {"weight_decay", offsetof(UpdateSpec, weight_decay), FOR_ADAMW, 0, 1e6, 0.01, false},
    {"clip_norm", offsetof(UpdateSpec, clip_norm), FOR_BOTH, 0, 1e30, 0, false},
};

static double *update_value(UpdateSpec *update, const UpdateField *field) {
    return (double *)(void *)((char *)update + field->offset);
}

static int parse_lr(JsonObject *update, UpdateSpec *out_update) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    TRY(json_get_f64(update, "lr", 0, 1e9, &out_update->lr));
    int present = json_opt(update, "schedule", &value, path);
    if (present <= 0)
        return present;
    JsonObject object;
    int kind = LR_CONSTANT;
    TRY(json_object(value, path, &object));
    TRY(json_get_choice(&object, "kind", lr_names, N_OF(lr_names), &kind));
    out_update->schedule = (LrKind)kind;
    TRY(json_opt_i64(&object, "warmup_steps", 0, ORDER_MAX_COUNT, &out_update->warmup_steps));
    if (kind == LR_COSINE || kind == LR_LINEAR)
        TRY(json_opt_f64(&object, "final_lr", 0, 1e9, &out_update->final_lr));
    if (kind == LR_STEP) {
        TRY(json_get_i64(&object, "every", 1, ORDER_MAX_COUNT, &out_update->decay_every));
        TRY(json_get_f64(&object, "factor", 0, 1e9, &out_update->decay_factor));
    }
    return json_end(&object);
}

static int parse_update_fields(JsonObject *object, UpdateSpec *update) {
    for (int i = 0; i < N_OF(update_fields); i++) {
        const UpdateField *field = &update_fields[i];
        double *value = update_value(update, field);
        if (!(field->kinds & 1 << update->kind))
            continue;
        *value = field->value;
        TRY(json_opt_f64(object, field->key, field->min, field->max, value));
        if (field->open && *value >= field->max)
            return err_set(ERR_ARGUMENT, "%s.%s: %g is not below %g", object->path, field->key,
                           *value, field->max);
    }
    return 0;
}

int order_parse_update(const cJSON *value, const char *path, UpdateSpec *out_update) {
    UpdateSpec update;
    memset(&update, 0, sizeof update);
    JsonObject object;
    int kind = UPDATE_SGD;
    int nonfinite = 0;
    TRY(json_object(value, path, &object));
    TRY(json_get_choice(&object, "kind", update_names, N_OF(update_names), &kind));
    update.kind = (UpdateKind)kind;
    TRY(parse_lr(&object, &update));
    TRY(parse_update_fields(&object, &update));
    if (kind == UPDATE_SGD)
        TRY(json_opt_bool(&object, "nesterov", &update.nesterov));
    TRY(json_opt_choice(&object, "on_nonfinite", nonfinite_names, N_OF(nonfinite_names),
                        &nonfinite));
    update.stop_on_nonfinite = nonfinite == 1;
    TRY(json_end(&object));
    if (update.nesterov && update.momentum == 0)
        return err_set(ERR_ARGUMENT, "%s.nesterov: needs a momentum above 0", object.path);
    *out_update = update;
    return 0;
}

static cJSON *lr_to_json(const UpdateSpec *update) {
    cJSON *object = cJSON_CreateObject();
    order_put_text(&object, "kind", lr_names[update->schedule]);
    order_put_number(&object, "warmup_steps", (double)update->warmup_steps);
    if (update->schedule == LR_COSINE || update->schedule == LR_LINEAR)
        order_put_number(&object, "final_lr", update->final_lr);
    if (update->schedule == LR_STEP) {
        order_put_number(&object, "every", (double)update->decay_every);
        order_put_number(&object, "factor", update->decay_factor);
    }
    return object;
}

cJSON *order_update_to_json(const UpdateSpec *update) {
    UpdateSpec copy = *update;
    cJSON *object = cJSON_CreateObject();
    order_put_text(&object, "kind", update_names[update->kind]);
    order_put_number(&object, "lr", update->lr);
    order_put(&object, "schedule", lr_to_json(update));
    for (int i = 0; i < N_OF(update_fields); i++) {
        if (update_fields[i].kinds & 1 << update->kind)
            order_put_number(&object, update_fields[i].key,
                             *update_value(&copy, &update_fields[i]));
    }
    if (update->kind == UPDATE_SGD)
        order_put_bool(&object, "nesterov", update->nesterov);
    order_put_text(&object, "on_nonfinite", nonfinite_names[update->stop_on_nonfinite]);
    return object;
}

/* ---- data ---- */

static const char *const data_names[] = {"idx", "npy", "tokens", "generated"};
static const char *const token_names[] = {"U8", "U16", "I32", "U32"};
static const DType token_dtypes[] = {DTYPE_U8, DTYPE_U16, DTYPE_I32, DTYPE_U32};

static int parse_floats(JsonObject *object, const char *key, float *out, int *out_n) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    int present = json_opt(object, key, &value, path);
    if (present <= 0)
        return present;
    if (!cJSON_IsArray(value) || cJSON_GetArraySize(value) > ORDER_MAX_CHANNELS)
        return err_set(ERR_FORMAT, "%s: expected an array of at most %d numbers", path,
                       ORDER_MAX_CHANNELS);
    int n = 0;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, value) {
        if (!cJSON_IsNumber(item) || !isfinite((float)item->valuedouble))
            return err_set(ERR_FORMAT, "%s[%d]: expected a number", path, n);
        out[n++] = (float)item->valuedouble;
    }
    *out_n = n;
    return 1;
}

static int parse_normalization(JsonObject *object, DataSpec *data) {
    int n_mean = 0;
    int n_std = 0;
    TRY(parse_floats(object, "mean", data->mean, &n_mean));
    TRY(parse_floats(object, "std", data->std, &n_std));
    if (n_mean != n_std)
        return err_set(ERR_ARGUMENT, "%s: mean has %d %s and std %d; they must be as many",
                       object->path, n_mean, text_plural(n_mean, "entry", "entries"), n_std);
    for (int i = 0; i < n_std; i++) {
        if (!(data->std[i] > 0))
            return err_set(ERR_ARGUMENT, "%s.std[%d]: %g is not above 0", object->path, i,
                           (double)data->std[i]);
    }
    data->n_channels = n_mean;
    return 0;
}

static int parse_data_kind(JsonObject *object, DataSpec *data) {
    int dtype = 1; /* U16 */
    switch (data->kind) {
    case DATA_IDX:
    case DATA_NPY:
        TRY(order_copy_string(object, "inputs", true, data->input_path, sizeof data->input_path));
        TRY(order_copy_string(object, "targets", true, data->target_path,
                              sizeof data->target_path));
        TRY(json_opt_i64(object, "samples", 0, ORDER_MAX_COUNT, &data->samples));
        return parse_normalization(object, data);
    case DATA_TOKENS:
        TRY(order_copy_string(object, "path", true, data->input_path, sizeof data->input_path));
        TRY(json_opt_choice(object, "dtype", token_names, N_OF(token_names), &dtype));
        data->token_dtype = token_dtypes[dtype];
        TRY(json_get_i64(object, "context", 1, ORDER_MAX_COUNT, &data->context));
        return json_opt_i64(object, "samples", 0, ORDER_MAX_COUNT, &data->samples);
    case DATA_GENERATED:
        TRY(json_get_i64(object, "samples", 1, ORDER_MAX_COUNT, &data->samples));
        TRY(order_opt_seed(object, "seed", &data->seed));
        return json_opt_bool(object, "tokens", &data->generated_tokens);
    }
    return err_set(ERR_INTERNAL, "data kind %d", (int)data->kind);
}

int order_parse_data(const cJSON *value, const char *path, DataSpec *out_data) {
    DataSpec data;
    memset(&data, 0, sizeof data);
    JsonObject object;
    int kind = DATA_IDX;
    int64_t ignore = 0;
    TRY(json_object(value, path, &object));
    TRY(json_get_choice(&object, "kind", data_names, N_OF(data_names), &kind));
    data.kind = (DataKind)kind;
    TRY(parse_data_kind(&object, &data));
    int n_dims = 0;
    TRY(json_opt_i64_array(&object, "shape", 1, ORDER_MAX_COUNT, data.shape.dims, SHAPE_MAX_DIMS,
                           &n_dims));
    data.shape.n_dims = n_dims;
    if (shape_elements(&data.shape) < 0)
        return err_context(ERR_LIMIT, "%s.shape", object.path);
    TRY(json_opt_i64(&object, "vocab", 0, INT32_MAX, &data.vocab));
    TRY(json_opt_i64(&object, "classes", 0, INT32_MAX, &data.classes));
    int present = json_opt_i64(&object, "ignore_index", INT32_MIN, INT32_MAX, &ignore);
    TRY(present);
    data.has_ignore = present == 1;
    data.ignore_index = (int32_t)ignore;
    TRY(json_end(&object));
    *out_data = data;
    return 0;
}

static cJSON *floats_to_json(const float *values, int n) {
    double numbers[ORDER_MAX_CHANNELS];
    for (int i = 0; i < n; i++)
        numbers[i] = text_decimal_f32(values[i]);
    return cJSON_CreateDoubleArray(numbers, n);
}

static void put_data_kind(cJSON **object, const DataSpec *data) {
    switch (data->kind) {
    case DATA_IDX:
    case DATA_NPY:
        order_put_text(object, "inputs", data->input_path);
        order_put_text(object, "targets", data->target_path);
        if (data->n_channels > 0) {
            order_put(object, "mean", floats_to_json(data->mean, data->n_channels));
            order_put(object, "std", floats_to_json(data->std, data->n_channels));
        }
        break;
    case DATA_TOKENS:
        order_put_text(object, "path", data->input_path);
        order_put_text(object, "dtype", dtype_name(data->token_dtype));
        order_put_number(object, "context", (double)data->context);
        break;
    case DATA_GENERATED:
        order_put_seed(object, "seed", data->seed);
        order_put_bool(object, "tokens", data->generated_tokens);
        break;
    }
}

cJSON *order_data_to_json(const DataSpec *data) {
    cJSON *object = cJSON_CreateObject();
    order_put_text(&object, "kind", data_names[data->kind]);
    put_data_kind(&object, data);
    order_put_number(&object, "samples", (double)data->samples);
    if (data->shape.n_dims > 0) {
        double dims[SHAPE_MAX_DIMS];
        for (int i = 0; i < data->shape.n_dims; i++)
            dims[i] = (double)data->shape.dims[i];
        order_put(&object, "shape", cJSON_CreateDoubleArray(dims, data->shape.n_dims));
    }
    if (data->vocab > 0)
        order_put_number(&object, "vocab", (double)data->vocab);
    if (data->classes > 0)
        order_put_number(&object, "classes", (double)data->classes);
    if (data->has_ignore)
        order_put_number(&object, "ignore_index", (double)data->ignore_index);
    return object;
}

/* ---- marks ---- */

static int n_data_files(const DataSpec *data) {
    return data->kind == DATA_GENERATED ? 0 : data->kind == DATA_TOKENS ? 1 : 2;
}

static int parse_mark(const cJSON *value, const char *path, DataMark *out_mark) {
    JsonObject object;
    DataMark mark = {0};
    struct {
        const char *key;
        uint64_t *number;
    } all[] = {{"bytes", &mark.bytes}, {"modified_ns", &mark.modified_ns}, {"inode", &mark.inode}};
    TRY(json_object(value, path, &object));
    for (int i = 0; i < N_OF(all); i++) {
        int present = order_opt_seed(&object, all[i].key, all[i].number);
        TRY(present);
        if (!present)
            return err_set(ERR_FORMAT, "%s: the key '%s' is missing", path, all[i].key);
    }
    TRY(json_end(&object));
    if (mark.bytes == 0)
        return err_set(ERR_ARGUMENT, "%s.bytes: must not be 0", path);
    *out_mark = mark;
    return 0;
}

int order_opt_marks(JsonObject *object, const char *key, DataSpec *data) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    char place[JSON_PATH_BYTES + 16];
    int n = n_data_files(data);
    int present = json_opt(object, key, &value, path);
    if (present <= 0)
        return present;
    if (!cJSON_IsArray(value) || cJSON_GetArraySize(value) != n)
        return err_set(ERR_FORMAT, "%s: expected an array of %d, one a file of the data", path, n);
    for (int i = 0; i < n; i++) {
        snprintf(place, sizeof place, "%s[%d]", path, i);
        TRY(parse_mark(cJSON_GetArrayItem(value, i), place, &data->marks[i]));
    }
    return 1;
}

void order_put_marks(cJSON **object, const char *key, const DataSpec *data) {
    int n = n_data_files(data);
    for (int i = 0; i < n; i++) {
        if (data->marks[i].bytes == 0)
            return;
    }
    if (n == 0)
        return;
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; array && i < n; i++) {
        cJSON *mark = cJSON_CreateObject();
        order_put_seed(&mark, "bytes", data->marks[i].bytes);
        order_put_seed(&mark, "modified_ns", data->marks[i].modified_ns);
        order_put_seed(&mark, "inode", data->marks[i].inode);
        if (mark && cJSON_AddItemToArray(array, mark))
            continue;
        cJSON_Delete(mark);
        cJSON_Delete(array);
        array = NULL;
    }
    order_put(object, key, array);
}

/* ---- plan ---- */

static int parse_int_array(JsonObject *object, const char *key, int64_t max, int32_t n_expected,
                           int32_t **out_values, int32_t *out_n) {
    int64_t *wide = malloc(STAGE_MAX * sizeof *wide);
    int32_t *values = NULL;
    int n = 0;
    int rc = wide ? 0 : err_set(ERR_MEMORY, "the stages of a plan");
    if (rc < 0)
        return rc;
    TRY_DONE(json_get_i64_array(object, key, 1, max, wide, STAGE_MAX, &n));
    if (n == 0 || (n_expected > 0 && n != n_expected)) {
        rc = err_set(ERR_ARGUMENT, "%s.%s: %d entries, expected one a stage (%d)", object->path,
                     key, n, n_expected > 0 ? n_expected : 1);
        goto done;
    }
    values = malloc((size_t)n * sizeof *values);
    if (!values) {
        rc = err_set(ERR_MEMORY, "the stages of a plan");
        goto done;
    }
    for (int i = 0; i < n; i++)
        values[i] = (int32_t)wide[i];
    *out_values = values;
    *out_n = n;
done:
    free(wide);
    return rc < 0 ? rc : 0;
}

static int parse_recompute(JsonObject *object, PlanSpec *plan) {
    const cJSON *value = NULL;
    const cJSON *item = NULL;
    char path[JSON_PATH_BYTES];
    plan->recompute = calloc((size_t)plan->n_stages, sizeof *plan->recompute);
    if (!plan->recompute)
        return err_set(ERR_MEMORY, "the stages of a plan");
    TRY(json_get(object, "recompute", &value, path));
    if (!cJSON_IsArray(value) || cJSON_GetArraySize(value) != plan->n_stages)
        return err_set(ERR_FORMAT, "%s: expected an array of %d true or false, one a stage", path,
                       plan->n_stages);
    int n = 0;
    cJSON_ArrayForEach(item, value) {
        if (!cJSON_IsBool(item))
            return err_set(ERR_FORMAT, "%s[%d]: expected true or false", path, n);
        plan->recompute[n++] = cJSON_IsTrue(item) != 0;
    }
    return 0;
}

static int parse_reduce(JsonObject *plan, ReduceSpec *out_spec) {
    ReduceSpec spec = {0};
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    JsonObject object;
    int form = 0;
    int wire = 0;
    TRY(json_get(plan, "reduce", &value, path));
    TRY(json_object(value, path, &object));
    TRY(json_get_choice(&object, "form", reduction_form_names, REDUCE_N_FORMS, &form));
    TRY(json_get_choice(&object, "wire", reduction_wire_names, REDUCE_N_WIRES, &wire));
    TRY(json_get_i64(&object, "chunk_bytes", 0, REDUCE_MAX_CHUNK_BYTES, &spec.chunk_bytes));
    TRY(json_get_i64(&object, "latency_us", 0, INT32_MAX, &spec.latency_us));
    TRY(json_get_i64(&object, "rate_bytes_per_s", 0, INT64_C(1) << 50, &spec.rate_bytes_per_s));
    TRY(json_get_bool(&object, "store_adds", &spec.store_adds));
    spec.form = (ReduceForm)form;
    spec.wire = (ReduceWire)wire;
    *out_spec = spec;
    return json_end(&object);
}

static cJSON *reduce_to_json(const ReduceSpec *spec) {
    cJSON *object = cJSON_CreateObject();
    order_put_text(&object, "form", reduction_form_names[spec->form]);
    order_put_text(&object, "wire", reduction_wire_names[spec->wire]);
    order_put_number(&object, "chunk_bytes", (double)spec->chunk_bytes);
    order_put_number(&object, "latency_us", (double)spec->latency_us);
    order_put_number(&object, "rate_bytes_per_s", (double)spec->rate_bytes_per_s);
    order_put_bool(&object, "store_adds", spec->store_adds);
    return object;
}

static int parse_plan(JsonObject *object, PlanSpec *plan) {
    int64_t warmup = 0;
    int64_t micro_rows = 0;
    int64_t n_micro = 0;
    int64_t threads = 0;
    int32_t n = 0;
    TRY(parse_int_array(object, "ends", MODEL_MAX_LAYERS, 0, &plan->ends, &plan->n_stages));
    TRY(parse_int_array(object, "replicas", ORDER_MAX_REPLICAS, plan->n_stages, &plan->replicas,
                        &n));
    TRY(parse_recompute(object, plan));
    TRY(order_copy_string(object, "schedule", true, plan->schedule, sizeof plan->schedule));
    TRY(json_get_i64(object, "warmup", 0, PROGRAM_MAX_MICRO, &warmup));
    TRY(json_get_i64(object, "micro_rows", 1, INT32_MAX, &micro_rows));
    TRY(json_get_i64(object, "n_micro", 1, PROGRAM_MAX_MICRO, &n_micro));
    TRY(json_get_i64(object, "threads", 1, 4096, &threads));
    TRY(order_copy_string(object, "device", true, plan->device, sizeof plan->device));
    TRY(order_copy_string(object, "isa", true, plan->isa, sizeof plan->isa));
    TRY(parse_reduce(object, &plan->reduce));
    plan->warmup = (int32_t)warmup;
    plan->micro_rows = (int32_t)micro_rows;
    plan->n_micro = (int32_t)n_micro;
    plan->threads = (int32_t)threads;
    for (int32_t i = 1; i < plan->n_stages; i++) {
        if (plan->ends[i] <= plan->ends[i - 1])
            return err_set(ERR_ARGUMENT, "%s.ends[%d]: %d does not come after %d", object->path, i,
                           plan->ends[i], plan->ends[i - 1]);
    }
    return json_end(object);
}

int order_parse_plan(const cJSON *value, const char *path, PlanSpec *out_plan) {
    JsonObject object;
    PlanSpec plan;
    memset(&plan, 0, sizeof plan);
    TRY(json_object(value, path, &object));
    int rc = parse_plan(&object, &plan);
    if (rc < 0)
        order_plan_done(&plan);
    else
        *out_plan = plan;
    return rc;
}

static cJSON *bools_to_json(const bool *values, int32_t n) {
    cJSON *array = cJSON_CreateArray();
    for (int32_t i = 0; array && i < n; i++) {
        cJSON *item = cJSON_CreateBool(values[i]);
        if (item && cJSON_AddItemToArray(array, item))
            continue;
        cJSON_Delete(item);
        cJSON_Delete(array);
        array = NULL;
    }
    return array;
}

cJSON *order_plan_to_json(const PlanSpec *plan) {
    cJSON *object = cJSON_CreateObject();
    order_put(&object, "ends", cJSON_CreateIntArray(plan->ends, plan->n_stages));
    order_put(&object, "replicas", cJSON_CreateIntArray(plan->replicas, plan->n_stages));
    order_put(&object, "recompute", bools_to_json(plan->recompute, plan->n_stages));
    order_put_text(&object, "schedule", plan->schedule);
    order_put_number(&object, "warmup", plan->warmup);
    order_put_number(&object, "micro_rows", plan->micro_rows);
    order_put_number(&object, "n_micro", plan->n_micro);
    order_put_number(&object, "threads", plan->threads);
    order_put_text(&object, "device", plan->device);
    order_put_text(&object, "isa", plan->isa);
    order_put(&object, "reduce", reduce_to_json(&plan->reduce));
    return object;
}
