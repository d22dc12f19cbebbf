#include "coordinator/config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/config_parts.h"
#include "core/err.h"
#include "core/program.h"
#include "core/text.h"
#include "storage/relay.h"

static void config_init(JobConfig *config) {
    memset(config, 0, sizeof *config);
    order_init(&config->order);
    config->order.shuffle = true;
    config->order.wait_timeout_ms = 5 * 60 * 1000;
    config->order.heartbeat_ms = 1000;
    config->keep_last = 3;
    config->start_timeout_ms = 30 * 1000;
    config->silence_ms = 10 * 1000;
    config->stop_timeout_ms = 2 * 60 * 1000;
    config->max_workers = 64;
    config->max_restarts = 2;
    config->relay_limit_bytes = (int64_t)1 << 30;
    memcpy(config->relay, "auto", sizeof "auto");
}

void config_done(JobConfig *config) {
    if (!config)
        return;
    order_done(&config->order);
    config_plan_done(&config->plan);
}

/* ---- --set ---- */

/* Remove the value at a dotted path; what is not there is no error. */
static void unset(cJSON *root, const char *dotted) {
    char key[JSON_PATH_BYTES];
    cJSON *object = root;
    for (;;) {
        size_t length = strcspn(dotted, ".");
        if (length >= sizeof key || !cJSON_IsObject(object))
            return;
        memcpy(key, dotted, length);
        key[length] = '\0';
        if (!dotted[length])
            break;
        object = cJSON_GetObjectItemCaseSensitive(object, key);
        dotted += length + 1;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
}

static int set_context(int rc, const ConfigSet *set) {
    if (text_may_be_secret(set->text))
        return err_context(rc, "--set %s", set->path);
    return err_context(rc, "--set %s=%s", set->path, set->text);
}

static int apply_sets(cJSON *root, const ConfigSet *sets, int n_sets) {
    for (int i = 0; i < n_sets; i++) {
        if (strcmp(sets[i].text, "null") == 0) {
            unset(root, sets[i].path);
            continue;
        }
        int rc = json_set(root, sets[i].path, sets[i].text);
        if (rc < 0)
            return set_context(rc, &sets[i]);
    }
    return 0;
}

/* Does the error note speak of the value that this set brought? */
static bool blames(const char *note, const ConfigSet *set) {
    char words[2 * JSON_PATH_BYTES];
    const char *dot = strrchr(set->path, '.');
    snprintf(words, sizeof words, "$.%s", set->path);
    if (strstr(note, words))
        return true;
    if (dot)
        snprintf(words, sizeof words, "$.%.*s: unknown key '%s'", (int)(dot - set->path), set->path,
                 dot + 1);
    else
        snprintf(words, sizeof words, "$: unknown key '%s'", set->path);
    return strstr(note, words) != NULL;
}

static int blame_sets(int rc, const ConfigSet *sets, int n_sets) {
    ErrNote note;
    err_copy(&note);
    for (int i = n_sets - 1; i >= 0; i--) {
        if (blames(note.text, &sets[i]))
            return set_context(rc, &sets[i]);
    }
    return rc;
}

/* ---- sections ---- */

/* 1 and the object of a section, 0 when it is absent. */
static int section(JsonObject *root, const char *key, JsonObject *out_object) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    int present = json_opt(root, key, &value, path);
    if (present <= 0)
        return present;
    TRY(json_object(value, path, out_object));
    return 1;
}

static int parse_length(JsonObject *root, Order *order) {
    int64_t steps = 0;
    int64_t epochs = 0;
    TRY(json_opt_i64(root, "steps", 1, CONFIG_MAX_COUNT, &steps));
    TRY(json_opt_i64(root, "epochs", 1, 1 << 20, &epochs));
    if ((steps > 0) == (epochs > 0))
        return err_set(ERR_ARGUMENT, "$: expected exactly one of the keys 'steps' and 'epochs'");
    int64_t per_epoch = order_steps_per_epoch(order->train_samples, order->batch);
    order->n_steps = steps > 0 ? steps : epochs * per_epoch;
    if (order->n_steps > CONFIG_MAX_COUNT)
        return err_set(ERR_LIMIT, "$.epochs: %lld epochs are %lld steps, more than %lld",
                       (long long)epochs, (long long)order->n_steps, (long long)CONFIG_MAX_COUNT);
    return 0;
}

