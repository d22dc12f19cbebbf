/* The plan as JSON, and for people. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/plan.h"
#include "core/err.h"
#include "core/program.h"
#include "core/text.h"

enum { PLAN_VERSION = 1 };

static const char *const balance_names[] = {"given", "measured", "flops"};

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

static cJSON *worker_to_json(const PlanWorker *worker) {
    cJSON *object = cJSON_CreateObject();
    put_number(&object, "stage", worker->stage);
    put_number(&object, "replica", worker->replica);
    put(&object, "program", cJSON_CreateString(worker->program));
    if (worker->eval_program)
        put(&object, "eval_program", cJSON_CreateString(worker->eval_program));
    return object;
}

static cJSON *workers_to_json(const Plan *plan) {
    cJSON *array = cJSON_CreateArray();
    for (int32_t i = 0; array && i < plan->n_workers; i++) {
        cJSON *worker = worker_to_json(&plan->workers[i]);
        if (worker && cJSON_AddItemToArray(array, worker))
            continue;
        cJSON_Delete(worker);
        cJSON_Delete(array);
        array = NULL;
    }
    return array;
}

cJSON *plan_to_json(const Plan *plan) {
    cJSON *root = cJSON_CreateObject();
    put_number(&root, "version", PLAN_VERSION);
    put(&root, "balanced", cJSON_CreateString(balance_names[plan->balance]));
    put_number(&root, "save_every", plan->save_every);
    put_number(&root, "step_bytes", plan->step_bytes);
    put_number(&root, "held_bytes", plan->held_bytes);
    if (plan->stage_us)
        put(&root, "stage_us", cJSON_CreateDoubleArray(plan->stage_us, plan->spec.n_stages));
    put(&root, "plan", order_plan_to_json(&plan->spec));
    put(&root, "workers", workers_to_json(plan));
    return root;
}

/* ---- reading ---- */

static int copy_text(JsonObject *object, const char *key, bool required, char **out_text) {
    const char *text = NULL;
    int present = json_opt_string(object, key, &text);
    if (present == 0 && required)
        present = json_get_string(object, key, &text); /* the error of a missing key */
    if (present <= 0)
        return present;
    *out_text = strdup(text);
    return *out_text ? 0 : err_set(ERR_MEMORY, "%s.%s", object->path, key);
}

static int parse_worker(const cJSON *value, const char *path, const PlanSpec *spec,
                        PlanWorker *worker) {
    JsonObject object;
    int64_t stage = 0;
    int64_t replica = 0;
    TRY(json_object(value, path, &object));
    TRY(json_get_i64(&object, "stage", 0, spec->n_stages - 1, &stage));
    TRY(json_get_i64(&object, "replica", 0, spec->replicas[stage] - 1, &replica));
    TRY(copy_text(&object, "program", true, &worker->program));
    TRY(copy_text(&object, "eval_program", false, &worker->eval_program));
    worker->stage = (int32_t)stage;
    worker->replica = (int32_t)replica;
    return json_end(&object);
}

static int parse_workers(JsonObject *root, Plan *plan) {
    const cJSON *array = NULL;
    const cJSON *item = NULL;
    char path[JSON_PATH_BYTES];
    char item_path[JSON_PATH_BYTES + 16];
    int64_t n_expected = 0;
    for (int32_t i = 0; i < plan->spec.n_stages; i++)
        n_expected += plan->spec.replicas[i];
    TRY(json_get(root, "workers", &array, path));
    if (n_expected < 1 || !cJSON_IsArray(array) || cJSON_GetArraySize(array) != n_expected)
        return err_set(ERR_FORMAT, "%s: expected an array of %lld workers", path,
                       (long long)n_expected);
    plan->workers = calloc((size_t)n_expected, sizeof *plan->workers);
    if (!plan->workers)
        return err_set(ERR_MEMORY, "%s", path);
    plan->n_workers = (int32_t)n_expected;
    int32_t n = 0;
    cJSON_ArrayForEach(item, array) {
        snprintf(item_path, sizeof item_path, "%s[%d]", path, n);
        TRY(parse_worker(item, item_path, &plan->spec, &plan->workers[n]));
        if (plan_worker(plan, plan->workers[n].stage, plan->workers[n].replica) !=
            &plan->workers[n])
            return err_set(ERR_FORMAT, "%s: stage %d, replica %d stands there twice", item_path,
                           plan->workers[n].stage, plan->workers[n].replica);
        n++;
    }
    return 0;
}

static int parse_times(JsonObject *root, Plan *plan) {
    const cJSON *array = NULL;
    const cJSON *item = NULL;
    char path[JSON_PATH_BYTES];
    int present = json_opt(root, "stage_us", &array, path);
    if (present <= 0)
        return present;
    if (plan->spec.n_stages < 1 || !cJSON_IsArray(array) ||
        cJSON_GetArraySize(array) != plan->spec.n_stages)
        return err_set(ERR_FORMAT, "%s: expected an array of %d numbers", path,
                       plan->spec.n_stages);
    plan->stage_us = calloc((size_t)plan->spec.n_stages, sizeof *plan->stage_us);
    if (!plan->stage_us)
        return err_set(ERR_MEMORY, "%s", path);
    int32_t stage = 0;
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0))
            return err_set(ERR_FORMAT, "%s[%d]: expected a time", path, stage);
        plan->stage_us[stage++] = item->valuedouble;
    }
    return 0;
}

