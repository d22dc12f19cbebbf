/* $.plan: the cut by layer names or numbers, replicas, schedule. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/config_parts.h"
#include "coordinator/schedule.h"
#include "core/err.h"
#include "core/program.h"
#include "core/text.h"

static const char *const device_names[] = {"cpu"};
/* Those of the cpu device (gpu/device.h): a worker may still lack one. */
static const char *const isa_names[] = {"auto", "avx512_core", "avx2", "sse41"};
enum { N_ISAS = sizeof isa_names / sizeof isa_names[0] };

void config_plan_done(PlanRequest *plan) {
    free(plan->ends);
    free(plan->replicas);
    free(plan->recompute);
    plan->ends = NULL;
    plan->replicas = NULL;
    plan->recompute = NULL;
}

int32_t config_workers(const PlanRequest *plan) {
    int64_t workers = 0;
    for (int32_t i = 0; i < plan->n_stages; i++)
        workers += plan->replicas[i];
    return workers > INT32_MAX ? INT32_MAX : (int32_t)workers;
}

static int unknown_layer(const Model *model, const char *name, const char *path, int index) {
    const char **names = malloc((size_t)model->n_layers * sizeof *names);
    const char *nearest = NULL;
    for (int32_t i = 0; names && i < model->n_layers; i++)
        names[i] = model->layers[i].name;
    if (names)
        nearest = text_nearest(name, names, (size_t)model->n_layers);
    free(names); /* nearest stands in the model */
    if (nearest)
        return err_set(ERR_ARGUMENT, "%s[%d]: no layer is named '%s' (did you mean '%s'?)", path,
                       index, name, nearest);
    return err_set(ERR_ARGUMENT, "%s[%d]: no layer is named '%s'", path, index, name);
}

/* One entry of the cut: the name of a stage's last layer, or the number of the layer behind it. */
static int end_of_item(const cJSON *item, const Model *model, const char *path, int index,
                       int32_t *out_end) {
    if (cJSON_IsString(item)) {
        for (int32_t i = 0; i < model->n_layers; i++) {
            if (strcmp(model->layers[i].name, item->valuestring) == 0) {
                *out_end = i + 1;
                return 0;
            }
        }
        return unknown_layer(model, item->valuestring, path, index);
    }
    double number = cJSON_IsNumber(item) ? item->valuedouble : 0;
    if (!(number >= 1 && number <= model->n_layers) || number != (int32_t)number)
        return err_set(ERR_ARGUMENT,
                       "%s[%d]: expected a layer's name or a number of layers from 1 to %d", path,
                       index, model->n_layers);
    *out_end = (int32_t)number;
    return 0;
}

static int parse_cut_array(const cJSON *value, const Model *model, const char *path,
                           PlanRequest *plan) {
    int n = cJSON_GetArraySize(value);
    if (n >= STAGE_MAX)
        return err_set(ERR_LIMIT, "%s: more than %d entries", path, STAGE_MAX - 1);
    plan->ends = calloc((size_t)n + 1, sizeof *plan->ends);
    if (!plan->ends)
        return err_set(ERR_MEMORY, "%s", path);
    int32_t n_ends = 0;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, value) {
        TRY(end_of_item(item, model, path, n_ends, &plan->ends[n_ends]));
        if (n_ends > 0 && plan->ends[n_ends] <= plan->ends[n_ends - 1])
            return err_set(ERR_ARGUMENT,
                           "%s[%d]: this stage would end after %d %s, which is not beyond the end "
                           "of the stage before it (%d)",
                           path, n_ends, plan->ends[n_ends],
                           text_plural(plan->ends[n_ends], "layer", "layers"),
                           plan->ends[n_ends - 1]);
        n_ends++;
    }
    if (n_ends == 0 || plan->ends[n_ends - 1] < model->n_layers)
        plan->ends[n_ends++] = model->n_layers; /* the last stage's end may be left out */
    if (plan->n_stages > 0 && plan->n_stages != n_ends)
        return err_set(ERR_ARGUMENT,
                       "%s: makes %d %s, but plan.stages is %d; plan.cut=auto cuts anew, plan=null "
                       "plans everything anew",
                       path, n_ends, text_plural(n_ends, "stage", "stages"), plan->n_stages);
    plan->n_stages = n_ends;
    return 0;
}