static int parse_batch(JsonObject *root, unsigned flags, Order *order) {
    int64_t micro = 0;
    TRY(json_get_i64(root, "batch", 1, INT32_MAX, &order->batch));
    if (!(flags & CONFIG_WITHOUT_DATA) && order->batch > order->train_samples)
        return err_set(ERR_ARGUMENT, "$.batch: %lld, but there %s only %lld %s",
                       (long long)order->batch, text_plural(order->train_samples, "is", "are"),
                       (long long)order->train_samples,
                       text_plural(order->train_samples, "sample", "samples"));
    micro = order->batch;
    TRY(json_opt_i64(root, "micro_batch", 1, order->batch, &micro));
    int64_t n_micro = order_steps_per_epoch(order->batch, micro);
    if (n_micro > PROGRAM_MAX_MICRO)
        return err_set(ERR_LIMIT, "$.micro_batch: %lld makes %lld micro-batches, at most %d",
                       (long long)micro, (long long)n_micro, PROGRAM_MAX_MICRO);
    order->plan.micro_rows = (int32_t)micro;
    order->plan.n_micro = (int32_t)n_micro;
    return parse_length(root, order);
}

static int parse_save(JsonObject *root, JobConfig *config) {
    JsonObject object;
    int present = section(root, "save", &object);
    if (present <= 0)
        return present;
    int given =
        json_opt_i64(&object, "every_steps", 1, CONFIG_MAX_COUNT, &config->order.save_every);
    TRY(given);
    config->save_every_given = given == 1;
    int timed = json_opt_duration_ms(&object, "every", &config->save_every_ms);
    TRY(timed);
    if (timed && config->save_every_ms == 0)
        return err_set(ERR_ARGUMENT, "%s.every: saves cannot come every 0ms; null removes the key",
                       object.path);
    TRY(json_opt_i64(&object, "keep_last", 0, 1 << 20, &config->keep_last));
    return json_end(&object);
}

static int parse_evaluate(JsonObject *root, Order *order) {
    JsonObject object;
    int64_t epochs = 0;
    int64_t samples = 0;
    int present = section(root, "evaluate", &object);
    if (present <= 0)
        return present;
    if (!order->has_eval)
        return err_set(
            ERR_ARGUMENT,
            "%s: needs evaluation data in $.data.eval; give some, or remove this section, "
            "too (evaluate=null)",
            object.path);
    int by_steps = json_opt_i64(&object, "every_steps", 1, CONFIG_MAX_COUNT, &order->eval_every);
    TRY(by_steps);
    TRY(json_opt_i64(&object, "every_epochs", 1, 1 << 20, &epochs));
    if (by_steps && epochs > 0)
        return err_set(ERR_ARGUMENT,
                       "%s: expected at most one of the keys 'every_steps' and 'every_epochs'",
                       object.path);
    if (epochs > 0)
        order->eval_every = epochs * order_steps_per_epoch(order->train_samples, order->batch);
    if (order->eval_every > CONFIG_MAX_COUNT)
        return err_set(ERR_LIMIT, "%s.every_epochs: %lld epochs are %lld steps, more than %lld",
                       object.path, (long long)epochs, (long long)order->eval_every,
                       (long long)CONFIG_MAX_COUNT);
    TRY(json_opt_i64(&object, "samples", 1, CONFIG_MAX_COUNT, &samples));
    TRY(config_check_eval_samples(order, samples, "$.evaluate.samples"));
    return json_end(&object);
}

static int parse_platform(JsonObject *root, JobConfig *config) {
    static const char *const kinds[] = {"local"};
    JsonObject object;
    int kind = 0;
    int present = section(root, "platform", &object);
    if (present <= 0)
        return present;
    TRY(json_opt_choice(&object, "kind", kinds, 1, &kind));
    TRY(json_opt_i64(&object, "workers", 1, CONFIG_MAX_REPLICAS, &config->max_workers));
    return json_end(&object);
}

static int at_least(const char *path, const char *key, int64_t ms, int64_t least_ms) {
    if (ms < least_ms)
        return err_set(ERR_ARGUMENT, "%s.%s: %lldms is less than %lldms", path, key, (long long)ms,
                       (long long)least_ms);
    return 0;
}