static int parse_root(const cJSON *value, const char *path, Plan *plan) {
    JsonObject root;
    const cJSON *spec = NULL;
    char spec_path[JSON_PATH_BYTES];
    int64_t version = 0;
    int balance = 0;
    const int64_t most = (INT64_C(1) << 53) - 1;
    TRY(json_object(value, path, &root));
    TRY(json_get_i64(&root, "version", 0, INT32_MAX, &version));
    if (version != PLAN_VERSION)
        return err_set(ERR_UNSUPPORTED, "%s.version: %lld, but this program reads version %d", path,
                       (long long)version, PLAN_VERSION);
    TRY(json_get_choice(&root, "balanced", balance_names, 3, &balance));
    plan->balance = (PlanBalance)balance;
    TRY(json_get_i64(&root, "save_every", 0, most, &plan->save_every));
    TRY(json_get_i64(&root, "step_bytes", 0, most, &plan->step_bytes));
    TRY(json_get_i64(&root, "held_bytes", 0, most, &plan->held_bytes));
    TRY(json_get(&root, "plan", &spec, spec_path));
    TRY(order_parse_plan(spec, spec_path, &plan->spec));
    TRY(parse_times(&root, plan));
    TRY(parse_workers(&root, plan));
    return json_end(&root);
}

int plan_parse(const cJSON *value, const char *path, Plan *out_plan) {
    Plan plan;
    memset(&plan, 0, sizeof plan);
    int rc = parse_root(value, path, &plan);
    if (rc < 0)
        plan_done(&plan);
    else
        *out_plan = plan;
    return rc;
}

/* ---- for people ---- */

static int describe_edges(const Model *model, const Stage *stage, int32_t micro_rows, Buf *text) {
    char forward[32];
    char back[32];
    for (int32_t i = 0; i < stage->n_out; i++) {
        const Edge *edge = &stage->out[i];
        int64_t there = stage_edge_bytes(model, edge, micro_rows, false);
        int64_t both = stage_edge_bytes(model, edge, micro_rows, edge->n_grads > 0);
        TRY(buf_printf(text, "  to stage %d: %s forward", edge->consumer,
                       text_format_bytes(there, forward, sizeof forward)));
        if (edge->n_grads > 0)
            TRY(buf_printf(text, ", %s back", text_format_bytes(both - there, back, sizeof back)));
        TRY(buf_text(text, " a micro-batch\n"));
    }
    return 0;
}

/* Elements of the stage's parameters of a role. */
static int64_t elements_of(const Model *model, const Stage *stage, ParamRole role) {
    int64_t n = 0;
    for (int32_t i = 0; i < stage->n_params; i++) {
        int32_t param = stage->params[i].param;
        n += model->params[param].role == role ? model_param_elements(model, param) : 0;
    }
    return n;
}

/* Micro-batch m goes to replica m mod R, so those from n_micro on have none. */
static int describe_idle(int32_t replicas, int32_t n_micro, Buf *text) {
    if (replicas <= n_micro)
        return 0;
    TRY(buf_text(text, "  nothing to do for "));
    if (replicas - n_micro == 1)
        TRY(buf_printf(text, "replica %d", n_micro));
    else
        TRY(buf_printf(text, "replicas %d to %d", n_micro, replicas - 1));
    return buf_printf(text, ": there %s only %d %s; take fewer replicas or a smaller micro_batch\n",
                      text_plural(n_micro, "is", "are"), n_micro,
                      text_plural(n_micro, "micro-batch", "micro-batches"));
}

static int describe_stage(const Plan *plan, const Model *model, const Stage *stage,
                          bool with_programs, Buf *text) {
    int32_t index = stage->index;
    int32_t replicas = plan->spec.replicas[index];
    int64_t n_buffers = elements_of(model, stage, PARAM_STATISTIC);
    TRY(buf_printf(text, "stage %d: layers %d to %d (%s .. %s), %lld parameters", index,
                   stage->first_layer, stage->end_layer - 1, model->layers[stage->first_layer].name,
                   model->layers[stage->end_layer - 1].name,
                   (long long)elements_of(model, stage, PARAM_WEIGHT)));
    if (n_buffers > 0)
        TRY(buf_printf(text, ", %lld in buffers", (long long)n_buffers));
    TRY(buf_printf(text, ", %d %s", replicas, text_plural(replicas, "replica", "replicas")));
    if (plan->stage_us)
        TRY(buf_printf(text, ", %.0f us a micro-batch", plan->stage_us[index]));
    TRY(buf_text(text, plan->spec.recompute[index] ? ", recomputes\n" : "\n"));
    TRY(describe_idle(replicas, plan->spec.n_micro, text));
    TRY(describe_edges(model, stage, plan->spec.micro_rows, text));
    for (int32_t i = 0; with_programs && i < plan->n_workers; i++) {
        const PlanWorker *worker = &plan->workers[i];
        if (worker->stage == index)
            TRY(buf_printf(text, "  %d.%d: %s\n", index, worker->replica, worker->program));
    }
    return 0;
}

