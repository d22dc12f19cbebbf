#include "core/order_json.h"

#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/stage.h"
#include "core/text.h"

enum { ORDER_VERSION = 1 };

typedef struct IntField {
    const char *key;
    size_t offset; /* of an int64_t, or an int32_t when narrow */
    bool narrow;
    int64_t min, max;
} IntField;

#define WIDE(name, min, max)                                                                       \
    { #name, offsetof(Order, name), false, min, max }
#define NARROW(name, min, max)                                                                     \
    { #name, offsetof(Order, name), true, min, max }
static const IntField int_fields[] = {
    WIDE(generation, 0, ORDER_MAX_COUNT),      WIDE(attempt, 0, ORDER_MAX_COUNT),
    NARROW(stage, 0, STAGE_MAX - 1),           NARROW(replica, 0, ORDER_MAX_REPLICAS - 1),
    WIDE(train_samples, 1, ORDER_MAX_COUNT),   WIDE(eval_samples, 0, ORDER_MAX_COUNT),
    WIDE(batch, 1, ORDER_MAX_COUNT),           WIDE(n_steps, 1, ORDER_MAX_COUNT),
    WIDE(first_step, 0, ORDER_MAX_COUNT),      WIDE(end_step, 0, ORDER_MAX_COUNT),
    WIDE(save_every, 0, ORDER_MAX_COUNT),      WIDE(eval_every, 0, ORDER_MAX_COUNT),
    WIDE(wait_timeout_ms, 1, ORDER_MAX_COUNT), WIDE(heartbeat_ms, 1, ORDER_MAX_COUNT),
};

typedef struct TextField {
    const char *key;
    size_t offset, bytes;
} TextField;

#define TEXT(name)                                                                                 \
    { #name, offsetof(Order, name), sizeof(((Order *)0)->name) }
static const TextField text_fields[] = {TEXT(job), TEXT(relay_url), TEXT(store_path),
                                        TEXT(resume_path), TEXT(trace_path)};

typedef struct BoolField {
    const char *key;
    size_t offset;
} BoolField;

static const BoolField bool_fields[] = {{"shuffle", offsetof(Order, shuffle)},
                                        {"eval_only", offsetof(Order, eval_only)}};

#define N_OF(array) (sizeof(array) / sizeof(array)[0])

static int check_place(const Order *order, const char *path) {
    const PlanSpec *plan = &order->plan;
    if (order->stage >= plan->n_stages)
        return err_set(ERR_ARGUMENT, "%s.stage: %d, but the plan has %d stages", path, order->stage,
                       plan->n_stages);
    if (order->replica >= plan->replicas[order->stage])
        return err_set(ERR_ARGUMENT, "%s.replica: %d, but stage %d has %d replicas", path,
                       order->replica, order->stage, plan->replicas[order->stage]);
    int64_t n_micro = order->batch / plan->micro_rows + (order->batch % plan->micro_rows != 0);
    if (n_micro != plan->n_micro)
        return err_set(ERR_ARGUMENT,
                       "%s.plan.n_micro: %d, but a batch of %lld in micro-batches of %d rows has "
                       "%lld",
                       path, plan->n_micro, (long long)order->batch, plan->micro_rows,
                       (long long)n_micro);
    int rc = stage_check_cut(&order->model, plan->ends, plan->n_stages);
    return rc < 0 ? err_context(rc, "%s.plan.ends", path) : 0;
}

static int check_work(const Order *order, const char *path) {
    if (order->first_step > order->end_step || order->end_step > order->n_steps)
        return err_set(ERR_ARGUMENT, "%s: the slice [%lld, %lld) does not lie in the %lld steps",
                       path, (long long)order->first_step, (long long)order->end_step,
                       (long long)order->n_steps);
    if (!order->resume_path[0] && order->first_step > 0)
        return err_set(ERR_ARGUMENT, "%s.first_step: %lld, but without resume_path it must be 0",
                       path, (long long)order->first_step);
    if (!order->eval_only && !order->program)
        return err_set(ERR_ARGUMENT, "%s.program: missing", path);
    if (order->has_eval && !order->eval_program)
        return err_set(ERR_ARGUMENT, "%s.eval_program: missing, but there is evaluation data",
                       path);
    if (order->has_eval && order->eval_samples < 1)
        return err_set(ERR_ARGUMENT, "%s.eval_samples: 0, but there is evaluation data", path);
    if (order->eval_only && !order->has_eval)
        return err_set(ERR_ARGUMENT, "%s.eval_only: needs evaluation data (\"eval\")", path);
    return 0;
}

/* JSON would carry another text. */
static int check_utf8(const char *text, const char *path, const char *key) {
    return text_is_utf8(text, strlen(text))
               ? 0
               : err_set(ERR_ARGUMENT, "%s.%s: '%s' is not valid UTF-8", path, key, text);
}

static int check_texts(const Order *order, const char *path) {
    for (size_t i = 0; i < N_OF(text_fields); i++)
        TRY(check_utf8((const char *)order + text_fields[i].offset, path, text_fields[i].key));
    TRY(check_utf8(order->train.input_path, path, "train"));
    TRY(check_utf8(order->train.target_path, path, "train"));
    TRY(check_utf8(order->eval.input_path, path, "eval"));
    return check_utf8(order->eval.target_path, path, "eval");
}

/* Ranges that parsing has checked already are checked here for orders built in memory. */
static int check_order(const Order *order, const char *path) {
    for (size_t i = 0; i < N_OF(int_fields); i++) {
        const IntField *field = &int_fields[i];
        const char *at = (const char *)order + field->offset;
        int64_t value =
            field->narrow ? *(const int32_t *)(const void *)at : *(const int64_t *)(const void *)at;
        if (value < field->min || value > field->max)
            return err_set(ERR_ARGUMENT, "%s.%s: %lld is not from %lld to %lld", path, field->key,
                           (long long)value, (long long)field->min, (long long)field->max);
    }
    TRY(check_texts(order, path));
    int rc = text_check_name("job name", order->job, sizeof order->job - 1);
    if (rc < 0)
        return err_context(rc, "%s.job", path);
    if (order->plan.n_stages < 1 || order->plan.micro_rows < 1)
        return err_set(ERR_ARGUMENT, "%s.plan: has no stages or no micro_rows", path);
    TRY(check_place(order, path));
    return check_work(order, path);
}

static int parse_flat(JsonObject *object, Order *order) {
    for (size_t i = 0; i < N_OF(int_fields); i++) {
        const IntField *field = &int_fields[i];
        int64_t value = 0;
        TRY(json_get_i64(object, field->key, field->min, field->max, &value));
        void *at = (char *)order + field->offset;
        if (field->narrow)
            *(int32_t *)at = (int32_t)value;
        else
            *(int64_t *)at = value;
    }
    for (size_t i = 0; i < N_OF(text_fields); i++) {
        const TextField *field = &text_fields[i];
        TRY(order_copy_string(object, field->key, true, (char *)order + field->offset,
                              field->bytes));
    }
    for (size_t i = 0; i < N_OF(bool_fields); i++)
        TRY(json_get_bool(object, bool_fields[i].key,
                          (bool *)(void *)((char *)order + bool_fields[i].offset)));
    return order_opt_seed(object, "seed", &order->seed);
}

static int copy_opt_text(JsonObject *object, const char *key, char **out_text) {
    const char *text = NULL;
    int present = json_opt_string(object, key, &text);
    if (present <= 0)
        return present;
    *out_text = strdup(text);
    return *out_text ? 0 : err_set(ERR_MEMORY, "%s.%s", object->path, key);
}

static int parse_parts(JsonObject *object, Order *order) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    TRY(json_get(object, "model", &value, path));
    TRY(model_parse(value, path, &order->model));
    TRY(json_get(object, "plan", &value, path));
    TRY(order_parse_plan(value, path, &order->plan));
    TRY(json_get(object, "train", &value, path));
    TRY(order_parse_data(value, path, &order->train));
    TRY(order_opt_marks(object, "train_marks", &order->train));
    int present = json_opt(object, "eval", &value, path);
    TRY(present);
    if (present) {
        TRY(order_parse_data(value, path, &order->eval));
        TRY(order_opt_marks(object, "eval_marks", &order->eval));
        order->has_eval = true;
    }
    TRY(json_get(object, "update", &value, path));
    TRY(order_parse_update(value, path, &order->update));
    TRY(copy_opt_text(object, "program", &order->program));
    return copy_opt_text(object, "eval_program", &order->eval_program);
}

static int parse_order(const cJSON *root, Order *order) {
    JsonObject object;
    int64_t version = 0;
    TRY(json_object(root, "$", &object));
    TRY(json_get_i64(&object, "version", 0, INT32_MAX, &version));
    if (version != ORDER_VERSION)
        return err_set(ERR_UNSUPPORTED, "$.version: order version %lld, this worker knows %d",
                       (long long)version, ORDER_VERSION);
    TRY(parse_flat(&object, order));
    TRY(parse_parts(&object, order));
    TRY(json_end(&object));
    return check_order(order, "$");
}

int order_parse(const char *what, const char *text, size_t bytes, Order *out_order) {
    cJSON *root = NULL;
    Order order;
    order_init(&order);
    TRY(json_parse(what, text, bytes, ORDER_MAX_BYTES, &root));
    int rc = parse_order(root, &order);
    cJSON_Delete(root);
    if (rc < 0) {
        order_done(&order);
        return err_context(rc, "%s", what);
    }
    *out_order = order;
    return 0;
}

static void put_flat(cJSON **root, const Order *order) {
    for (size_t i = 0; i < N_OF(int_fields); i++) {
        const char *at = (const char *)order + int_fields[i].offset;
        int64_t value = int_fields[i].narrow ? *(const int32_t *)(const void *)at
                                             : *(const int64_t *)(const void *)at;
        order_put_number(root, int_fields[i].key, (double)value);
    }
    for (size_t i = 0; i < N_OF(text_fields); i++)
        order_put_text(root, text_fields[i].key, (const char *)order + text_fields[i].offset);
    for (size_t i = 0; i < N_OF(bool_fields); i++)
        order_put_bool(root, bool_fields[i].key,
                       *(const bool *)(const void *)((const char *)order + bool_fields[i].offset));
    order_put_seed(root, "seed", order->seed);
}

int order_format(const Order *order, Buf *out_text) {
    TRY(check_order(order, "order"));
    cJSON *root = cJSON_CreateObject();
    order_put_number(&root, "version", ORDER_VERSION);
    put_flat(&root, order);
    order_put(&root, "plan", order_plan_to_json(&order->plan));
    order_put(&root, "train", order_data_to_json(&order->train));
    order_put_marks(&root, "train_marks", &order->train);
    if (order->has_eval) {
        order_put(&root, "eval", order_data_to_json(&order->eval));
        order_put_marks(&root, "eval_marks", &order->eval);
    }
    order_put(&root, "update", order_update_to_json(&order->update));
    if (order->program)
        order_put_text(&root, "program", order->program);
    if (order->eval_program)
        order_put_text(&root, "eval_program", order->eval_program);
    order_put(&root, "model", model_to_json(&order->model));
    if (!root)
        return err_set(ERR_MEMORY, "a stage order as JSON");
    int rc = json_format(root, false, out_text);
    cJSON_Delete(root);
    return rc < 0 ? rc : 0;
}