static int parse_timeouts(JsonObject *root, JobConfig *config) {
    JsonObject object;
    int present = section(root, "timeouts", &object);
    if (present <= 0)
        return present;
    struct {
        const char *key;
        int64_t *ms;
        int64_t least_ms;
    } all[] = {{"wait", &config->order.wait_timeout_ms, 100},
               {"heartbeat", &config->order.heartbeat_ms, 10},
               {"start", &config->start_timeout_ms, 100},
               {"silence", &config->silence_ms, 100},
               {"stop", &config->stop_timeout_ms, 100}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        TRY(json_opt_duration_ms(&object, all[i].key, all[i].ms));
        TRY(at_least(object.path, all[i].key, *all[i].ms, all[i].least_ms));
    }
    return json_end(&object);
}

static int parse_limits(JsonObject *root, JobConfig *config) {
    JsonObject object;
    int present = section(root, "limits", &object);
    if (present <= 0)
        return present;
    TRY(json_opt_i64(&object, "restarts", 0, 1000, &config->max_restarts));
    TRY(json_opt_bytes(&object, "relay", &config->relay_limit_bytes));
    return json_end(&object);
}

static int parse_seed(JsonObject *root, uint64_t *out_seed) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    int64_t whole = 1;
    int present = json_opt(root, "seed", &value, path);
    TRY(present);
    if (present && cJSON_IsString(value)) { /* 64 bits do not fit a JSON number */
        uint64_t seed = 0;
        const char *at = value->valuestring;
        for (; *at >= '0' && *at <= '9'; at++) {
            if (__builtin_mul_overflow(seed, UINT64_C(10), &seed) ||
                __builtin_add_overflow(seed, (uint64_t)(*at - '0'), &seed))
                return err_set(ERR_ARGUMENT, "%s: '%s' is not below 2^64", path,
                               value->valuestring);
        }
        if (*at || at == value->valuestring)
            return err_set(ERR_FORMAT, "%s: '%s' is not a whole number", path, value->valuestring);
        *out_seed = seed;
        return 0;
    }
    TRY(json_opt_i64(root, "seed", 0, (INT64_C(1) << 53) - 1, &whole));
    *out_seed = (uint64_t)whole;
    return 0;
}

/* "/", "//", "/./..": the root of the file system. */
static bool is_root(const char *path) {
    return path[0] == '/' && path[strspn(path, "/.")] == '\0' && !strstr(path, "...");
}

static int parse_relay(JsonObject *root, const char *folder, JobConfig *config) {
    const char *relay = "auto";
    TRY(json_opt_string(root, "relay", &relay));
    bool is_url = strcmp(relay, "auto") == 0 || strstr(relay, "://");
    if (!is_url && strchr(relay, '@')) /* not quoted: a password may stand in front of it */
        return err_set(ERR_ARGUMENT, "$.relay: it is no URL such as redis://HOST");
    if (!is_url)
        return err_set(ERR_ARGUMENT,
                       "$.relay: '%s' is neither \"auto\" nor a URL such as file:///DIRECTORY",
                       relay);
    if (strncmp(relay, "file://", 7) == 0 && is_root(relay + 7))
        return err_set(
            ERR_ARGUMENT,
            "$.relay: '%s' is the root of the file system; give the relay a directory of "
            "its own",
            relay);
    if (strcmp(relay, "auto") != 0 && relay_check_url(relay) < 0)
        return err_context(ERR_ARGUMENT, "$.relay");
    if (strncmp(relay, "file://", 7) == 0 && relay[7] != '/') {
        char path[ORDER_URL_BYTES - 7];
        TRY(text_copy(path, sizeof path, relay + 7));
        TRY(config_absolute(folder, path, sizeof path));
        memcpy(config->relay, "file://", 8);
        return text_copy(config->relay + 7, sizeof config->relay - 7, path);
    }
    return text_copy(config->relay, sizeof config->relay, relay);
}

static int parse_name(JsonObject *root, Order *order) {
    int64_t version = 0;
    const char *name = NULL;
    const char *schema = NULL; /* for editors only */
    TRY(json_opt_string(root, "$schema", &schema));
    TRY(json_get_i64(root, "version", 0, INT32_MAX, &version));
    if (version != CONFIG_VERSION)
        return err_set(ERR_UNSUPPORTED, "$.version: %lld, but this program reads version %d",
                       (long long)version, CONFIG_VERSION);
    TRY(json_get_string(root, "name", &name));
    int rc = text_check_name("job name", name, sizeof order->job - 1);
    if (rc < 0)
        return err_context(rc, "$.name");
    return text_copy(order->job, sizeof order->job, name);
}