static int parse_cut(JsonObject *object, const Model *model, PlanRequest *plan) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    int64_t stages = 0;
    TRY(json_opt_i64(object, "stages", 1, STAGE_MAX, &stages));
    plan->n_stages = (int32_t)stages;
    int present = json_opt(object, "cut", &value, path);
    TRY(present);
    if (present && cJSON_IsArray(value))
        TRY(parse_cut_array(value, model, path, plan));
    else if (present && !(cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0))
        return err_set(ERR_FORMAT, "%s: expected \"auto\" or an array of layers", path);
    if (plan->n_stages == 0)
        plan->n_stages = 1;
    if (plan->n_stages > model->n_layers)
        return err_set(ERR_INFEASIBLE, "%s.stages: %d stages, but model '%s' has only %d %s",
                       object->path, plan->n_stages, model->name, model->n_layers,
                       text_plural(model->n_layers, "layer", "layers"));
    return 0;
}

static int replicas_of_item(const cJSON *item, const char *path, const char *place,
                            int32_t *out_replicas) {
    double number = cJSON_IsNumber(item) ? item->valuedouble : 0;
    if (!(number >= 1 && number <= CONFIG_MAX_REPLICAS) || number != (int32_t)number)
        return err_set(ERR_ARGUMENT, "%s%s: expected a whole number from 1 to %d", path, place,
                       CONFIG_MAX_REPLICAS);
    *out_replicas = (int32_t)number;
    return 0;
}

/* A value for each stage is missing or too much. */
static int wrong_length(const char *path, const cJSON *value, const PlanRequest *plan) {
    int n = cJSON_GetArraySize(value);
    return err_set(ERR_ARGUMENT,
                   "%s: %d %s, but there %s %d %s; one value alone holds for all stages, null "
                   "removes the key",
                   path, n, text_plural(n, "entry", "entries"),
                   text_plural(plan->n_stages, "is", "are"), plan->n_stages,
                   text_plural(plan->n_stages, "stage", "stages"));
}

/* [2, 1, 1], or {"1": 2}: one a stage, or only those that have several; 2: all have so many. */
static int parse_replicas(JsonObject *object, PlanRequest *plan) {
    const cJSON *value = NULL;
    const cJSON *item = NULL;
    char path[JSON_PATH_BYTES];
    char place[JSON_PATH_BYTES + 16];
    int64_t stage = 0;
    plan->replicas = calloc((size_t)plan->n_stages, sizeof *plan->replicas);
    if (!plan->replicas)
        return err_set(ERR_MEMORY, "%d stages", plan->n_stages);
    for (int32_t i = 0; i < plan->n_stages; i++)
        plan->replicas[i] = 1;
    int present = json_opt(object, "replicas", &value, path);
    if (present <= 0)
        return present;
    bool by_name = cJSON_IsObject(value);
    if (cJSON_IsNumber(value)) {
        for (int32_t i = 0; i < plan->n_stages; i++)
            TRY(replicas_of_item(value, path, "", &plan->replicas[i]));
        return 0;
    }
    if (!by_name && !cJSON_IsArray(value))
        return err_set(ERR_FORMAT,
                       "%s: expected a number, an array, or an object such as {\"1\": 2}", path);
    if (!by_name && cJSON_GetArraySize(value) != plan->n_stages)
        return wrong_length(path, value, plan);
    cJSON_ArrayForEach(item, value) {
        if (by_name) {
            int rc = text_parse_i64(item->string, 0, plan->n_stages - 1, &stage);
            if (rc < 0)
                return err_context(rc, "%s: the stage", path);
            snprintf(place, sizeof place, "%lld", (long long)stage);
            if (strcmp(place, item->string) != 0) /* "01" and "1" would both name it */
                return err_set(ERR_FORMAT, "%s: the stage '%s' must be written '%s'", path,
                               item->string, place);
        }
        snprintf(place, sizeof place, by_name ? ".%lld" : "[%lld]", (long long)stage);
        TRY(replicas_of_item(item, path, place, &plan->replicas[stage]));
        stage++;
    }
    return 0;
}