/* "4 layers in 2 stages, cut as given": one stage is not cut. */
static int describe_cut(const Plan *plan, const Model *model, Buf *text) {
    static const char *const ways[] = {"as given", "balanced by measured time",
                                       "balanced by floating-point operations"};
    int32_t n_stages = plan->spec.n_stages;
    TRY(buf_printf(text, "model %s: %d %s in %d %s", model->name, model->n_layers,
                   text_plural(model->n_layers, "layer", "layers"), n_stages,
                   text_plural(n_stages, "stage", "stages")));
    if (n_stages > 1)
        TRY(buf_printf(text, ", cut %s", ways[plan->balance]));
    return buf_printf(text, "; %d %s\n", plan->n_workers,
                      text_plural(plan->n_workers, "worker", "workers"));
}

static int describe_saves(int64_t every, int64_t n_steps, Buf *text) {
    if (every >= n_steps)
        return buf_text(text, "; a save at the end\n");
    if (every == 1)
        return buf_text(text, "; a save every step\n");
    return buf_printf(text, "; a save every %lld steps\n", (long long)every);
}

int plan_describe(const Plan *plan, const JobConfig *config, bool with_programs, Buf *out_text) {
    const PlanSpec *spec = &plan->spec;
    const Model *model = &config->order.model;
    char step[32];
    char held[32];
    TRY(describe_cut(plan, model, out_text));
    TRY(buf_printf(out_text, "batch %lld in %d %s of %d, schedule %s, %d %s, %s (%s)\n",
                   (long long)config->order.batch, spec->n_micro,
                   text_plural(spec->n_micro, "micro-batch", "micro-batches"), spec->micro_rows,
                   spec->schedule, spec->threads, text_plural(spec->threads, "thread", "threads"),
                   spec->device, spec->isa));
    TRY(buf_printf(out_text, "relay: %s a step, at most %s held",
                   text_format_bytes(plan->step_bytes, step, sizeof step),
                   text_format_bytes(plan->held_bytes, held, sizeof held)));
    TRY(describe_saves(plan->save_every, config->order.n_steps, out_text));
    for (int32_t i = 0; i < spec->n_stages; i++) {
        Stage stage;
        TRY(stage_init(&stage, model, spec->ends, spec->n_stages, i));
        int rc = describe_stage(plan, model, &stage, with_programs, out_text);
        stage_done(&stage);
        TRY(rc);
    }
    return 0;
}

/* ---- the stages as JSON ---- */

static cJSON *edge_to_json(const Model *model, const Edge *edge, int32_t micro_rows) {
    cJSON *object = cJSON_CreateObject();
    int64_t there = stage_edge_bytes(model, edge, micro_rows, false);
    int64_t both = stage_edge_bytes(model, edge, micro_rows, edge->n_grads > 0);
    put_number(&object, "to_stage", edge->consumer);
    put_number(&object, "forward_bytes", there);
    put_number(&object, "backward_bytes", both - there);
    return object;
}

/* Append; on failure the array is freed and NULL. */
static void append(cJSON **array, cJSON *take_item) {
    if (*array && take_item && cJSON_AddItemToArray(*array, take_item))
        return;
    cJSON_Delete(take_item);
    cJSON_Delete(*array);
    *array = NULL;
}

static cJSON *stage_to_json(const Plan *plan, const Model *model, const Stage *stage) {
    cJSON *object = cJSON_CreateObject();
    cJSON *layers = cJSON_CreateArray();
    cJSON *edges = cJSON_CreateArray();
    for (int32_t i = stage->first_layer; i < stage->end_layer; i++)
        append(&layers, cJSON_CreateString(model->layers[i].name));
    for (int32_t i = 0; i < stage->n_out; i++)
        append(&edges, edge_to_json(model, &stage->out[i], plan->spec.micro_rows));
    put_number(&object, "stage", stage->index);
    put(&object, "layers", layers);
    put_number(&object, "parameters", elements_of(model, stage, PARAM_WEIGHT));
    put_number(&object, "buffers", elements_of(model, stage, PARAM_STATISTIC));
    put_number(&object, "replicas", plan->spec.replicas[stage->index]);
    put(&object, "edges", edges);
    return object;
}

cJSON *plan_describe_json(const Plan *plan, const JobConfig *config) {
    cJSON *root = plan_to_json(plan);
    cJSON *stages = cJSON_CreateArray();
    for (int32_t i = 0; i < plan->spec.n_stages; i++) {
        Stage stage;
        if (stage_init(&stage, &config->order.model, plan->spec.ends, plan->spec.n_stages, i) < 0) {
            append(&stages, NULL);
            break;
        }
        append(&stages, stage_to_json(plan, &config->order.model, &stage));
        stage_done(&stage);
    }
    put(&root, "stages", stages);
    return root;
}