static int parse_root(const cJSON *value, const char *folder, unsigned flags, JobConfig *config) {
    Order *order = &config->order;
    const cJSON *update = NULL;
    char path[JSON_PATH_BYTES];
    JsonObject root;
    TRY(json_object(value, "$", &root));
    TRY(parse_name(&root, order));
    TRY(config_parse_model(&root, folder, &order->model));
    TRY(config_parse_data(&root, folder, flags, order));
    TRY(parse_batch(&root, flags, order));
    TRY(json_get(&root, "update", &update, path));
    TRY(order_parse_update(update, path, &order->update));
    TRY(parse_seed(&root, &order->seed));
    TRY(json_opt_bool(&root, "shuffle", &order->shuffle));
    TRY(parse_save(&root, config));
    TRY(parse_evaluate(&root, order));
    TRY(config_parse_plan(&root, &order->model, &config->plan));
    TRY(parse_platform(&root, config));
    TRY(parse_relay(&root, folder, config));
    TRY(parse_timeouts(&root, config));
    TRY(parse_limits(&root, config));
    TRY(json_end(&root));
    if (config_workers(&config->plan) > config->max_workers)
        return err_set(ERR_INFEASIBLE,
                       "$.platform.workers: the plan needs %d workers, the platform allows %lld",
                       config_workers(&config->plan), (long long)config->max_workers);
    return 0;
}

/* ---- whole files ---- */

static int parse_tree(const char *what, cJSON *root, const char *folder, const ConfigSet *sets,
                      int n_sets, unsigned flags, JobConfig *out_config) {
    JobConfig config;
    TRY(apply_sets(root, sets, n_sets));
    config_init(&config);
    int rc = parse_root(root, folder, flags, &config);
    if (rc < 0) {
        config_done(&config);
        return err_context(blame_sets(rc, sets, n_sets), "%s", what);
    }
    *out_config = config;
    return 0;
}

int config_parse(const char *what, const char *text, size_t bytes, const char *folder,
                 const ConfigSet *sets, int n_sets, unsigned flags, JobConfig *out_config) {
    cJSON *root = NULL;
    TRY(json_parse(what, text, bytes, CONFIG_MAX_BYTES, &root));
    int rc = parse_tree(what, root, folder, sets, n_sets, flags, out_config);
    cJSON_Delete(root);
    return rc;
}

/* The absolute folder of `path`: relative paths in a job file are relative to it. */
static int folder_of(const char *path, char *folder, size_t folder_bytes) {
    char resolved[PATH_MAX];
    if (!realpath(path, resolved))
        return err_set(ERR_NOT_FOUND, "there is no job file '%s'", text_unless_secret(path));
    char *slash = strrchr(resolved, '/');
    slash[slash == resolved ? 1 : 0] = '\0';
    return text_copy(folder, folder_bytes, resolved);
}

int config_load(const char *path, const ConfigSet *sets, int n_sets, unsigned flags,
                JobConfig *out_config) {
    cJSON *root = NULL;
    char folder[ORDER_PATH_BYTES];
    TRY(folder_of(path, folder, sizeof folder));
    TRY(json_parse_file(path, CONFIG_MAX_BYTES, &root));
    int rc = parse_tree(path, root, folder, sets, n_sets, flags, out_config);
    cJSON_Delete(root);
    return rc;
}

/* A file that holds a model and nothing else. */
static int parse_model_file(const char *path, cJSON *root, const ConfigSet *sets, int n_sets,
                            Model *out_model) {
    int rc = apply_sets(root, sets, n_sets);
    if (rc >= 0)
        rc = model_parse(root, "$", out_model);
    return rc < 0 ? err_context(blame_sets(rc, sets, n_sets), "%s", path) : 0;
}

int config_load_model(const char *path, const ConfigSet *sets, int n_sets, Model *out_model) {
    cJSON *root = NULL;
    JobConfig config;
    char folder[ORDER_PATH_BYTES];
    TRY(folder_of(path, folder, sizeof folder));
    TRY(json_parse_file(path, ORDER_MAX_BYTES, &root));
    if (cJSON_GetObjectItemCaseSensitive(root, "layers")) {
        int rc = parse_model_file(path, root, sets, n_sets, out_model);
        cJSON_Delete(root);
        return rc;
    }
    int rc = parse_tree(path, root, folder, sets, n_sets, CONFIG_WITHOUT_DATA, &config);
    cJSON_Delete(root);
    TRY(rc);
    *out_model = config.order.model;
    memset(&config.order.model, 0, sizeof config.order.model); /* the caller's now */
    config_done(&config);
    return 0;
}