static int parse_recompute(JsonObject *object, PlanRequest *plan) {
    const cJSON *value = NULL;
    const cJSON *item = NULL;
    char path[JSON_PATH_BYTES];
    plan->recompute = calloc((size_t)plan->n_stages, sizeof *plan->recompute);
    if (!plan->recompute)
        return err_set(ERR_MEMORY, "%d stages", plan->n_stages);
    int present = json_opt(object, "recompute", &value, path);
    if (present <= 0)
        return present;
    if (cJSON_IsBool(value)) {
        for (int32_t i = 0; i < plan->n_stages; i++)
            plan->recompute[i] = cJSON_IsTrue(value);
        return 0;
    }
    if (!cJSON_IsArray(value))
        return err_set(ERR_FORMAT, "%s: expected true, false, or an array of them, one a stage",
                       path);
    if (cJSON_GetArraySize(value) != plan->n_stages)
        return wrong_length(path, value, plan);
    int32_t stage = 0;
    cJSON_ArrayForEach(item, value) {
        if (!cJSON_IsBool(item))
            return err_set(ERR_FORMAT, "%s[%d]: expected true or false", path, stage);
        plan->recompute[stage++] = cJSON_IsTrue(item);
    }
    return 0;
}

static int parse_numbers(JsonObject *object, PlanRequest *plan) {
    int64_t warmup = 0;
    int64_t hoist = 1;
    int64_t threads = 1;
    int device = 0;
    int isa = 0;
    TRY(json_opt_i64(object, "warmup", 0, PROGRAM_MAX_MICRO, &warmup));
    TRY(json_opt_i64(object, "prefetch", 0, PROGRAM_MAX_MICRO, &hoist));
    TRY(json_opt_i64(object, "threads", 1, 4096, &threads));
    TRY(json_opt_choice(object, "device", device_names, 1, &device));
    TRY(json_opt_choice(object, "isa", isa_names, N_ISAS, &isa));
    plan->warmup = (int32_t)warmup;
    plan->hoist = (int32_t)hoist;
    plan->threads = (int32_t)threads;
    TRY(text_copy(plan->device, sizeof plan->device, device_names[device]));
    return text_copy(plan->isa, sizeof plan->isa, isa_names[isa]);
}

static int parse_reduce(JsonObject *plan, ReduceSpec *spec) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    JsonObject object;
    int form = REDUCE_AUTO;
    int wire = REDUCE_F32;
    *spec = (ReduceSpec){.rate_bytes_per_s = REDUCE_RATE_BYTES_PER_S};
    int present = json_opt(plan, "reduce", &value, path);
    if (present <= 0) {
        spec->chunk_bytes = reduction_chunk_bytes(spec);
        return present;
    }
    TRY(json_object(value, path, &object));
    TRY(json_opt_choice(&object, "form", reduction_form_names, REDUCE_N_FORMS, &form));
    TRY(json_opt_choice(&object, "wire", reduction_wire_names, REDUCE_N_WIRES, &wire));
    int chunk = json_opt_bytes(&object, "chunk", &spec->chunk_bytes);
    TRY(chunk);
    if (chunk > 0 && (spec->chunk_bytes < REDUCE_LEAST_CHUNK_BYTES ||
                      spec->chunk_bytes > REDUCE_MAX_CHUNK_BYTES))
        return err_set(ERR_ARGUMENT, "%s.chunk: %lld bytes, expected 4KiB to 64MiB", path,
                       (long long)spec->chunk_bytes);
    TRY(json_opt_i64(&object, "latency_us", 1, INT32_MAX, &spec->latency_us));
    TRY(json_opt_bytes(&object, "rate", &spec->rate_bytes_per_s));
    if (spec->rate_bytes_per_s < REDUCE_LEAST_RATE_BYTES_PER_S ||
        spec->rate_bytes_per_s > REDUCE_MAX_RATE_BYTES_PER_S)
        return err_set(ERR_ARGUMENT, "%s.rate: %lld bytes a second, expected 1kB to 1TB", path,
                       (long long)spec->rate_bytes_per_s);
    if (form == REDUCE_IN_STORE && wire == REDUCE_BF16)
        return err_set(ERR_ARGUMENT,
                       "%s: a store sums in f32; with the wire \"bf16\" the form is \"auto\", "
                       "\"whole\" or \"chunked\"",
                       path);
    spec->form = (ReduceForm)form;
    spec->wire = (ReduceWire)wire;
    spec->chunk_bytes = reduction_chunk_bytes(spec);
    return json_end(&object);
}

