/* Writing the resolved job file. */
#include <stdio.h>

#include "coordinator/config_parts.h"
#include "core/text.h"

/* Sticky: when something cannot be had the tree is freed, and later calls do nothing. */
static void put(cJSON **object, const char *key, cJSON *take_value) {
    if (*object && take_value && cJSON_AddItemToObject(*object, key, take_value))
        return;
    cJSON_Delete(take_value);
    cJSON_Delete(*object);
    *object = NULL;
}

static void put_number(cJSON **object, const char *key, int64_t value) {
    put(object, key, cJSON_CreateNumber((double)value));
}

static void put_text(cJSON **object, const char *key, const char *text) {
    put(object, key, cJSON_CreateString(text));
}

static void put_ms(cJSON **object, const char *key, int64_t ms) {
    char text[32];
    put_text(object, key, text_exact_duration(ms, text, sizeof text));
}

static cJSON *data_to_json(const Order *order) {
    cJSON *object = cJSON_CreateObject();
    put(&object, "train", order_data_to_json(&order->train));
    if (order->has_eval)
        put(&object, "eval", order_data_to_json(&order->eval));
    return object;
}

static cJSON *save_to_json(const JobConfig *config) {
    cJSON *object = cJSON_CreateObject();
    if (config->order.save_every > 0)
        put_number(&object, "every_steps", config->order.save_every);
    if (config->save_every_ms > 0)
        put_ms(&object, "every", config->save_every_ms);
    put_number(&object, "keep_last", config->keep_last);
    return object;
}

static cJSON *evaluate_to_json(const Order *order) {
    cJSON *object = cJSON_CreateObject();
    if (order->eval_every > 0)
        put_number(&object, "every_steps", order->eval_every);
    if (order->eval.samples > 0) /* counted, or given */
        put_number(&object, "samples", order->eval_samples);
    return object;
}

static cJSON *platform_to_json(const JobConfig *config) {
    cJSON *object = cJSON_CreateObject();
    put_text(&object, "kind", "local");
    put_number(&object, "workers", config->max_workers);
    return object;
}

static cJSON *timeouts_to_json(const JobConfig *config) {
    cJSON *object = cJSON_CreateObject();
    put_ms(&object, "wait", config->order.wait_timeout_ms);
    put_ms(&object, "heartbeat", config->order.heartbeat_ms);
    put_ms(&object, "start", config->start_timeout_ms);
    put_ms(&object, "silence", config->silence_ms);
    put_ms(&object, "stop", config->stop_timeout_ms);
    return object;
}

static cJSON *limits_to_json(const JobConfig *config) {
    char bytes[32];
    cJSON *object = cJSON_CreateObject();
    put_number(&object, "restarts", config->max_restarts);
    put_text(&object, "relay", text_exact_bytes(config->relay_limit_bytes, bytes, sizeof bytes));
    return object;
}

static cJSON *seed_to_json(uint64_t seed) {
    char digits[24];
    if (seed < UINT64_C(1) << 53)
        return cJSON_CreateNumber((double)seed);
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)seed);
    return cJSON_CreateString(digits);
}

cJSON *config_to_json(const JobConfig *config) {
    const Order *order = &config->order;
    cJSON *root = cJSON_CreateObject();
    put_number(&root, "version", CONFIG_VERSION);
    put_text(&root, "name", order->job);
    put(&root, "data", data_to_json(order));
    put_number(&root, "batch", order->batch);
    put_number(&root, "micro_batch", order->plan.micro_rows);
    put_number(&root, "steps", order->n_steps);
    put(&root, "update", order_update_to_json(&order->update));
    put(&root, "seed", seed_to_json(order->seed));
    put(&root, "shuffle", cJSON_CreateBool(order->shuffle));
    put(&root, "save", save_to_json(config));
    if (order->has_eval)
        put(&root, "evaluate", evaluate_to_json(order));
    put(&root, "plan", config_plan_to_json(&config->plan));
    put(&root, "platform", platform_to_json(config));
    put_text(&root, "relay", config->relay);
    put(&root, "timeouts", timeouts_to_json(config));
    put(&root, "limits", limits_to_json(config));
    put(&root, "model", model_to_json(&order->model));
    return root;
}