static cJSON *reduce_to_json(const ReduceSpec *spec) {
    char chunk[32];
    char rate[32];
    cJSON *object = cJSON_CreateObject();
    snprintf(chunk, sizeof chunk, "%lldB", (long long)spec->chunk_bytes);
    snprintf(rate, sizeof rate, "%lldB", (long long)spec->rate_bytes_per_s);
    if (cJSON_AddStringToObject(object, "form", reduction_form_names[spec->form]) &&
        cJSON_AddStringToObject(object, "wire", reduction_wire_names[spec->wire]) &&
        cJSON_AddStringToObject(object, "chunk", chunk) &&
        (spec->latency_us == 0 ||
         cJSON_AddNumberToObject(object, "latency_us", (double)spec->latency_us)) &&
        cJSON_AddStringToObject(object, "rate", rate))
        return object;
    cJSON_Delete(object);
    return NULL;
}

int config_parse_plan(JsonObject *root, const Model *model, PlanRequest *out_plan) {
    PlanRequest plan;
    memset(&plan, 0, sizeof plan);
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    JsonObject object;
    int schedule = 0;
    int rc = json_opt(root, "plan", &value, path);
    TRY(rc);
    cJSON *empty = rc == 0 ? cJSON_CreateObject() : NULL;
    if (!value && !empty)
        return err_set(ERR_MEMORY, "$.plan");
    TRY_DONE(json_object(value ? value : empty, value ? path : "$.plan", &object));
    TRY_DONE(parse_cut(&object, model, &plan));
    TRY_DONE(parse_replicas(&object, &plan));
    TRY_DONE(parse_recompute(&object, &plan));
    TRY_DONE(json_opt_choice(&object, "schedule", schedule_names, SCHEDULE_N, &schedule));
    TRY_DONE(text_copy(plan.schedule, sizeof plan.schedule, schedule_names[schedule]));
    TRY_DONE(parse_numbers(&object, &plan));
    TRY_DONE(parse_reduce(&object, &plan.reduce));
    for (int32_t s = 0; s < plan.n_stages; s++) {
        rc = reduction_check(&plan.reduce, plan.replicas[s]);
        if (rc < 0) {
            err_context(rc, "$.plan.reduce.form: stage %d", s);
            goto done;
        }
    }
    TRY_DONE(json_end(&object));
    *out_plan = plan;
done:
    cJSON_Delete(empty);
    if (rc < 0)
        config_plan_done(&plan);
    return rc < 0 ? rc : 0;
}

/* One value where all stages agree, so that the job can be cut otherwise. */
static cJSON *replicas_to_json(const PlanRequest *plan) {
    for (int32_t i = 1; i < plan->n_stages; i++) {
        if (plan->replicas[i] != plan->replicas[0])
            return cJSON_CreateIntArray(plan->replicas, plan->n_stages);
    }
    return cJSON_CreateNumber(plan->replicas[0]);
}

static cJSON *recompute_to_json(const PlanRequest *plan) {
    int32_t n_true = 0;
    for (int32_t i = 0; i < plan->n_stages; i++)
        n_true += plan->recompute[i];
    if (n_true == 0 || n_true == plan->n_stages)
        return cJSON_CreateBool(n_true > 0);
    cJSON *array = cJSON_CreateArray();
    for (int32_t i = 0; array && i < plan->n_stages; i++) {
        if (cJSON_AddItemToArray(array, cJSON_CreateBool(plan->recompute[i])))
            continue;
        cJSON_Delete(array);
        array = NULL;
    }
    return array;
}

cJSON *config_plan_to_json(const PlanRequest *plan) {
    cJSON *object = cJSON_CreateObject();
    bool made = cJSON_AddNumberToObject(object, "stages", plan->n_stages) &&
                cJSON_AddItemToObject(object, "cut",
                                      plan->ends ? cJSON_CreateIntArray(plan->ends, plan->n_stages)
                                                 : cJSON_CreateString("auto")) &&
                cJSON_AddItemToObject(object, "replicas", replicas_to_json(plan)) &&
                cJSON_AddStringToObject(object, "schedule", plan->schedule) &&
                cJSON_AddNumberToObject(object, "warmup", plan->warmup) &&
                cJSON_AddItemToObject(object, "recompute", recompute_to_json(plan)) &&
                cJSON_AddNumberToObject(object, "prefetch", plan->hoist) &&
                cJSON_AddNumberToObject(object, "threads", plan->threads) &&
                cJSON_AddStringToObject(object, "device", plan->device) &&
                cJSON_AddStringToObject(object, "isa", plan->isa) &&
                cJSON_AddItemToObject(object, "reduce", reduce_to_json(&plan->reduce));
    if (made)
        return object;
    cJSON_Delete(object);
    return NULL;
}
